"""Logits over the vocabulary to one weight for each entry, block by block (SPLADE).

Owns the pooling, whose figures are those of sentence-transformers (sparse_encoder/modules/
splade_pooling.py): log1p(relu(logit)) of each piece, the largest or the sum over a text. Logits of
a whole batch are never in memory.

Dims: B batch, T positions, S positions of a block, V vocabulary, E width of the word table.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.configs.model.vector_kinds import SparseConfig
from bert_jax.model.vocabulary_loss import Factors, choose_block_rows

_ACTIVATIONS = {
    'relu': lambda x: jnp.log1p(jax.nn.relu(x)),
    'log1p_relu': lambda x: jnp.log1p(jnp.log1p(jax.nn.relu(x))),
}


def pool_logits(factors: Factors, mask_BT: Array, config: SparseConfig) -> Array:
    """Return the weights [B, V] of texts, float32; 0 for rows of the table that are no words.

    Args:
      factors: of the logits at all positions.
      mask_BT: 1 at pieces, [CLS] and [SEP] among them, and 0 in the padding.
      config: how the weights of pieces become one.
    """
    activate = _ACTIVATIONS[config.activation]

    def pool_block(pooled_BV: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        x_BSE, mask_BS = block
        logits_BSV = factors._replace(x_BPE=x_BSE).logits()
        logits_BSV = jnp.where(mask_BS[..., None] > 0, logits_BSV, 0.0)
        # The activation grows with the logit: of the largest it is the largest.
        if config.pooling == 'max':
            return jnp.maximum(pooled_BV, logits_BSV.max(1)), None
        return pooled_BV + activate(logits_BSV).sum(1), None

    B, T, E = factors.x_BPE.shape
    pooled_BV, S = jnp.zeros((B, len(factors.bias_V))), T
    if isinstance(B * T, int):  # else sizes are symbols, in a program for any of them
        S = max(choose_block_rows(E) // max(factors.count_rows(), 1), 1)
    if S >= T:
        pooled_BV, _ = pool_block(pooled_BV, (factors.x_BPE, mask_BT))
    else:

        def cut(x: Array) -> Array:
            padding = ((0, 0), (0, -T % S), *((0, 0) for _ in x.shape[2:]))
            return jnp.moveaxis(jnp.pad(x, padding).reshape(B, -1, S, *x.shape[2:]), 1, 0)

        # Within a loop nothing is merged that is to be computed twice.
        again = jax.checkpoint(pool_block, prevent_cse=False)
        pooled_BV, _ = jax.lax.scan(again, pooled_BV, (cut(factors.x_BPE), cut(mask_BT)))
    return activate(pooled_BV) if config.pooling == 'max' else pooled_BV
