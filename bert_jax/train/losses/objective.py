"""What an objective is, and what all of them are made of.

Losses and measures are pure functions: outputs and a batch in, {name: (weighted sum, weight)} out.
Sums and weights are kept apart until everything has been added up, over micro-batches, devices and
evaluation batches, so that a mean is always the mean over all examples (never a mean of means).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.dropout import DropoutRng
from bert_jax.model.heads import Batch as Batch

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
      least: (features, examples of a batch) -> the least loss there can be; None: 0.
      in_batch: whether texts of other examples of the batch are negatives, so that equal texts must
        not share one.
      schedule: (step from 0, steps of the run) -> what some of the losses count by now, by name;
        None: all count as ever.
      prepare: (batch on the host, what names the step) -> the batch that it reads.
    """

    sums: Callable[[Any, Batch, DropoutRng | None], MetricSums]
    weights: Callable[[Batch], dict[str, jax.Array]]
    whole_batch: bool = False
    constant: Callable[[Mapping[str, np.ndarray], int], float] | None = None
    in_batch: bool = False
    least: Callable[[Mapping[str, np.ndarray], int], float] | None = None
    schedule: Callable[[jax.Array, jax.Array], dict[str, jax.Array]] | None = None
    prepare: Callable[..., dict[str, Any]] = lambda batch, seed: batch

    def weigh(self, batch: Batch, step: jax.Array, total_steps: Any) -> dict[str, jax.Array]:
        """Return the denominators of a step, infinite where a loss does not count yet."""
        weights = self.weights(batch)
        if self.schedule is None:
            return weights
        factors = self.schedule(step, total_steps)
        return {name: weight / factors.get(name, 1.0) for name, weight in weights.items()}


def add_losses(sums: MetricSums, denominators: Mapping[str, jax.Array]) -> jax.Array:
    """Return the loss of a batch, or a part's share of it: each loss by its denominator, added."""
    shares = [sums[name][0] / weight for name, weight in denominators.items()]
    return sum(shares[1:], shares[0])


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute -log softmax(logits)[labels] over the last axis, float32."""
    # logsumexp - logit is log-softmax at the label alone: the [..., V] array of probabilities is
    # never made.
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def mark_correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return 1 where the label's logit is the largest, else 0; float32.

    It avoids argmax, which costs XLA:CPU as much as a third of a small step.
    """
    # Where several logits are the largest, each of them counts as right.
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (chosen >= jnp.max(logits, axis=-1)).astype(jnp.float32)


def measure_classes(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Return the loss of each of some classes, and whether the label has the largest logit."""
    return {'loss': cross_entropy(logits, labels), 'accuracy': mark_correct(logits, labels)}


def sum_weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the weighted sum of some values, and the sum of their weights."""
    return jnp.sum(values * weights), jnp.sum(weights)


def weigh_examples(batch: Batch) -> jax.Array:
    """Return what each row counts: 0 where it only fills up the last batch of an evaluation."""
    return batch['example_weights']


def make_mean_objective(
    model: Any,
    measure: Callable[[jax.Array, Batch], dict[str, jax.Array]],
    weigh: Callable[[Batch], jax.Array] = weigh_examples,
) -> Objective:
    """Make the objective of a head whose metrics are means with the same weights.

    Args:
      model: the head on its encoder.
      measure: (outputs, batch) -> the value of each metric, of the shape of the weights.
      weigh: batch -> the weight of each value.
    """

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        values = measure(model.apply({'params': params}, batch, dropout_rng), batch)
        return {name: sum_weighted(value, weigh(batch)) for name, value in values.items()}

    def weights(batch: Batch) -> dict[str, jax.Array]:
        # At least 1: a batch of filling rows alone has loss 0 and not 0 / 0.
        return {'loss': jnp.maximum(jnp.sum(weigh(batch)), 1.0)}

    return Objective(sums, weights)
