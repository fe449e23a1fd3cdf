"""Scaled dot-product attention: one function, whatever computes it.

Dims: B batch, T query position, S key position, N heads, D width of a head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.dropout import Noise, dropout

MASKED = -10000.0  # added to the scores of masked keys (google-research/bert modeling.py:712)


def attend(
    q_BTND: jax.Array, k_BSND: jax.Array, v_BSND: jax.Array, key_mask_BS: jax.Array, rate: float, noise: Noise | None, site: int | jax.Array
) -> jax.Array:
    """Attention output [B, T, N, D]; scores and softmax in float32 (paper section 3; modeling.py:694-749).

    key_mask_BS is 1 for keys that may be seen and 0 for padding; `rate` is the dropout on probabilities.
    """
    depth = q_BTND.shape[-1]
    scores_BNTS = jnp.einsum('BTND,BSND->BNTS', q_BTND, k_BSND, preferred_element_type=jnp.float32) * (depth**-0.5)
    bias_BS = (1.0 - key_mask_BS.astype(jnp.float32)) * MASKED
    probs_BNTS = jax.nn.softmax(scores_BNTS + bias_BS[:, None, None, :], axis=-1).astype(v_BSND.dtype)
    return jnp.einsum('BNTS,BSND->BTND', dropout(probs_BNTS, rate, noise, site), v_BSND)
