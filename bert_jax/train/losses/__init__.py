"""Losses and measures as pure functions: logits and a batch in, {name: (weighted sum, weight)} out.

Sums and weights are kept apart until everything has been added up, over micro-batches, devices and
evaluation batches, so that a mean is always the mean over all examples (never a mean of means).

Dims: B batch, P masked positions, V vocabulary, C classes, T positions, F forms of a word.
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
from bert_jax.model.heads import Batch as Batch
from bert_jax.model.vocabulary_loss import Factors

# Folded into a step's key for draws of a second pass; the sites of a first are smaller numbers.
_SECOND_PASS = 1 << 30
# {name: (weighted sum, sum of weights)}, each a scalar.
MetricSums = dict[str, tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class Objective:
    """The loss of a run: the sum over `weights` of metric sum / weight of the whole batch.

    Attributes:
      sums: (params, batch, dropout_rng) -> every metric of a (micro-)batch, the losses included.
      weights: batch -> the denominator of each loss, from the batch alone.
      whole_batch: whether the loss of an example depends on others, so that no device may compute
        its own rows alone.
      constant: (features, examples of a batch) -> the loss of a constant answer; None: as the task
        says.
    """

    sums: Callable[[Any, Batch, DropoutRng | None], MetricSums]
    weights: Callable[[Batch], dict[str, jax.Array]]
    whole_batch: bool = False
    constant: Callable[[Mapping[str, np.ndarray], int], float] | None = None


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute -log softmax(logits)[labels] over the last axis, float32."""
    # logsumexp - logit is log-softmax at the label alone: the [..., V] array of probabilities is
    # never made.
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def disagreement(logits: jax.Array, others: jax.Array) -> jax.Array:
    """Compute (KL(q || p) + KL(p || q)) / 2 of the softmaxes p, q of two logits.

    Each divergence moves the logits of one side towards the other's, whose gradient it stops
    (AdaMix section 3.2; its code modeling_roberta.py:1179-1188).
    """
    log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(others)

    def away(log_x: jax.Array, log_target: jax.Array) -> jax.Array:
        log_target = jax.lax.stop_gradient(log_target)
        return jnp.sum(jnp.exp(log_target) * (log_target - log_x), axis=-1)

    return (away(log_p, log_q) + away(log_q, log_p)) / 2


def weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the weighted sum of some values, and the sum of their weights."""
    return jnp.sum(values * weights), jnp.sum(weights)


def _correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return 1 where the label's logit is the largest, else 0; float32.

    It avoids argmax, which costs XLA:CPU as much as a third of a small step.
    """
    # Where several logits are the largest, each of them counts as right.
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (chosen >= jnp.max(logits, axis=-1)).astype(jnp.float32)


def masked_lm_weight(batch: Batch) -> jax.Array:
    """Return the number of masked tokens of a batch, and 1e-5.

    That is the original's: too little to be seen in the loss, and a batch without any masked token
    has loss 0 and not 0 / 0.
    """
    return jnp.sum(batch['masked_lm_weights'] * batch['example_weights'][:, None]) + 1e-5


def masked_lm_sums(mlm_BPV: jax.Array | Factors, batch: Batch) -> MetricSums:
    """Return loss and accuracy of the words at masked positions, of their logits or factors."""
    # A masked place counts by its own weight (0 where a row has fewer than P) and by its row's.
    labels_BP = batch['masked_lm_ids']
    weights_BP = batch['masked_lm_weights'] * batch['example_weights'][:, None]
    if isinstance(mlm_BPV, Factors):
        sums, weight = mlm_BPV.weighted_sums(labels_BP, weights_BP), jnp.sum(weights_BP)
        return {'mlm_loss': (sums[0], weight), 'mlm_accuracy': (sums[1], weight)}
    return {
        'mlm_loss': weighted(cross_entropy(mlm_BPV, labels_BP), weights_BP),
        'mlm_accuracy': weighted(_correct(mlm_BPV, labels_BP), weights_BP),
    }


def pretraining_objective(model: Any, nsp: bool) -> Objective:
    """Make the objective of masked LM, plus next-sentence prediction where `nsp`.

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
        metrics = masked_lm_sums(mlm_BPV, batch)
        if nsp:
            # Each class by itself too: a head that always gives one answer has half of all right,
            # which the mean alone would not show. Label 0: B follows A.
            labels, examples = batch['next_sentence_labels'], example_weights(batch)
            right = _correct(nsp_logits, labels)
            metrics |= {
                'nsp_loss': weighted(cross_entropy(nsp_logits, labels), examples),
                'nsp_accuracy': weighted(right, examples),
                'nsp_accuracy_is_next': weighted(right, examples * (labels == 0)),
                'nsp_accuracy_random': weighted(right, examples * (labels == 1)),
            }
        return metrics

    def weights(batch: Batch) -> dict[str, jax.Array]:
        denominators = {'mlm_loss': masked_lm_weight(batch)}
        if nsp:
            denominators['nsp_loss'] = jnp.maximum(jnp.sum(example_weights(batch)), 1.0)
        return denominators

    return Objective(sums, weights)


def _example_weights(batch: Batch) -> jax.Array:
    return batch['example_weights']


def mean_objective(
    model: Any,
    measures: Callable[[jax.Array, Batch], dict[str, jax.Array]],
    weigh: Callable[[Batch], jax.Array] = _example_weights,
) -> Objective:
    """Make the objective of a head whose metrics are means with the same weights.

    Args:
      model: the head on its encoder.
      measures: (outputs, batch) -> the value of each metric, of the shape of the weights.
      weigh: batch -> the weight of each value.
    """

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        values = measures(model.apply({'params': params}, batch, dropout_rng), batch)
        return {name: weighted(value, weigh(batch)) for name, value in values.items()}

    # At least 1: a batch of filling rows alone has loss 0 and not 0 / 0.
    return Objective(sums, lambda batch: {'loss': jnp.maximum(jnp.sum(weigh(batch)), 1.0)})


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
            return _example_weights(batch)
        return _example_weights(batch) * jnp.array(self.weights)[batch['labels']]

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


def class_measures(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Return the loss of each of some classes, and whether the label has the largest logit."""
    return {'loss': cross_entropy(logits, labels), 'accuracy': _correct(logits, labels)}


def classification_objective(
    model: Any,
    targets: ClassTargets | None = None,
    read: Callable[[jax.Array, Batch], jax.Array] = lambda logits, batch: logits,
) -> Objective:
    """Make the objective of classes: mean cross-entropy over examples (run_classifier.py:607).

    batch['labels'] int32 [B]: a class or a choice. `targets`: their weights and smoothing; then the
    mean is over weights, and accuracies are of examples as before. AdaMix with `consistency`
    computes a batch of training twice and adds the mean disagreement of the two answers; the labels
    are for the first. `read`: makes the logits of the model's outputs.
    """
    of_targets = targets or ClassTargets()
    is_plain = of_targets == ClassTargets()
    minimised = ['loss']
    if is_plain and model.config.tuning.consistent:
        minimised.append('consistency_loss')

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        answer = lambda rng: read(model.apply({'params': params}, batch, rng), batch)
        logits, labels, examples = answer(dropout_rng), batch['labels'], batch['example_weights']
        metrics = {
            'loss': weighted(of_targets.losses(logits, labels), of_targets.weigh(batch)),
            'accuracy': weighted(_correct(logits, labels), examples),
        }
        # Outside of training nothing is drawn, and a second pass would answer the same.
        if len(minimised) > 1 and dropout_rng is not None:
            second_key = jax.random.fold_in(dropout_rng.key, _SECOND_PASS)
            others = answer(dataclasses.replace(dropout_rng, key=second_key))
            metrics['consistency_loss'] = weighted(disagreement(logits, others), examples)
        return metrics

    def weights(batch: Batch) -> dict[str, jax.Array]:
        # Weights may add up to less than 1, and to 0 in a batch of filling rows alone.
        total = jnp.sum(of_targets.weigh(batch))
        return dict.fromkeys(minimised, jnp.where(total > 0, total, 1.0))

    constant = lambda features, _: of_targets.constant(features['labels'], model.outputs)
    return Objective(sums, weights, constant=None if is_plain else constant)


def among_choices(scores_BC: jax.Array, batch: Batch) -> jax.Array:
    """Return the scores of choices, far below any other where an example has no such choice.

    There its row is of one token.
    """
    is_there_BC = batch['input_mask'][..., 1] > 0
    return jnp.where(is_there_BC, scores_BC, -1e9)


def regression_objective(model: Any) -> Objective:
    """Make the objective of numbers: mean squared error; batch['labels'] float32 [B]."""
    return mean_objective(
        model, lambda scores_B1, batch: {'loss': jnp.square(scores_B1[:, 0] - batch['labels'])}
    )


def multi_label_objective(model: Any) -> Objective:
    """Make the objective of sets of labels: mean binary cross-entropy over labels and examples.

    batch['labels'] float32 [B, C, 1], 1 where an example has the label.
    """

    def measures(logits_BC: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        # -y log p - (1 - y) log(1 - p) of a sigmoid p, without either logarithm of 0.
        held_BC = batch['labels'][..., 0]
        losses_BC = jax.nn.softplus(logits_BC) - logits_BC * held_BC
        return {'loss': jnp.mean(losses_BC, axis=-1)}

    return mean_objective(model, measures)


def span_objective(model: Any) -> Objective:
    """Make the objective of answers: cross-entropy of start and end (run_squad.py:648-660).

    batch['start_positions'], batch['end_positions'] int32 [B]; 0 (the [CLS] token) where the window
    holds no answer. Padding is among the classes, as in the original: training teaches that it is
    never the answer.
    """

    def measures(logits_BT2: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        start, end = (
            class_measures(logits_BT2[..., i], batch[name])
            for i, name in enumerate(('start_positions', 'end_positions'))
        )
        # Right only where both ends are.
        return {
            'loss': (start['loss'] + end['loss']) / 2,
            'accuracy': start['accuracy'] * end['accuracy'],
        }

    return mean_objective(model, measures)


def token_objective(model: Any) -> Objective:
    """Make the objective of tags: mean cross-entropy over the tokens that have a label.

    batch['label_ids'] int32 [B, T]; batch['label_weights'] float32 [B, T], 1 at the first piece of
    each word (paper section 5.3), 0 within a word, at [CLS], [SEP] and padding.
    """
    return mean_objective(
        model,
        lambda logits_BTC, batch: class_measures(logits_BTC, batch['label_ids']),
        lambda batch: batch['label_weights'] * batch['example_weights'][:, None],
    )


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


def similarity_objective(model: Any) -> Objective:
    """Make the objective of RETVec: forms of a word are alike, those of other words are not.

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
        nearest = lambda of: jnp.max(jnp.where(of, cosines_NN, -jnp.inf), -1)
        nearest_is_same_N = (nearest(same_NN) > nearest(other_NN)).astype(jnp.float32)
        return {
            'loss': weighted(multi_similarity(cosines_NN, same_NN, other_NN), weights_N),
            'nearest_is_same': weighted(nearest_is_same_N, weights_N),
        }

    def weights(batch: Batch) -> dict[str, jax.Array]:
        forms = batch['characters'].shape[1]
        return {'loss': jnp.maximum(forms * jnp.sum(batch['example_weights']), 1.0)}

    return Objective(sums, weights)
