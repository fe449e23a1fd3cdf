"""Dropout whose masks depend on the step, the place in the model and the example alone.

Owns the naming of random bits. `nn.Dropout` draws one array per call, so a mask depends on where an
example sits in the batch and on how the batch was cut; here every mask is a function of (step key,
site, global row), so the loss is the same on any mesh, for any accumulation and for scanned or
unrolled layers. Knows nothing of layers: a site is a number.

That holds for threefry keys. For rbg, whose bits cannot be drawn row by row, one array is drawn for
all rows of a micro-batch, named by the first: equal on any mesh, but not for another accumulation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.model.threefry import threefry

# Masks are drawn from 16 random bits: a quarter of the generator's work, rates exact to 1/65536.
_STEPS = 1 << 16


class DropoutRng(NamedTuple):
    """The random names of a step's dropout: its key, and each example's row in the global batch.

    rows_B: uint32 [B].
    """

    key: jax.Array
    rows_B: jax.Array


def dropout(
    x: jax.Array, rate: float, dropout_rng: DropoutRng | None, site: int | jax.Array
) -> jax.Array:
    """Zeroes a share `rate` of x [B, ...] and scales the rest to keep the mean.

    x itself where `dropout_rng` is None. `site` tells apart the places in the model that drop out;
    it may be traced (scanned layers).
    """
    if dropout_rng is None or rate == 0:
        return x

    # Of 65536 equally likely numbers those below `keep` keep their element.
    keep = round((1 - rate) * _STEPS)
    site_key = jax.random.fold_in(dropout_rng.key, site)
    # rbg's bits are one stream for an array, and cannot be named row by row (see above).
    if jax.random.key_impl(dropout_rng.key) == 'rbg':
        batch_key = jax.random.fold_in(site_key, dropout_rng.rows_B[0])
        kept = jax.random.bits(batch_key, x.shape, jnp.uint16).astype(jnp.uint32) < keep
    else:
        kept = _kept(jax.random.key_data(site_key), dropout_rng.rows_B, x.shape, keep)
    # Scaled by the exact share that is kept, not by 1 / (1 - rate).
    return jnp.where(kept, x * jnp.asarray(_STEPS / keep, x.dtype), jnp.zeros((), x.dtype))


def _kept(key: jax.Array, rows_B: jax.Array, shape: tuple[int, ...], keep: int) -> jax.Array:
    """A mask of `shape` [B, ...], true for a share of `keep` / _STEPS, named by key and row.

    Each evaluation of Threefry gives four times 16 bits, one for each quarter of the last axis but
    one: the tokens, which are not split over devices. Every operation is elementwise, so the
    compiler computes the bits in whatever order in memory the masked array has; parts side by side,
    as they lie in the words, had to be put in order, which took nine tenths of a TPU's train step
    (docs/plan.md).
    """
    # The mask is computed as four quarters of the axis of tokens; rounded up, and cut at the end.
    axis = max(len(shape) - 2, 1)
    quarter = (*shape[:axis], -(-shape[axis] // 4), *shape[axis + 1 :])
    # Each element's place within its row of the quarter: row-major, the same wherever it lies.
    place = sum(
        jax.lax.broadcasted_iota(jnp.uint32, quarter, i) * jnp.uint32(math.prod(quarter[i + 1 :]))
        for i in range(1, len(quarter))
    )
    # The counter is (place, global row). Two words of 32 bits, four numbers of 16 below _STEPS.
    words = threefry(key, (place, rows_B.reshape(-1, *(1 for _ in quarter[1:]))))
    quarters = [half < keep for word in words for half in (word & (_STEPS - 1), word >> 16)]
    return jax.lax.slice_in_dim(jnp.concatenate(quarters, axis), 0, shape[axis], axis=axis)
