"""Scaled dot-product attention: one function, whatever computes it.

Dims: B batch, T query position, S key position, N heads, D width of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.dropout import Noise, dropout

MASKED = -10000.0  # added to the scores of masked keys (google-research/bert modeling.py:712)


class Visible(NamedTuple):
    """Which keys a query sees: keys_BS is 1 where there is a token and 0 for padding.

    Where rows hold several examples, packs_BS are their numbers, and a query sees the keys of its own alone.
    """

    keys_BS: jax.Array
    packs_BS: jax.Array | None = None

    def bias(self) -> jax.Array:
        """What is added to the scores: [B, 1, 1, S], or [B, 1, T, S] with packs, float32."""
        seen_BTS = self.keys_BS[:, None, :] > 0
        if self.packs_BS is not None:
            seen_BTS &= self.packs_BS[:, :, None] == self.packs_BS[:, None, :]
        return jnp.where(seen_BTS, 0.0, MASKED)[:, None]


def attend(
    q_BTND: jax.Array,
    k_BSND: jax.Array,
    v_BSND: jax.Array,
    visible: Visible,
    rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    left_to_right: bool = False,
) -> jax.Array:
    """Attention output [B, T, N, D]; scores and softmax in float32 (paper section 3; modeling.py:694-749).

    `rate` is the dropout on probabilities; with `left_to_right` a query sees nothing right of it either.
    """
    depth = q_BTND.shape[-1]
    scores_BNTS = jnp.einsum('BTND,BSND->BNTS', q_BTND, k_BSND, preferred_element_type=jnp.float32) * (depth**-0.5)
    bias_B1TS = visible.bias()
    if left_to_right:
        bias_B1TS = jnp.where(jnp.tri(q_BTND.shape[1], k_BSND.shape[1], dtype=bool)[None, None], bias_B1TS, MASKED)
    probs_BNTS = jax.nn.softmax(scores_BNTS + bias_B1TS, axis=-1).astype(v_BSND.dtype)
    return jnp.einsum('BNTS,BSND->BTND', dropout(probs_BNTS, rate, noise, site), v_BSND)
