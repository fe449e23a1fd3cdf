"""Losses and measures as pure functions: logits and a batch in, {name: (weighted sum, weight)} out.

Sums and weights are kept apart until everything has been added up, over micro-batches, devices and
evaluation batches, so that a mean is always the mean over all examples (never a mean of means).

Dims: B batch, P masked positions, V vocabulary, C classes, T positions, F forms of a word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutRng
from bert_jax.model.heads import Batch as Batch

# Folded into a step's key for draws of a second pass; the sites of a first are smaller numbers.
_SECOND_PASS = 1 << 30
# {name: (weighted sum, sum of weights)}, each a scalar.
MetricSums = dict[str, tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class Objective:
    """What a run minimises: the sum over `weights` of metric sum / weight of the whole batch.

    sums(params, batch, dropout_rng) gives every metric of a (micro-)batch, the losses among them;
    weights(batch) gives the denominator of each loss, from the batch alone.
    """

    sums: Callable[[Any, Batch, DropoutRng | None], MetricSums]
    weights: Callable[[Batch], dict[str, jax.Array]]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[labels] over the last axis, float32."""
    # logsumexp - logit is log-softmax at the label alone: the [..., V] array of probabilities is
    # never made.
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def disagreement(logits: jax.Array, others: jax.Array) -> jax.Array:
    """Half of KL(q || p) + KL(p || q) of the softmaxes p, q of two logits over the last axis.

    Each divergence moves the logits of one side towards the other's, which it takes as they are
    (AdaMix section 3.2; its code modeling_roberta.py:1179-1188).
    """
    log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(others)

    def away(log_x: jax.Array, log_target: jax.Array) -> jax.Array:
        log_target = jax.lax.stop_gradient(log_target)
        return jnp.sum(jnp.exp(log_target) * (log_target - log_x), axis=-1)

    return (away(log_p, log_q) + away(log_q, log_p)) / 2


def _weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.sum(values * weights), jnp.sum(weights)


def _correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """1 where the label's logit is the largest, else 0; float32.

    Without argmax, which costs XLA:CPU as much as a third of a small step.
    """
    # Where several logits are the largest, each of them counts as right.
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (chosen >= jnp.max(logits, axis=-1)).astype(jnp.float32)


def pretraining_objective(model: Any, nsp: bool) -> Objective:
    """Masked LM, plus next-sentence prediction where `nsp`.

    Paper section 3.1; run_pretraining.py:236-310. Denominators are global: the sum of masked
    weights + 1e-5, and the number of examples, of which a packed row has several.
    """

    def example_weights(batch: Batch) -> jax.Array:
        # 0 for rows that only fill up the last batch of an evaluation; of a packed row also for
        # places that hold no example, [B, K].
        rows_B = batch['example_weights']
        if 'next_sentence_weights' in batch:
            return batch['next_sentence_weights'] * rows_B[:, None]
        return rows_B

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        mlm_BPV, nsp_logits = model.apply({'params': params}, batch, dropout_rng)

        # A masked place counts by its own weight (0 where a row has fewer than P) and by its row's.
        weights_BP = batch['masked_lm_weights'] * batch['example_weights'][:, None]
        metrics = {
            'mlm_loss': _weighted(cross_entropy(mlm_BPV, batch['masked_lm_ids']), weights_BP),
            'mlm_accuracy': _weighted(_correct(mlm_BPV, batch['masked_lm_ids']), weights_BP),
        }
        if nsp:
            # Each class by itself too: a head that always gives one answer has half of all right,
            # which the mean alone would not show. Label 0: B follows A.
            labels, examples = batch['next_sentence_labels'], example_weights(batch)
            right = _correct(nsp_logits, labels)
            metrics |= {
                'nsp_loss': _weighted(cross_entropy(nsp_logits, labels), examples),
                'nsp_accuracy': _weighted(right, examples),
                'nsp_accuracy_is_next': _weighted(right, examples * (labels == 0)),
                'nsp_accuracy_random': _weighted(right, examples * (labels == 1)),
            }
        return metrics

    def weights(batch: Batch) -> dict[str, jax.Array]:
        rows_B = batch['example_weights']

        # 1e-5 is the original's: too little to be seen in the loss, and a batch without any masked
        # token has loss 0 and not 0 / 0.
        denominators = {'mlm_loss': jnp.sum(batch['masked_lm_weights'] * rows_B[:, None]) + 1e-5}
        if nsp:
            denominators['nsp_loss'] = jnp.maximum(jnp.sum(example_weights(batch)), 1.0)
        return denominators

    return Objective(sums, weights)


def _example_weights(batch: Batch) -> dict[str, jax.Array]:
    # At least 1: a batch of filling rows alone has loss 0 and not 0 / 0.
    return {'loss': jnp.maximum(jnp.sum(batch['example_weights']), 1.0)}


def classification_objective(model: Any) -> Objective:
    """Mean cross-entropy over the examples (run_classifier.py:607).

    batch['labels'] int32 [B]: a class or a choice. AdaMix, unless told not to, computes a batch of
    training twice and adds the mean disagreement of the two answers; the labels are for the first.
    """
    consistent = model.config.tuning.consistent

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        logits_BC = model.apply({'params': params}, batch, dropout_rng)
        rows_B = batch['example_weights']
        metrics = {
            'loss': _weighted(cross_entropy(logits_BC, batch['labels']), rows_B),
            'accuracy': _weighted(_correct(logits_BC, batch['labels']), rows_B),
        }
        # Outside of training nothing is drawn, and a second pass would answer the same.
        if consistent and dropout_rng is not None:
            anew = dataclasses.replace(
                dropout_rng, key=jax.random.fold_in(dropout_rng.key, _SECOND_PASS)
            )
            others_BC = model.apply({'params': params}, batch, anew)
            metrics['consistency_loss'] = _weighted(disagreement(logits_BC, others_BC), rows_B)
        return metrics

    def weights(batch: Batch) -> dict[str, jax.Array]:
        own = _example_weights(batch)
        return own | {'consistency_loss': own['loss']} if consistent else own

    return Objective(sums, weights)


def regression_objective(model: Any) -> Objective:
    """Mean squared error over the examples; batch['labels'] float32 [B]."""

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        score_B = model.apply({'params': params}, batch, dropout_rng)[:, 0]
        return {'loss': _weighted(jnp.square(score_B - batch['labels']), batch['example_weights'])}

    return Objective(sums, _example_weights)


def span_objective(model: Any) -> Objective:
    """Mean of the start's and the end's cross-entropy over positions (run_squad.py:648-660).

    batch['start_positions'], batch['end_positions'] int32 [B]; 0 (the [CLS] token) where the window
    holds no answer.
    """

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        logits_BT2 = model.apply({'params': params}, batch, dropout_rng)

        # Start and end are two classifications over positions. Padding is among the classes, as in
        # the original: training teaches that it is never the answer.
        start_BT, end_BT = logits_BT2[..., 0], logits_BT2[..., 1]
        starts_B, ends_B = batch['start_positions'], batch['end_positions']
        loss_B = (cross_entropy(start_BT, starts_B) + cross_entropy(end_BT, ends_B)) / 2
        # Right only where both ends are.
        right_B = _correct(start_BT, starts_B) * _correct(end_BT, ends_B)
        return {
            'loss': _weighted(loss_B, batch['example_weights']),
            'accuracy': _weighted(right_B, batch['example_weights']),
        }

    return Objective(sums, _example_weights)


def token_objective(model: Any) -> Objective:
    """Mean cross-entropy over the tokens that have a label, all of them alike.

    batch['label_ids'] int32 [B, T]; batch['label_weights'] float32 [B, T], 1 at the first piece of
    each word (paper section 5.3).
    """

    # Pieces within a word, [CLS], [SEP] and padding have weight 0; so have rows that only fill up.
    def weigh(batch: Batch) -> jax.Array:
        return batch['label_weights'] * batch['example_weights'][:, None]

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        logits_BTC = model.apply({'params': params}, batch, dropout_rng)
        return {
            'loss': _weighted(cross_entropy(logits_BTC, batch['label_ids']), weigh(batch)),
            'accuracy': _weighted(_correct(logits_BTC, batch['label_ids']), weigh(batch)),
        }

    return Objective(sums, lambda batch: {'loss': jnp.maximum(jnp.sum(weigh(batch)), 1.0)})


def multi_similarity(cosines: jax.Array, same: jax.Array, other: jax.Array) -> jax.Array:
    """The Multi-Similarity loss [N] of N vectors (Wang et al. 2019, section 4.2).

    cosines [N, N], of each with each; same, other: bool [N, N], which pairs are alike and which are
    not. Pairs that are told apart already by a margin do not count. 0 for a row without pairs.
    """
    # The values that google-research's network of words is trained with, in the paper's names.
    alpha, beta, base, margin = 4.0, 40.0, 0.5, 0.1
    least_same = jnp.min(jnp.where(same, cosines, jnp.inf), -1, keepdims=True)
    most_other = jnp.max(jnp.where(other, cosines, -jnp.inf), -1, keepdims=True)
    near, far = other & (cosines > least_same - margin), same & (cosines < most_other + margin)
    pull = jnp.sum(jnp.where(far, jnp.exp(-alpha * (cosines - base)), 0.0), -1)
    push = jnp.sum(jnp.where(near, jnp.exp(beta * (cosines - base)), 0.0), -1)
    return jnp.log1p(pull) / alpha + jnp.log1p(push) / beta


def similarity_objective(model: Any) -> Objective:
    """Forms of one word are alike, and those of the other words of the batch are not.

    model: gives unit vectors [B, F, W] of the forms of B words. Rows of example_weights 0 count
    nowhere. nearest_is_same: how often the form nearest to one, among all others, is of its word.
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
        nearest = lambda of: jnp.max(jnp.where(of, cosines_NN, -jnp.inf), -1)
        found_N = (nearest(same_NN) > nearest(other_NN)).astype(jnp.float32)
        return {
            'loss': _weighted(multi_similarity(cosines_NN, same_NN, other_NN), weights_N),
            'nearest_is_same': _weighted(found_N, weights_N),
        }

    def weights(batch: Batch) -> dict[str, jax.Array]:
        forms = batch['characters'].shape[1]
        return {'loss': jnp.maximum(forms * jnp.sum(batch['example_weights']), 1.0)}

    return Objective(sums, weights)
