"""Whether a mesh splits a model: what runtime.fsdp and runtime.model_parallel divide of it.

Owns what is said of it before a run. The rules themselves are in sharding.py, which leaves whole
what does not divide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.model.embeddings import padded_vocab


class Dimension(NamedTuple):
    """A dimension of the model, and the settings of `runtime` over whose product it is split."""

    name: str
    size: int
    axes: tuple[str, ...]


def left_whole(model: ModelConfig, runtime: RuntimeConfig) -> list[str]:
    """One warning for each dimension that should be split over the devices and is not.

    UserError where runtime.fsdp or runtime.model_parallel divides none of its dimensions: the
    devices along that axis would all hold the same and do the same work.
    """
    # What the rules of mesh/sharding.py split: the sizes, and over which settings. Biases and norms
    # are left out, being small.
    heads, width = model.num_heads, model.intermediate_size
    table = f'the {padded_vocab(model.vocab_size):,} rows of the word table'
    dimensions = [
        Dimension(f'model.hidden_size={model.hidden_size}', model.hidden_size, ('fsdp',)),
        Dimension(f'model.num_heads={heads}', heads, ('model_parallel',)),
        Dimension(f'model.intermediate_size={width}', width, ('model_parallel',)),
        Dimension(table, padded_vocab(model.vocab_size), ('fsdp', 'model_parallel')),
    ]
    # A dimension stays whole unless the product of its settings divides it.
    parts = lambda d: math.prod(getattr(runtime, axis) for axis in d.axes)
    unsplit = [d for d in dimensions if d.size % parts(d)]

    # Refused only where an axis splits nothing at all: part of a model split is slower than need
    # be, but works.
    for axis in ('fsdp', 'model_parallel'):
        concerned = [d for d in dimensions if axis in d.axes]
        if all(d in unsplit for d in concerned):
            count = getattr(runtime, axis)
            names = ', '.join(d.name for d in concerned)
            common = math.gcd(*(d.size for d in concerned if d.axes == (axis,)))
            raise UserError(
                f'runtime.{axis}={count} divides none of {names}, so that nothing would be split '
                f'over these devices: take {_nearest(common, count)}'
            )
    return [
        f'{" x ".join(f"runtime.{axis}" for axis in d.axes)} = {parts(d)} does not divide '
        f'{d.name}: not split, each device has all of it; {_nearest(d.size, parts(d))} would'
        for d in unsplit
    ]


def _nearest(size: int, count: int) -> str:
    """What divides `size` and is near `count`, in words: what divides both, or its neighbours."""
    # For the message: a number of devices that would divide.
    if (common := math.gcd(size, count)) > 1:
        return f'{common}'
    below = max(n for n in range(1, count) if size % n == 0)
    above = next((n for n in range(count, size + 1) if size % n == 0), None)
    return f'{below} or {above}' if above else f'{below}'
