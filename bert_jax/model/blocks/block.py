"""A Transformer block: attention and a feed-forward part, each in a residual sum with its norm.

Owns the order of the parts, the sites of dropout and the places where tuning comes in. What a part
computes is its own file's.

Dims: as in model/encoder.py.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bert_jax.configs.options import find_class
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model.blocks.attention import ATTENTIONS
from bert_jax.model.blocks.feed_forward import FEED_FORWARDS
from bert_jax.model.blocks.matmul import dense
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.blocks.part import Part, Rows
from bert_jax.model.dropout import dropout
from bert_jax.model.tuning import Context, Function, choose_tuning_method

# Sites of dropout: 0 is the embeddings', block i has 1 + 3i + (0 probabilities, 1 attention output,
# 2 block output).
_SITES_PER_LAYER = 3


def make_parts(shape: ModelConfig, number: int = 0) -> tuple[Part, Part]:
    """Return the parts of block `number`, from 0, in the order of the forward pass."""
    return (
        ATTENTIONS[shape.attention](shape, number),
        find_class('feed_forward', shape.feed_forward, FEED_FORWARDS)(shape, number),
    )


def find_kind(shape: ModelConfig, number: int) -> tuple[Any, ...]:
    """Return what tells block `number` from others; equal of blocks that one program serves."""
    has_convolution = shape.convolution is not None and number == 0
    return *(part.kind for part in make_parts(shape, number)), has_convolution


@functools.lru_cache(maxsize=1024)
def find_first_like(shape: ModelConfig, number: int) -> int:
    """Return the lowest number of a block of the kind that block `number` has."""
    kind = find_kind(shape, number)
    return next(i for i in range(number + 1) if find_kind(shape, i) == kind)


@functools.lru_cache(maxsize=64)
def find_cycle(kinds: tuple[Any, ...]) -> tuple[int, int]:
    """Return how kinds follow one another: `first` blocks, then rounds of `period` blocks.

    It is the cycle in which the fewest blocks are written out: (0, 1) where all are alike. A first
    block that is like no other is always of `first`, where there are others.
    """
    best = len(kinds), 1
    # From the longest start on: of two cycles that write out as many the longer start is taken.
    for first in reversed(range(len(kinds))):
        later = kinds[first:]
        for period in range(1, len(later) + 1):
            repeats = len(later) % period == 0 and later[:-period] == later[period:]
            if repeats and first + period < sum(best):
                best = first, period
    return best


class Block(nn.Module):
    """One Transformer block (modeling.py:830-880), normalised as `model.norm` says."""

    config: ModelConfig
    dtype: DTypeLike
    kernel: str = 'xla'
    matmul_dtype: str | None = None
    like: int = 0  # the number of a block of the same kind: the block's own may be traced

    @nn.compact
    def __call__(self, x_BTH: Array, index: Array | int, rows: Rows) -> tuple[Array, None]:
        """Return (x [B, T, H] after block number `index`, None), as the body of a scan."""
        for number, part in enumerate(make_parts(self.config, self.like), 1):
            x_BTH = self._sublayer(part, x_BTH, index, rows, number)
        return constrain_rows(x_BTH), None

    def _sublayer(
        self, part: Part, x_BTH: Array, index: Array | int, rows: Rows, number: int
    ) -> Array:
        """Return x after the residual sum with a part's branch, and with what tuning adds."""
        c, shapes, last = self.config, part.shapes(), part.rows[-1]
        method, context = choose_tuning_method(c), Context(c, self.dtype, index, rows.dropout_rng)
        # Dropout sites are numbered by block, so that scanned and unrolled layers draw the same.
        site = 1 + _SITES_PER_LAYER * index

        asked: set[str] = set()

        def linear(name: str, x: Array) -> Array:
            width = shapes[name][1]
            std = c.residual_std if name == last else None

            def multiply(x: Array) -> Array:
                layer = dense(c, width, self.dtype, name, self.matmul_dtype, c.use_bias, std)
                return method.apply_linear(name, layer, x, context)

            # Kept with its bias: a loop then writes to its stack what the block goes on with.
            out = self._read_again(multiply, x) if name in asked else multiply(x)
            asked.add(name)
            return checkpoint_name(out, 'kept')

        def drop(out: Array) -> Array:
            return dropout(out, part.dropout, rows.dropout_rng, site + number)

        norm: Function = _leave_as_is
        if part.is_normed:
            norm = make_norm(c, part.norm)

        # norm(x + f(x)), or x + f(norm(x)) with the norm before the branch.
        is_before = c.norm == 'pre'
        out = part(linear, norm(x_BTH) if is_before else x_BTH, rows, site, self.kernel)
        total = x_BTH + method.adapt_branch(last, out, drop, context)
        if is_before:
            return method.adapt_sum(last, total, _leave_as_is, context)
        return norm(method.adapt_sum(last, total, norm, context))

    def _read_again(self, multiply: Function, x: Array) -> Array:
        """Return a product whose matrix the block has made already, with what tuning adds to it."""
        again = _Product(multiply, parent=None)
        if self.is_initializing():  # the matrix is made, and no value is read
            return jnp.zeros(jax.eval_shape(again.init_with_output, jax.random.key(0), x)[0].shape)
        product: Any = again.apply({'params': self.variables['params']}, x)
        return product


class _Product(nn.Module):
    """A product by a block's matrix, as a module of its own that is given the block's weights."""

    multiply: Function

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return the product of x and the matrix."""
        return self.multiply(x)


def _leave_as_is(x: Array) -> Array:
    """Return x, where there is no norm."""
    return x


BLOCKS: dict[str, type[Block]] = {'transformer': Block}
