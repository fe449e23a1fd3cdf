"""A bidirectional LSTM over sequences of different lengths, of flax's own cells.

Owns what padding means to it: each direction starts at its end of the real tokens. Knows nothing of BERT.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp


class BiLSTM(nn.Module):
    """One layer, `features` wide in each direction; flax's initialisation, zero state at both ends."""

    features: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x_BTH: jax.Array, mask_BT: jax.Array) -> jax.Array:
        """-> [B, T, 2 features], left to right before right to left; mask_BT is 1 at real tokens, which come first in a row."""
        forward, backward = (nn.RNN(nn.OptimizedLSTMCell(self.features, dtype=self.dtype, name=n)) for n in ('forward', 'backward'))
        both = nn.Bidirectional(forward, backward)
        return both(x_BTH, seq_lengths=mask_BT.astype(jnp.int32).sum(-1)).astype(self.dtype)
