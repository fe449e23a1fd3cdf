"""The convolution of the embeddings that joins the first block's output (DeBERTa-v2).

Dims: as in model/encoder.py; W tokens that the convolution reads.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.blocks.feed_forward import ACTIVATIONS
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.blocks.part import Rows
from bert_jax.model.dropout import dropout

CONVOLUTION_SITE = (1 << 20) + 2  # dropout site beside that of the pooler


class Convolution(nn.Module):
    """A convolution over tokens (transformers modeling_deberta_v2.py:442-486).

    Padding and other examples of a row are read as zeros. It is computed as one product.
    """

    config: ModelConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BTH: Array, rows: Rows) -> Callable[[Array], Array]:
        """Return what makes of the first block's output [B, T, H] that which the second reads.

        x_BTH: the embeddings. The result is a plain function, which other programs may close over.
        """
        c, (_, T, H) = self.config, x_BTH.shape
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        kernel_WHH = self.param('kernel', normal, (c.convolution, H, H)).astype(self.dtype)
        bias_H = self.param('bias', nn.initializers.zeros, (H,)).astype(self.dtype)
        examples_BT = rows.input_mask_BT if rows.pack_ids_BT is None else rows.pack_ids_BT

        side = (c.convolution or 1) // 2
        padded_BTH = jnp.pad(x_BTH, [(0, 0), (side, side), (0, 0)])
        padded_BT = jnp.pad(examples_BT, [(0, 0), (side, side)])
        read = []
        for first in range(2 * side + 1):
            is_seen_BT = padded_BT[:, first : first + T] == examples_BT
            is_seen_BT &= examples_BT > 0
            read.append(jnp.where(is_seen_BT[..., None], padded_BTH[:, first : first + T], 0))
        y_BTH = jnp.concatenate(read, -1) @ kernel_WHH.reshape(-1, H) + bias_H[None, None]
        y_BTH = dropout(y_BTH, c.hidden_dropout, rows.dropout_rng, CONVOLUTION_SITE)
        y_BTH = ACTIVATIONS[c.convolution_act](y_BTH)

        norm = make_norm(c, 'norm')
        if self.is_initializing():
            norm(y_BTH)
        params, free = norm.variables, norm.clone(parent=None)
        return lambda x_BTH: free.apply(params, x_BTH + y_BTH)
