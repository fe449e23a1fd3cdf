"""The feature-based approach: what is read of a frozen encoder, and the BiLSTM that reads it.

Paper section 5.3, Table 7. Owns both, for every word by itself: how the features come to be here is
not its business, and no gradient leaves it, the features being data. Knows nothing of tasks.

Dims: B batch, T word, K chosen layers, H their width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.model.blocks.bilstm import BiLSTM
from bert_jax.model.dropout import DropoutRng, dropout


def layers_of(features: str, num_layers: int) -> tuple[int, ...]:
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
    def __call__(
        self, batch: Mapping[str, jax.Array], dropout_rng: DropoutRng | None = None
    ) -> jax.Array:
        """-> logits [B, T, C], float32.

        batch['features'] [B, T, K, H] is of any floating type; input_mask [B, T] is 1 at words.
        """
        x_BTKH = batch['features'].astype(self.dtype)

        # K layers become one vector a word, by a learned mean or side by side (K H wide).
        if self.weigh:
            weights_K = jax.nn.softmax(self.param('mix', nn.initializers.zeros, (x_BTKH.shape[2],)))
            weights_K = self.param('scale', nn.initializers.ones, ()) * weights_K
            x_BTH = jnp.einsum('BTKH,K->BTH', x_BTKH, weights_K.astype(self.dtype))
        else:
            x_BTH = x_BTKH.reshape(*x_BTKH.shape[:2], -1)

        # Sites of dropout: the number of the layer, then that of the classifier.
        for layer in range(self.depth):
            x_BTH = BiLSTM(self.width, self.dtype, name=f'bilstm_{layer}')(
                dropout(x_BTH, self.dropout, dropout_rng, layer), batch['input_mask']
            )
        x_BTH = dropout(x_BTH, self.dropout, dropout_rng, self.depth)
        classify = nn.Dense(self.outputs, dtype=self.dtype, name='classifier')
        return classify(x_BTH).astype(jnp.float32)
