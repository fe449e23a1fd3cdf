"""Local attention: which keys are near a query, and a row in blocks that stand by their keys.

A query sees the keys at most `window` places away. In blocks, scores are computed of the keys of a
query's own block and its neighbours alone: time and memory grow with the row, not with its square.
The arithmetic is that of attend.py, which knows nothing of blocks but that there is one axis more.

Dims: B batch, T query position, S key position, b blocks of a row, C queries of a block, K keys of
its neighbourhood.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

# A block's least size and what it is a multiple of: smaller ones are slower, timed on a CPU.
_LEAST, _MULTIPLE = 32, 16
# From so many keys of the neighbourhood on a row is cut: shorter ones are as fast whole. A CPU took
# 1.1 times as long for blocks of 256 tokens at a window of 64 (192 keys), 0.6 times for 512.
_WORTH = 2


class Blocks(NamedTuple):
    """How a row of `tokens` is cut; with `causal` a query sees nothing right of it."""

    tokens: int
    window: int
    causal: bool = False

    @property
    def size(self) -> int:
        """How many queries a block has: no fewer than the window, so that neighbours suffice."""
        return max(_LEAST, -(-self.window // _MULTIPLE) * _MULTIPLE)

    @property
    def number(self) -> int:
        """How many blocks a row has; the last may be filled up."""
        return -(-self.tokens // self.size)

    @property
    def neighbourhood(self) -> int:
        """How many keys each query is multiplied by."""
        return (2 if self.causal else 3) * self.size

    @property
    def pays(self) -> bool:
        """Whether blocks are faster than the row as a whole."""
        return isinstance(self.tokens, int) and self.tokens >= _WORTH * self.neighbourhood

    def queries(self, x_BT: Array) -> Array:
        """Return x [B, T, ...] as [B, b, C, ...]."""
        return self._cut(x_BT, 0, self.number * self.size - self.tokens)

    def keys(self, x_BS: Array) -> Array:
        """Return x [B, S, ...] as [B, b, K, ...]: beside each block of queries its keys."""
        right = 0 if self.causal else 1
        whole = (self.number + right) * self.size - self.tokens
        x_BbC = self._cut(x_BS, self.size, whole)
        shifted = [x_BbC[:, i : i + self.number] for i in range(2 + right)]
        return jnp.concatenate(shifted, axis=2)

    def joined(self, x_BbC: Array) -> Array:
        """Return x [B, b, C, ...] as [B, T, ...]."""
        B, b, C, *widths = x_BbC.shape
        return x_BbC.reshape(B, b * C, *widths)[:, : self.tokens]

    def near(self) -> Array:
        """Return which keys of its neighbourhood a query may see: [b, 1, C, K]."""
        block_b11 = jnp.arange(self.number)[:, None, None]
        t_bC1 = block_b11 * self.size + jnp.arange(self.size)[None, :, None]
        s_b1K = (block_b11 - 1) * self.size + jnp.arange(self.neighbourhood)[None, None]
        # No key lies outside of the row. Queries there are not read; without a key they would be
        # NaN, and NaN times no gradient is NaN.
        inside = (s_b1K >= 0) & ((s_b1K < self.tokens) | (t_bC1 >= self.tokens))
        return (near(t_bC1, s_b1K, self.window, self.causal) & inside)[:, None]

    def _cut(self, x_BT: Array, left: int, right: int) -> Array:
        """Return x [B, T, ...] in blocks [B, b, C, ...], with zeros added on both sides."""
        B, _, *widths = x_BT.shape
        x_BT = jnp.pad(x_BT, [(0, 0), (left, right)] + [(0, 0)] * len(widths))
        return x_BT.reshape(B, -1, self.size, *widths)


def near(t: Array, s: Array, window: int, causal: bool) -> Array:
    """Whether a query at `t` may see a key at `s`."""
    left = t - s
    return (left <= window) & (left >= (0 if causal else -window))
