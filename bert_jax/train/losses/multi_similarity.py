"""The loss of a network of words (RETVec): forms of a word are alike, those of others are not.

Dims: B words, F forms of a word, N forms of a batch, W numbers of a vector.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutRng
from bert_jax.train.losses.objective import Batch, MetricSums, Objective, sum_weighted


def multi_similarity(cosines: jax.Array, same: jax.Array, other: jax.Array) -> jax.Array:
    """Compute the Multi-Similarity loss [N] of N vectors (Wang et al. 2019, section 4.2).

    Pairs that a margin separates already do not count. A row without pairs has loss 0.

    Args:
      cosines: [N, N], of each vector with each.
      same: bool [N, N], which pairs are alike.
      other: bool [N, N], which pairs are not.
    """
    # The values that google-research's network of words is trained with, in the paper's names.
    alpha, beta, base, margin = 4.0, 40.0, 0.5, 0.1
    least_same = jnp.min(jnp.where(same, cosines, jnp.inf), -1, keepdims=True)
    most_other = jnp.max(jnp.where(other, cosines, -jnp.inf), -1, keepdims=True)
    near, far = other & (cosines > least_same - margin), same & (cosines < most_other + margin)
    pull = jnp.sum(jnp.where(far, jnp.exp(-alpha * (cosines - base)), 0.0), -1)
    push = jnp.sum(jnp.where(near, jnp.exp(beta * (cosines - base)), 0.0), -1)
    return jnp.log1p(pull) / alpha + jnp.log1p(push) / beta


def make_similarity_objective(model: Any) -> Objective:
    """Make the objective of RETVec, of `multi_similarity`.

    The metric nearest_is_same is how often the nearest of all other forms is of the same word.
    Rows of example_weights 0 count nowhere.

    Args:
      model: gives unit vectors [B, F, W] of the forms of B words.
    """

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        vectors_BFW = model.apply({'params': params}, batch, dropout_rng)
        B, F, W = vectors_BFW.shape
        vectors_NW, word_N = vectors_BFW.reshape(B * F, W), jnp.repeat(jnp.arange(B), F)
        weights_N = jnp.repeat(batch['example_weights'], F)

        # In full precision: the loss has the 40-fold of a difference in its exponent.
        cosines_NN = jnp.matmul(vectors_NW, vectors_NW.T, precision='highest')
        alike_NN, real_NN = word_N[:, None] == word_N[None], weights_N[None, :] > 0
        same_NN = alike_NN & ~jnp.eye(B * F, dtype=bool) & real_NN
        other_NN = ~alike_NN & real_NN
        nearest_same_N = jnp.max(jnp.where(same_NN, cosines_NN, -jnp.inf), -1)
        nearest_other_N = jnp.max(jnp.where(other_NN, cosines_NN, -jnp.inf), -1)
        nearest_is_same_N = (nearest_same_N > nearest_other_N).astype(jnp.float32)
        return {
            'loss': sum_weighted(multi_similarity(cosines_NN, same_NN, other_NN), weights_N),
            'nearest_is_same': sum_weighted(nearest_is_same_N, weights_N),
        }

    def weights(batch: Batch) -> dict[str, jax.Array]:
        forms = batch['characters'].shape[1]
        return {'loss': jnp.maximum(forms * jnp.sum(batch['example_weights']), 1.0)}

    return Objective(sums, weights)
