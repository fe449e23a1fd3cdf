"""What fine-tuning minimises: classes, choices, sets of labels, numbers, spans and tags.

The loss of sentence vectors is multiple_negatives.py's. Which task has which of these is in the
table of heads (task_heads.py).

Dims: B batch, C classes or choices, T positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.dropout import DropoutRng
from bert_jax.train.losses.objective import (
    Batch,
    MetricSums,
    Objective,
    cross_entropy,
    make_mean_objective,
    mark_correct,
    measure_classes,
    sum_weighted,
    weigh_examples,
)

# Folded into a step's key for draws of a second pass; the sites of a first are smaller numbers.
_SECOND_PASS = 1 << 30


@dataclass(frozen=True)
class ClassTargets:
    """How classes are learnt.

    Attributes:
      weights: of each class; () for all alike.
      smoothing: the share of a target that all classes have alike.
    """

    weights: tuple[float, ...] = ()
    smoothing: float = 0.0

    def weigh(self, batch: Batch) -> jax.Array:
        """Return what each example counts."""
        if not self.weights:
            return weigh_examples(batch)
        return weigh_examples(batch) * jnp.array(self.weights)[batch['labels']]

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the loss of each example, by which `weigh` is multiplied; as torch has both."""
        losses = cross_entropy(logits, labels)
        if not self.smoothing:
            return losses
        # The even part has each class by its own weight, and the example's is taken out again.
        weights = jnp.array(self.weights or (1.0,) * logits.shape[-1])
        even = -jnp.mean(jax.nn.log_softmax(logits) * weights[None], axis=-1)
        return (1 - self.smoothing) * losses + self.smoothing * even / weights[labels]

    def constant(self, labels: np.ndarray, classes: int) -> float:
        """Return the least loss of one constant answer to examples with these labels."""
        counts = np.bincount(labels, minlength=classes)
        weights = np.array(self.weights or (1.0,) * classes)
        weighed, even = weights * counts, weights * counts.sum() / classes
        target = ((1 - self.smoothing) * weighed + self.smoothing * even) / weighed.sum()
        shares = target / target.sum()
        return float(-(target * np.log(np.where(shares > 0, shares, 1))).sum())


def measure_disagreement(logits: jax.Array, others: jax.Array) -> jax.Array:
    """Compute (KL(q || p) + KL(p || q)) / 2 of the softmaxes p, q of two logits.

    Each divergence moves the logits of one side towards the other's, whose gradient it stops
    (AdaMix section 3.2; its code modeling_roberta.py:1179-1188).
    """
    log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(others)

    def away(log_x: jax.Array, log_target: jax.Array) -> jax.Array:
        log_target = jax.lax.stop_gradient(log_target)
        return jnp.sum(jnp.exp(log_target) * (log_target - log_x), axis=-1)

    return (away(log_p, log_q) + away(log_q, log_p)) / 2


def _read_logits(logits: jax.Array, batch: Batch) -> jax.Array:
    return logits


def make_classification_objective(
    model: Any,
    targets: ClassTargets = ClassTargets(),
    read: Callable[[jax.Array, Batch], jax.Array] = _read_logits,
) -> Objective:
    """Make the objective of classes: mean cross-entropy over examples (run_classifier.py:607).

    batch['labels'] int32 [B]: a class or a choice. AdaMix with `consistency` computes a batch of
    training twice and adds the mean disagreement of the two answers; the labels are for the first.

    Args:
      model: the head on its encoder.
      targets: weights of the classes and smoothing; then the mean is over weights, and accuracies
        are of examples as before.
      read: makes the logits of the model's outputs.
    """
    is_plain = targets == ClassTargets()
    is_consistent = is_plain and model.config.tuning.consistent

    def answer(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> jax.Array:
        return read(model.apply({'params': params}, batch, dropout_rng), batch)

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        labels, examples = batch['labels'], batch['example_weights']
        logits = answer(params, batch, dropout_rng)
        metrics = {
            'loss': sum_weighted(targets.losses(logits, labels), targets.weigh(batch)),
            'accuracy': sum_weighted(mark_correct(logits, labels), examples),
        }
        # Outside of training nothing is drawn, and a second pass would answer the same.
        if is_consistent and dropout_rng is not None:
            second_key = jax.random.fold_in(dropout_rng.key, _SECOND_PASS)
            others = answer(params, batch, dataclasses.replace(dropout_rng, key=second_key))
            metrics['consistency_loss'] = sum_weighted(
                measure_disagreement(logits, others), examples
            )
        return metrics

    def weights(batch: Batch) -> dict[str, jax.Array]:
        # Weights may add up to less than 1, and to 0 in a batch of filling rows alone.
        total = jnp.sum(targets.weigh(batch))
        denominators = {'loss': jnp.where(total > 0, total, 1.0)}
        if is_consistent:
            denominators['consistency_loss'] = denominators['loss']
        return denominators

    if is_plain:
        return Objective(sums, weights)

    def constant(features: Mapping[str, np.ndarray], batch_size: int) -> float:
        return targets.constant(features['labels'], model.outputs)

    return Objective(sums, weights, constant=constant)


def mask_absent_choices(scores_BC: jax.Array, batch: Batch) -> jax.Array:
    """Return the scores of choices, far below any other where an example has no such choice.

    There its row is of one token.
    """
    is_there_BC = batch['input_mask'][..., 1] > 0
    return jnp.where(is_there_BC, scores_BC, -1e9)


def make_choice_objective(model: Any) -> Objective:
    """Make the objective of choices: that of classes, which are an example's own choices."""
    return make_classification_objective(model, read=mask_absent_choices)


def make_regression_objective(model: Any) -> Objective:
    """Make the objective of numbers: mean squared error; batch['labels'] float32 [B]."""

    def measure(scores_B1: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        return {'loss': jnp.square(scores_B1[:, 0] - batch['labels'])}

    return make_mean_objective(model, measure)


def make_multi_label_objective(model: Any) -> Objective:
    """Make the objective of sets of labels: mean binary cross-entropy over labels and examples.

    batch['labels'] float32 [B, C, 1], 1 where an example has the label.
    """

    def measure(logits_BC: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        # -y log p - (1 - y) log(1 - p) of a sigmoid p, without either logarithm of 0.
        held_BC = batch['labels'][..., 0]
        losses_BC = jax.nn.softplus(logits_BC) - logits_BC * held_BC
        return {'loss': jnp.mean(losses_BC, axis=-1)}

    return make_mean_objective(model, measure)


def make_span_objective(model: Any) -> Objective:
    """Make the objective of answers: cross-entropy of start and end (run_squad.py:648-660).

    batch['start_positions'], batch['end_positions'] int32 [B]; 0 (the [CLS] token) where the window
    holds no answer. Padding is among the classes, as in the original: training teaches that it is
    never the answer.
    """

    def measure(logits_BT2: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        start = measure_classes(logits_BT2[..., 0], batch['start_positions'])
        end = measure_classes(logits_BT2[..., 1], batch['end_positions'])
        # Right only where both ends are.
        return {
            'loss': (start['loss'] + end['loss']) / 2,
            'accuracy': start['accuracy'] * end['accuracy'],
        }

    return make_mean_objective(model, measure)


def make_token_objective(model: Any) -> Objective:
    """Make the objective of tags: mean cross-entropy over the tokens that have a label.

    batch['label_ids'] int32 [B, T]; batch['label_weights'] float32 [B, T], 1 at the first piece of
    each word (paper section 5.3), 0 within a word, at [CLS], [SEP] and padding.
    """

    def measure(logits_BTC: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        return measure_classes(logits_BTC, batch['label_ids'])

    def weigh(batch: Batch) -> jax.Array:
        return batch['label_weights'] * batch['example_weights'][:, None]

    return make_mean_objective(model, measure, weigh)
