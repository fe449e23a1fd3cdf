"""The losses of pre-training: of masked words (MLM) and of pairs (NSP, or ALBERT's SOP).

Next-sentence prediction and the order of sentences have two classes and the same loss. The records
say which of them is asked: for the order the preprocessing swaps the two texts, in place of drawing
the second elsewhere.

Dims: B batch, P masked positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutRng
from bert_jax.model.vocabulary_loss import Factors
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


def weigh_pairs(batch: Batch) -> jax.Array:
    """Return what each pair counts, [B], or [B, K] of rows that hold several examples."""
    rows_B = batch['example_weights']
    if 'next_sentence_weights' not in batch:
        return rows_B
    # Of a packed row also 0 for places that hold no example.
    return batch['next_sentence_weights'] * rows_B[:, None]


def sum_next_sentence(logits: jax.Array, batch: Batch) -> MetricSums:
    """Return loss and accuracy of the pairs, of their logits [B, 2] or [B, K, 2].

    Label 0: B follows A. Each class is measured by itself too: a head that always gives one answer
    has half of all right, which the mean alone would not show.
    """
    labels, pairs = batch['next_sentence_labels'], weigh_pairs(batch)
    correct = mark_correct(logits, labels)
    return {
        'nsp_loss': sum_weighted(cross_entropy(logits, labels), pairs),
        'nsp_accuracy': sum_weighted(correct, pairs),
        'nsp_accuracy_is_next': sum_weighted(correct, pairs * (labels == 0)),
        'nsp_accuracy_random': sum_weighted(correct, pairs * (labels == 1)),
    }


def count_pairs(batch: Batch) -> jax.Array:
    """Return the number of pairs of a batch, at least 1."""
    return jnp.maximum(jnp.sum(weigh_pairs(batch)), 1.0)


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
