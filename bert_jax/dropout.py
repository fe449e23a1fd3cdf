"""Dropout whose masks depend on the step, the place in the model and the example, and on nothing else.

Owns the naming of random bits. `nn.Dropout` draws one array per call, so a mask depends on where
an example sits in the batch and on how the batch was cut; here the key of every mask is folded
from (step key, site, global row), so the loss is the same on any mesh, for any accumulation
and for scanned or unrolled layers. Knows nothing of layers: a site is a number.

That holds for threefry keys. For rbg, whose bits cannot be drawn row by row, one array is drawn for all rows of a micro-batch,
named by the first: equal on any mesh, but not for another accumulation.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

_STEPS = 1 << 16  # masks are drawn from 16 random bits: half the generator's work, rates exact to 1/65536


class Noise(NamedTuple):
    """What training needs to drop out: the step's key, and each example's row in the global batch (uint32 [B])."""

    key: jax.Array
    rows_B: jax.Array


def dropout(x: jax.Array, rate: float, noise: Noise | None, site: int | jax.Array) -> jax.Array:
    """Zeroes a share `rate` of x [B, ...] and scales the rest to keep the mean; x itself where `noise` is None.

    `site` tells apart the places in the model that drop out; it may be traced (scanned layers).
    """
    if noise is None or rate == 0:
        return x
    keep = round((1 - rate) * _STEPS)
    site_key = jax.random.fold_in(noise.key, site)
    if jax.random.key_impl(noise.key) == 'rbg':
        kept = jax.random.bits(jax.random.fold_in(site_key, noise.rows_B[0]), x.shape, jnp.uint16).astype(jnp.uint32) < keep
    else:
        kept = jax.vmap(lambda row: _kept(jax.random.fold_in(site_key, row), x.shape[1:], keep))(noise.rows_B)
    kept = checkpoint_name(kept, 'kept')
    return jnp.where(kept, x * jnp.asarray(_STEPS / keep, x.dtype), jnp.zeros((), x.dtype))


def _kept(key: jax.Array, shape: tuple[int, ...], keep: int) -> jax.Array:
    """A mask of `shape`, true for a share of `keep` / _STEPS: both halves of a random word, for both halves of the last axis but one.

    Every operation is elementwise, so the compiler computes the bits in whatever order in memory the masked array has; and that axis, the
    tokens, is not split over devices. Halves side by side in one axis, as they lie in the word, had to be put in order: on a TPU that
    took nine tenths of the train step (docs/plan.md).
    """
    axis = max(len(shape) - 2, 0)
    half = (shape[axis] + 1) // 2
    words = jax.random.bits(key, (*shape[:axis], half, *shape[axis + 1 :]), jnp.uint32)
    both = jnp.concatenate([(words & (_STEPS - 1)) < keep, (words >> 16) < keep], axis)
    return jax.lax.slice_in_dim(both, 0, shape[axis], axis=axis)
