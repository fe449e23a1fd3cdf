"""The objective of sparse vectors: a loss of vectors, and what keeps most of their weights at 0.

Owns the FLOPS regulariser and how it comes in, which are those of sentence-transformers.

Dims: B batch, C texts of an example, N texts, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.configs.model.vector_kinds import SparseTraining
from bert_jax.model.text_vectors import SparseTexts
from bert_jax.train.losses.multiple_negatives import make_vector_objective
from bert_jax.train.losses.objective import Batch, MetricSums, Objective, weigh_examples


def make_splade_objective(
    model: Any, embedding: EmbeddingConfig, sparse: SparseTraining
) -> Objective:
    """Make the objective: a base loss, and the weighted FLOPS of queries and of documents.

    FLOPS are the sum over entries of (mean over texts of the weight)^2 (Paria et al. 2020, section
    3; sparse_encoder/losses/flops.py:47-53), without examples that only fill up a batch. What they
    count grows with the square of the steps over the first third of a run (Formal et al. 2021,
    section 4; sparse_encoder/callbacks/splade_callbacks.py:99-113). In metrics they count whole.

    Args:
      model: gives weights [B, C, V].
      embedding: which base loss.
      sparse: the weights of the FLOPS.
    """
    counted = {'query_flops': sparse.query_weight, 'document_flops': sparse.document_weight}

    def measure(weights_BCV: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        counts_B, values = weigh_examples(batch), {}
        for name, texts_BNV in (('query', weights_BCV[:, :1]), ('document', weights_BCV[:, 1:])):
            total_V = jnp.sum(jnp.mean(texts_BNV, 1) * counts_B[:, None], 0)
            mean_V = total_V / jnp.maximum(jnp.sum(counts_B), 1.0)
            # No mean over examples: each has that of all.
            values[f'{name}_flops'] = jnp.sum(jnp.square(mean_V)) * jnp.ones_like(counts_B)
            values[f'{name}_active_dims'] = jnp.mean(jnp.sum(texts_BNV > 0, -1), -1)
        return values

    base = make_vector_objective(model, embedding, SparseTexts, measure)

    def sums(*arguments: Any) -> MetricSums:
        metrics = base.sums(*arguments)
        return {'base_loss': metrics.pop('loss')} | metrics  # the step's loss is of all

    def weights(batch: Batch) -> dict[str, jax.Array]:
        examples = base.weights(batch)['loss']
        shares = {name: examples / weight for name, weight in counted.items() if weight}
        return {'base_loss': examples} | shares

    def schedule(step: jax.Array, total_steps: jax.Array) -> dict[str, jax.Array]:
        growing = jnp.maximum(jnp.floor(total_steps / 3), 1.0)
        return dict.fromkeys(counted, jnp.square(jnp.minimum(step / growing, 1.0)))

    return dataclasses.replace(
        base, sums=sums, weights=weights, schedule=schedule, whole_batch=True
    )
