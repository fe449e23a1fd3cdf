"""A Transformer block: attention and a feed-forward part, each in a residual sum with its norm.

Owns the order of the parts, the sites of dropout and the places where tuning comes in. What a part
computes is its own file's.

Dims: as in model/encoder.py.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bert_jax.configs.files.own_parts import class_of
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model.blocks.attention import ATTENTIONS
from bert_jax.model.blocks.feed_forward import FEED_FORWARDS
from bert_jax.model.blocks.norms import Function, norm_of, sublayer
from bert_jax.model.blocks.part import Part, Rows
from bert_jax.model.blocks.products import dense
from bert_jax.model.dropout import dropout
from bert_jax.model.peft.method import Context
from bert_jax.model.peft.registry import method_of

# Sites of dropout: 0 is the embeddings', block i has 1 + 3i + (0 probabilities, 1 attention output,
# 2 block output).
_SITES_PER_LAYER = 3


def parts_of(config: ModelConfig, number: int = 0) -> tuple[Part, Part]:
    """Return the parts of block `number`, from 0, in the order of the forward pass."""
    return (
        ATTENTIONS[config.attention](config, number),
        class_of('feed_forward', config.feed_forward, FEED_FORWARDS)(config, number),
    )


def kind_of(config: ModelConfig, number: int) -> tuple[Any, ...]:
    """Return what tells block `number` from others; equal of blocks that one program serves."""
    return tuple(part.kind for part in parts_of(config, number))


@functools.lru_cache(maxsize=1024)
def first_like(config: ModelConfig, number: int) -> int:
    """Return the lowest number of a block of the kind that block `number` has."""
    kind = kind_of(config, number)
    return next(i for i in range(number + 1) if kind_of(config, i) == kind)


@functools.lru_cache(maxsize=64)
def cycle_of(kinds: tuple[Any, ...]) -> tuple[int, int]:
    """Return how kinds follow one another: `first` blocks, then rounds of `period` blocks.

    It is the cycle in which the fewest blocks are written out: (0, 1) where all are alike. A first
    block that is like no other is always of `first`, where there are others.
    """
    cycles = (
        (first, period)
        for first in range(len(kinds))
        for period in range(1, len(kinds) - first + 1)
        if (len(kinds) - first) % period == 0 and kinds[first:-period] == kinds[first + period :]
    )
    return min(cycles, key=lambda cycle: (sum(cycle), -cycle[0]))


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
        # Dropout sites are numbered by block, so that scanned and unrolled layers draw the same.
        site = 1 + _SITES_PER_LAYER * index
        for number, part in enumerate(parts_of(self.config, self.like), 1):
            x_BTH = self._sublayer(part, x_BTH, index, rows, site, site + number)
        return constrain_rows(x_BTH), None

    def _sublayer(
        self,
        part: Part,
        x_BTH: Array,
        index: Array | int,
        rows: Rows,
        own_site: Array | int,
        site: Array | int,
    ) -> Array:
        """Return x after the residual sum with a part's branch, and with what tuning adds."""
        c, shapes = self.config, part.shapes()
        method, context = method_of(c), Context(c, self.dtype, index, rows.dropout_rng)

        def linear(name: str, x: Array) -> Array:
            width = shapes[name][1]
            std = c.residual_std if name == part.rows[-1] else None
            layer = dense(c, width, self.dtype, name, self.matmul_dtype, c.use_bias, std)
            # Kept with its bias: a loop then writes to its stack what the block goes on with.
            return checkpoint_name(method.linear(name, layer, x, context), 'kept')

        def branch(x: Array) -> Array:
            drop = lambda out: dropout(out, part.dropout, rows.dropout_rng, site)
            out = part(linear, x, rows, own_site, self.kernel)
            return method.branch(part.rows[-1], out, drop, context)

        norm: Function = norm_of(c, part.norm) if part.is_normed else lambda x: x
        adapt = functools.partial(method.total, part.rows[-1], context)
        return sublayer(c.norm == 'pre', x_BTH, branch, norm, adapt)


BLOCKS: dict[str, type[Block]] = {'transformer': Block}
