"""The loss of masked words (MLM), and the objective of pre-training that it is a part of.

Dims: B batch, P masked positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutRng
from bert_jax.model.vocabulary_loss import Factors
from bert_jax.train.losses.next_sentence import count_pairs, sum_next_sentence
from bert_jax.train.losses.objective import (
    Batch,
    MetricSums,
    Objective,
    cross_entropy,
    mark_correct,
    sum_weighted,
)


def weigh_masked_tokens(batch: Batch) -> jax.Array:
    """Return what each masked place counts, [B, P].

    By its own weight, which is 0 where a row has fewer than P, and by its row's.
    """
    return batch['masked_lm_weights'] * batch['example_weights'][:, None]


def count_masked_tokens(batch: Batch) -> jax.Array:
    """Return the number of masked tokens of a batch, and 1e-5.

    That is the original's: too little to be seen in the loss, and a batch without any masked token
    has loss 0 and not 0 / 0.
    """
    return jnp.sum(weigh_masked_tokens(batch)) + 1e-5


def sum_masked_lm(mlm_BPV: jax.Array | Factors, batch: Batch) -> MetricSums:
    """Return loss and accuracy of the words at masked positions, of their logits or factors."""
    labels_BP, weights_BP = batch['masked_lm_ids'], weigh_masked_tokens(batch)
    if isinstance(mlm_BPV, Factors):
        loss, correct = mlm_BPV.weighted_sums(labels_BP, weights_BP)
        weight = jnp.sum(weights_BP)
        return {'mlm_loss': (loss, weight), 'mlm_accuracy': (correct, weight)}
    return {
        'mlm_loss': sum_weighted(cross_entropy(mlm_BPV, labels_BP), weights_BP),
        'mlm_accuracy': sum_weighted(mark_correct(mlm_BPV, labels_BP), weights_BP),
    }


def make_pretraining_objective(model: Any, nsp: bool) -> Objective:
    """Make the objective of masked LM, plus next-sentence prediction where `nsp`.

    Paper section 3.1; run_pretraining.py:236-310. Denominators are global: the sum of masked
    weights + 1e-5, and the number of examples, of which a packed row has several.
    """

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        mlm_BPV, nsp_logits = model.apply({'params': params}, batch, dropout_rng)
        metrics = sum_masked_lm(mlm_BPV, batch)
        if nsp:
            metrics |= sum_next_sentence(nsp_logits, batch)
        return metrics

    def weights(batch: Batch) -> dict[str, jax.Array]:
        denominators = {'mlm_loss': count_masked_tokens(batch)}
        if nsp:
            denominators['nsp_loss'] = count_pairs(batch)
        return denominators

    return Objective(sums, weights)
