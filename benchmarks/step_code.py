"""How long the code of a train step is, beside libtpu's estimate of it and the plan's price.

  python -m benchmarks.step_code [--config=bert_large] [--layers=1] [--topologies=v5e:2x4,v6e:2x4]
  [--seq_lens=128,512] [--tokens=4096] [--set a.b=c ...] [--json=FILE]

No TPU is needed: libtpu compiles the step and writes down its code (bundles.py), 60 MB a layer. For
each basis of a price (bert_jax/costs/prices.py), and for all instructions of it whose code can be
counted: libtpu's estimate; the time of their code, if it never waits; that of their bytes at the
speed of the memory; the longer one of both, instruction by instruction; one after the other. The
last two are what a step can be expected to take between. Beside them, as the baseline, the price. A
case takes three minutes or more on one core.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from benchmarks import bundles, machine
from configs.errors import UserError
from launch import app

_CONFIG = flags.DEFINE_string('config', 'bert_large', 'preset')
_LAYERS = flags.DEFINE_integer('layers', 1, 'layers of the model that is compiled')
_TOPOLOGIES = flags.DEFINE_list('topologies', ['v5e:2x4', 'v6e:2x4'], 'topologies')
_SEQ_LENS = flags.DEFINE_list('seq_lens', ['128', '512'], 'lengths of the phases to compile')
_TOKENS = flags.DEFINE_integer('tokens', 4096, 'tokens of a step on each chip')
_SET = flags.DEFINE_multi_string(
    'set', [], 'changes one setting of all cases, as in --set runtime.scan_layers=true'
)
_JSON = flags.DEFINE_string('json', None, 'write the figures, instruction by instruction, to here')


def main(argv: Sequence[str]) -> None:
    """Compiles the cases one after the other, and prints a line for each basis."""
    del argv
    with bundles.code_folder() as folder:
        found = []
        for case in cases(folder):
            found.append(case)
            for basis in dict.fromkeys(i['basis'] for i in case['instructions']):
                of_basis = [i for i in case['instructions'] if i['basis'] == basis]
                print(
                    f'{case["topology"]} S={case["seq_len"]} {bundles.summed(basis, of_basis)}',
                    flush=True,
                )
    if _JSON.value:
        written = {'machine': machine.describe('jax', 'libtpu'), 'cases': found}
        pathlib.Path(_JSON.value).write_text(json.dumps(written, indent=1))


def cases(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The instructions of each topology and length; folder: where libtpu writes its code."""
    from bert_jax.costs import plan
    from bert_jax.costs.chips import topology
    from configs.load import load
    from configs.overrides import apply

    # Obstacles first: what cannot be compiled is told before the first case is.
    config = apply(load(_CONFIG.value), [f'model.num_layers={_LAYERS.value}', *_SET.value])
    of_length = {phase.seq_len: i for i, phase in enumerate(config.phases)}
    where = [topology(name) for name in _TOPOLOGIES.value]
    for problem in filter(None, map(plan.obstacle, where)):
        raise UserError(problem)
    lengths = [int(length) for length in _SEQ_LENS.value]
    for length in lengths:
        if length not in of_length:
            raise UserError(f'--seq_lens={length}: {_CONFIG.value} has {sorted(of_length)}')

    predictions = plan.predictions_of(config, [])
    for one in where:
        for length in lengths:
            i, rows = of_length[length], _TOKENS.value // length * one.chips
            of_case = apply(config, [f'phases.{i}.batch_size={rows}'])
            step = plan.compile_step(of_case, of_case.phases[i], predictions[i], one)
            yield {
                'topology': one.name,
                'seq_len': length,
                'batch_size': rows,
                'instructions': bundles.beside_prices(
                    step.as_text() or '', bundles.written(folder), one
                ),
            }


if __name__ == '__main__':
    app.run(main)
