"""A bidirectional LSTM over sequences of different lengths, with flax's cell and parameters.

Owns what padding means to it: each direction starts at its end of the real tokens. Knows nothing of
BERT.

Dims: B batch, T position, H width of the input, D width of a direction.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

_GATES = 'ifgo'  # input, forget, candidate, output


class _Recurrent(nn.Module):
    """The weights of one gate for the state before: (kernel [D, D], bias [D])."""

    features: int

    @nn.compact
    def __call__(self) -> tuple[Array, Array]:
        kernel = self.param('kernel', nn.initializers.orthogonal(), (self.features, self.features))
        return kernel, self.param('bias', nn.initializers.zeros, (self.features,))


class LSTM(nn.Module):
    """One direction of an LSTM, `features` wide, from a zero state.

    flax's RNN multiplies each input where it comes to it; here all are multiplied at once.
    """

    features: int
    reverse: bool
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x_BTH: Array, mask_BT: Array) -> Array:
        """States [B, T, D] of inputs [B, T, H]; where mask_BT is 0 the state is zero."""
        # flax's cell has a layer for each gate, and its names stay ('ii', 'hi', ...). Here the
        # products of all gates with all inputs are made before the scan, which then only has the
        # recurrence.
        D = self.features
        inputs = [
            nn.Dense(D, use_bias=False, dtype=self.dtype, name=f'i{gate}')(x_BTH) for gate in _GATES
        ]
        kernels, biases = zip(*(_Recurrent(D, name=f'h{gate}')() for gate in _GATES), strict=True)
        kernel_DG, bias_G = (
            jnp.concatenate(parts, -1).astype(self.dtype) for parts in (kernels, biases)
        )
        # Time first: that is the axis that scan walks.
        z_TBG = jnp.swapaxes(jnp.concatenate(inputs, -1) + bias_G[None, None], 0, 1)

        def step(state, now):
            (c_BD, h_BD), (z_BG, real_B1) = state, now
            i, f, g, o = jnp.split(z_BG + h_BD @ kernel_DG, 4, -1)
            # In padding the state stays zero: so the backward direction, which begins there, meets
            # the last real token as its first.
            c_BD = jnp.where(real_B1, nn.sigmoid(f) * c_BD + nn.sigmoid(i) * jnp.tanh(g), 0)
            h_BD = jnp.where(real_B1, nn.sigmoid(o) * jnp.tanh(c_BD), 0)
            return (c_BD, h_BD), h_BD

        zero_BD = jnp.zeros_like(z_TBG[0, :, :D])
        _, h_TBD = jax.lax.scan(
            step, (zero_BD, zero_BD), (z_TBG, mask_BT.T[..., None] > 0), reverse=self.reverse
        )
        return jnp.swapaxes(h_TBD, 0, 1)


class BiLSTM(nn.Module):
    """One layer, `features` wide in each direction; flax's initialisation, zero states to start."""

    features: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x_BTH: Array, mask_BT: Array) -> Array:
        """States [B, T, 2 features] of inputs [B, T, H], left to right before right to left.

        mask_BT is 1 at real tokens, which come first in a row.
        """
        states = [
            LSTM(self.features, name == 'backward', self.dtype, name=name)(x_BTH, mask_BT)
            for name in ('forward', 'backward')
        ]
        return jnp.concatenate(states, -1)
