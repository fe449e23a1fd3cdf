"""The loss of pairs in pre-training: next-sentence prediction (NSP), or ALBERT's order (SOP).

Both have two classes and the same loss. The records say which of them is asked: for the order of
sentences the preprocessing swaps the two texts, in place of drawing the second elsewhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.train.losses.objective import (
    Batch,
    MetricSums,
    cross_entropy,
    mark_correct,
    sum_weighted,
)


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
