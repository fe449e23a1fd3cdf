"""Before paying: what a pre-training run needs and costs on a TPU topology, told without having one.

  python -m launch.plan --config=bert_large --topology=v5e:16x16 [--set a.b=c ...] [--json=FILE]

With the extra [plan] (pip install '.[plan]') the real train step is compiled for that topology: memory and
collectives are the compiler's. Without it only what follows from shapes is told. docs/plan.md explains the lines.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags, logging

from configs.errors import UserError
from launch import app

app.define_config_flags()
_TOPOLOGY = flags.DEFINE_string('topology', None, 'chips and wiring, as in v5e:16x16; a wrong name lists those that exist', required=True)
_MFU = flags.DEFINE_float('mfu', 0.4, "share of the chips' peak that the run is assumed to reach, for the second estimate of time")
_PRICE = flags.DEFINE_float('price_per_chip_hour', None, 'what a chip costs for an hour, in any currency')
_PREDICTIONS = flags.DEFINE_multi_integer('max_predictions', [], 'masked positions a row, once a phase; by default 15 %, rounded up')
_COMPILE = flags.DEFINE_bool('compile', True, 'compile the step, which takes minutes for a large model; without, only what shapes tell')
_JSON = flags.DEFINE_string('json', None, 'also write the plan to this file')

INSTALL = "pip install -c constraints.txt '.[plan]'"


def main(argv: Sequence[str]) -> int:
    """Prints the plan, and writes it where --json says."""
    del argv
    if not 0 < _MFU.value <= 1:
        raise UserError(f'--mfu={_MFU.value}: must be above 0 and at most 1, as in --mfu=0.4')
    if _PRICE.value is not None and _PRICE.value < 0:
        raise UserError(f'--price_per_chip_hour={_PRICE.value}: must be 0 or more')
    config = app.config_from_flags('pretrain')
    have_libtpu = importlib.util.find_spec('libtpu') is not None
    compiling = _COMPILE.value and have_libtpu
    os.environ['JAX_PLATFORMS'] = 'cpu'  # before jax is imported: on a TPU host the chips are left alone

    from bert_jax import plan
    from bert_jax.chips import topology

    where = topology(_TOPOLOGY.value)
    if compiling:
        logging.info('compiling %d train step(s) for %s: seconds if small, minutes if large', len(config.phases), where.name)
    found = plan.make_plan(config, where, _PREDICTIONS.value, _MFU.value, _PRICE.value, compiling)
    print('\n'.join(lines(found)))
    if not compiling:
        why = '--nocompile was given' if have_libtpu else f'libtpu is not installed: {INSTALL}'
        print(f'\nNOT COMPILED ({why}). What stands above follows from shapes alone:')
        print('activations, workspace and collectives are not in it, and whether the run fits is not known.')
    if _JSON.value:
        from etils import epath

        from input_pipeline.whole_file import write_whole

        path = epath.Path(_JSON.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=2) + '\n')
    return 0


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The plan as text; every size is of one chip."""
    chip, mesh = found['chip'], ' x '.join(f'{axis} {n}' for axis, n in found['mesh'].items())
    yield f'{found["config"]} on {found["topology"]}: {found["chips"]} chips, mesh {mesh}'
    yield f'{found["parameters"]:,} parameters'
    yield (
        f'chip {chip["name"]}: {chip["peak_flops"] / 1e12:g} TFLOP/s bf16, {chip["hbm_usable"] / 2**30:g} GiB usable at '
        f'{chip["hbm_bandwidth"] / 1e9:g} GB/s, links {chip["ici"] / 1e9:g} GB/s out; {chip["source"]}'
    )
    for i, phase in enumerate(found['phases']):
        yield from _phase(i, phase, found)
    for name, title in (('floor', 'at the floors'), ('mfu', f'at {found["mfu"]:.0%} MFU (assumed)')):
        total = found['schedule'][name]
        price = f', price {total["price"]:,.0f}' if 'price' in total else ''
        yield f'whole run {title}: {_hours(total["hours"])}, {total["chip_hours"]:,.0f} chip-hours{price}'


def _phase(i: int, phase: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    memory = phase['memory']
    yield ''
    yield (
        f'phase {i}: seq_len {phase["seq_len"]}, batch {phase["batch_size"]:,} ({phase["batch_per_chip"]:g} a chip), '
        f'{phase["max_predictions"]} masked positions, {phase["steps"]:,} steps'
    )
    yield f'  FLOPs          {_si(phase["flops_per_token"])}FLOP a token, {_si(phase["flops_per_step"])}FLOP a step (the model)'
    if compiler := phase.get('compiler'):
        once = '; it counts what loops once' if compiler['counts_loops_once'] else ''
        total = compiler['flops_per_chip'] * found['chips']
        yield f'  compiler says  {_si(total)}FLOP a step, {_si(compiler["bytes_per_chip"])}B moved a chip{once}'
    yield f'  state          parameters {_gib(memory["parameters"])}, optimizer {_gib(memory["optimizer"])}, batch {_gib(memory["batch"])}'
    if 'total' in memory:
        outputs = memory['outputs'] - memory['outputs_in_place']
        yield (
            f'  memory         arguments {_gib(memory["arguments"])}, temporaries {_gib(memory["temporary"])}, outputs not in place '
            f'{_gib(outputs)}, program {_gib(memory["program"])}: {_gib(memory["total"])}, left {_gib(memory["left"])}'
        )
        for row in phase['collectives']:
            axes = '+'.join(row['axes']) or '?'
            yield f'  {row["kind"]:<18} over {axes} ({row["chips"]} chips): {row["count"]} a step, {_si(row["bytes"])}B'
    floors = ', '.join(f'{name} {1e3 * seconds:.3g} ms' for name, seconds in phase['floor_s'].items())
    yield f'  step at least  {floors}'
    for name, title in (('floor', 'at the floor'), ('mfu', f'at {found["mfu"]:.0%} MFU')):
        row = found['schedule'][name]['phases'][i]
        reached = phase['floor_s']['compute'] / row['step_s']
        short = f' (out of reach: {reached:.0%} at most)' if name == 'mfu' and reached < 0.999 * found['mfu'] else ''
        yield f'  {title:<14} {1e3 * row["step_s"]:.3g} ms a step, {row["tokens_per_s"]:,.0f} tokens/s, {_hours(row["hours"])}{short}'


def _gib(size: float) -> str:
    return f'{size / 2**30:.2f} GiB' if abs(size) >= 2**28 else f'{size / 2**20:.1f} MiB'


def _si(value: float) -> str:
    for unit in ('', 'k', 'M', 'G', 'T', 'P'):
        if abs(value) < 1000 or unit == 'P':
            return f'{value:.4g} {unit}'
        value /= 1000
    raise AssertionError('unreachable')


def _hours(hours: float) -> str:
    return f'{hours:,.1f} hours' if hours >= 1 else f'{60 * hours:.1f} minutes'


if __name__ == '__main__':
    app.run(main)
