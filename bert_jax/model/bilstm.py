"""A bidirectional LSTM, and the tagger of the feature-based approach that reads with it.

The LSTM has flax's cell and parameters. Owns what padding means to it: each direction starts at its
end of the real tokens. The feature-based approach (paper section 5.3, Table 7) reads layers of a
frozen encoder: how these features come to be here is not its business, and no gradient leaves it,
the features being data. Knows nothing of tasks.

Dims: B batch, T position or word, H width of the input, D width of a direction, G = 4 D of its
gates, K chosen layers, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.model.dropout import DropoutRng, dropout

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
        """Return states [B, T, D] of inputs [B, T, H]; where mask_BT is 0 the state is zero."""
        # flax's cell has a layer for each gate, and its names stay ('ii', 'hi', ...). Here the
        # products of all gates with all inputs are made before the scan, which then only has the
        # recurrence.
        D = self.features
        inputs, kernels, biases = [], [], []
        for gate in _GATES:
            layer = nn.Dense(D, use_bias=False, dtype=self.dtype, name=f'i{gate}')
            inputs.append(layer(x_BTH))
        for gate in _GATES:
            kernel, bias = _Recurrent(D, name=f'h{gate}')()
            kernels.append(kernel)
            biases.append(bias)
        kernel_DG = jnp.concatenate(kernels, -1).astype(self.dtype)
        bias_G = jnp.concatenate(biases, -1).astype(self.dtype)
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
        """Return states [B, T, 2 features] of inputs [B, T, H], left to right before right to left.

        mask_BT is 1 at real tokens, which come first in a row.
        """
        forward = LSTM(self.features, False, self.dtype, name='forward')(x_BTH, mask_BT)
        backward = LSTM(self.features, True, self.dtype, name='backward')(x_BTH, mask_BT)
        return jnp.concatenate([forward, backward], -1)


def find_layers(features: str, num_layers: int) -> tuple[int, ...]:
    """Return the layers that FeatureConfig.features names in an encoder of `num_layers` blocks.

    0 is the embeddings' output, i that of block i. "All" are the blocks, as in Table 7 ("all 12
    layers"), without the embeddings. UserError where there are too few blocks.
    """
    # Too few blocks are refused first: the indices below would run below the embeddings.
    least = {'second_to_last': 2, 'sum_last4': 4, 'concat_last4': 4}.get(features, 1)
    if num_layers < least:
        raise UserError(
            f'features={features} needs an encoder of {least} layers or more, and this one has'
            f' {num_layers}: leave it out'
        )
    layers = range(num_layers + 1)
    named = {
        'embeddings': layers[:1],
        'second_to_last': layers[-2:-1],
        'last': layers[-1:],
        'sum_last4': layers[-4:],
        'concat_last4': layers[-4:],
        'sum_all': layers[1:],
    }
    return tuple(named[features])


class FeatureTagger(nn.Module):
    """A BiLSTM over the features of words, and a classifier of each word on it.

    It has `depth` layers, `width` in each direction, and dropout before each and the classifier.
    With `weigh` the K layers are summed with learned weights: the softmax of K numbers, times a
    scale, as ELMo has it (Peters et al. 2018, equation 1). The paper says "weighted sum" and no
    more. Otherwise they are put side by side.
    """

    outputs: int
    weigh: bool
    depth: int = 2
    width: int = 768
    dropout: float = 0.5
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, batch: Mapping[str, Array], dropout_rng: DropoutRng | None = None) -> Array:
        """-> logits [B, T, C], float32.

        batch['features'] [B, T, K, H] is of any floating type; input_mask [B, T] is 1 at words.
        """
        x_BTKH = batch['features'].astype(self.dtype)

        # K layers become one vector a word, by a learned mean or side by side (K H wide).
        if self.weigh:
            mix_K = self.param('mix', nn.initializers.zeros, (x_BTKH.shape[2],))
            weights_K = self.param('scale', nn.initializers.ones, ()) * jax.nn.softmax(mix_K)
            x_BTH = jnp.einsum('BTKH,K->BTH', x_BTKH, weights_K.astype(self.dtype))
        else:
            x_BTH = x_BTKH.reshape(*x_BTKH.shape[:2], -1)

        # Sites of dropout: the number of the layer, then that of the classifier.
        for layer in range(self.depth):
            x_BTH = dropout(x_BTH, self.dropout, dropout_rng, layer)
            lstm = BiLSTM(self.width, self.dtype, name=f'bilstm_{layer}')
            x_BTH = lstm(x_BTH, batch['input_mask'])
        x_BTH = dropout(x_BTH, self.dropout, dropout_rng, self.depth)
        classify = nn.Dense(self.outputs, dtype=self.dtype, name='classifier')
        return classify(x_BTH).astype(jnp.float32)
