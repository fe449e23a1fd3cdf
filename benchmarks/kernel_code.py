"""How long the code of `runtime.attention=tpu_fused` is, as libtpu packs it for a chip.

  python -m benchmarks.kernel_code [--chips=v5e,v6e] [--seq_lens=128,512] [--heads=16]
  [--dropout_rngs=threefry,threefry13_8bit] [--json=FILE]

No TPU is needed: libtpu compiles the kernel and writes down its code. A TPU issues a bundle of
instructions a cycle, so that bundles, those in a loop by its turns, are cycles, as long as nothing
is waited for. Beside the time that follows stands the baseline, launch.plan's price of the same
kernel. 4,096 tokens, heads of 64, bfloat16.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

from benchmarks import bundles, machine
from configs.errors import UserError
from launch import app

_CHIPS = flags.DEFINE_list('chips', ['v5e', 'v6e'], 'chips to compile for')
_SEQ_LENS = flags.DEFINE_list('seq_lens', ['128', '512'], 'tokens of a row')
_HEADS = flags.DEFINE_integer('heads', 16, 'heads of 64')
_RNGS = flags.DEFINE_list('dropout_rngs', ['threefry', 'threefry13_8bit'], 'generators')
_JSON = flags.DEFINE_string('json', None, 'write the figures to this file too')

_TOKENS, _WIDTH, _RATE = 4096, 64, 0.1


def main(argv: Sequence[str]) -> None:
    """Compiles the kernels of each case one after the other, and prints a line for each."""
    del argv
    with bundles.code_folder() as folder:
        rows = []
        for row in cases(folder):
            rows.append(row)
            low, high = row['priced_ms']
            print(
                f'{row["chip"]} S={row["seq_len"]} {row["dropout_rng"]} {row["kernel"]}:'
                f' {row["programs"]} programs of {row["bundles"]:,} bundles, {row["ms"]:.3f} ms;'
                f' priced at {low:.3f} to {high:.3f}',
                flush=True,
            )
    if _JSON.value:
        found = {'machine': machine.describe('jax', 'libtpu'), 'rows': rows}
        pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=1))


def cases(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """A row for each chip, length, generator and pass; folder: where libtpu writes its code."""
    from bert_jax.costs import hlo, plan, prices
    from bert_jax.costs.chips import topology
    from bert_jax.model.attention import tpu_fused
    from bert_jax.model.dropout import GENERATORS

    # Obstacles first: what cannot be compiled is told before the first kernel is.
    where = [topology(f'{chip}:1x1') for chip in _CHIPS.value]
    lengths, heads = [int(tokens) for tokens in _SEQ_LENS.value], _HEADS.value
    for problem in map(plan.obstacle, where):
        if problem:
            raise UserError(problem)
    for problem in (tpu_fused.obstacle(tokens, heads * _WIDTH, heads) for tokens in lengths):
        if problem:
            raise UserError(f'--seq_lens, --heads: tpu_fused {problem}')
    known = [name for name in GENERATORS if name != 'rbg']
    for name in _RNGS.value:
        if name not in known:
            raise UserError(f'--dropout_rngs={name}: must be of {", ".join(known)}')

    for one, tokens, name in itertools.product(where, lengths, _RNGS.value):
        text = compiled(plan.devices(one)[0], tokens, name)
        code = bundles.written(folder)
        computations, entry = hlo.parse(text)
        for i in computations[entry].instructions.values():
            if 'tpu_custom_call' not in i.rest:
                continue
            price = prices.price(text, i, computations[entry], one.chip)
            assert price is not None, 'a kernel has a price'
            programs, count = bundles.of_kernel(code[i.name])
            yield {
                'chip': one.chip.name,
                'seq_len': tokens,
                'dropout_rng': name,
                'kernel': price.opcode.removeprefix('kernel '),
                'programs': programs,
                'bundles': count,
                'ms': 1e3 * programs * count / one.chip.clock,
                'priced_ms': [1e3 * price.low, 1e3 * price.high],
            }


def compiled(device: Any, tokens: int, dropout_rng: str) -> str:
    """The program of attention, forward and backward, for one chip."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from bert_jax.model.attention.tpu_fused import Fused, Names, fused_attention
    from bert_jax.model.dropout import GENERATORS

    heads, rows = _HEADS.value, _TOKENS // tokens
    fused = Fused(heads, -1e4, _RATE, GENERATORS[dropout_rng], left_to_right=False)

    def both(q, k, v, numbers, gradient, names):
        attend = lambda q, k, v: fused_attention(fused, q, k, v, numbers, numbers, names)
        out, back = jax.vjp(attend, q, k, v)
        return out, back(gradient)

    def array(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))

    wide = array(jnp.bfloat16, rows, tokens, heads * _WIDTH)
    numbers = array(jnp.int32, rows, tokens)
    names = Names(array(jnp.uint32, 2), array(jnp.uint32, rows), array(jnp.int32, 1))
    program = jax.jit(both).lower(wide, wide, wide, numbers, wide, names).compile()
    return program.as_text() or ''


if __name__ == '__main__':
    app.run(main)
