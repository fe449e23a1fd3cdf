"""One optimizer step and one evaluation step, as pure functions to be jitted.

The train step: one objective, gradients summed over micro-batches (gradient_accumulation.py),
clipped once, applied once; a non-finite step leaves the state as it was but for the step counter,
so that data and schedule go on. Reads nothing but its arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import logging
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.configs.schema import ModelConfig, OptimizerConfig
from bert_jax.mesh.exchange import is_by_parts, sum_by_parts
from bert_jax.mesh.sharding import constrain_rows, split_rows
from bert_jax.model.dropout import GENERATORS, DropoutRng, Generator
from bert_jax.model.partition import find_places
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.gradient_accumulation import (
    Gradient,
    Shared,
    accumulate_gradients,
    number_filled_rows,
    number_rows,
)
from bert_jax.train.learning_rate import Hparams, compute_learning_rate
from bert_jax.train.losses.objective import Batch, MetricSums, Objective, add_losses
from bert_jax.train.optimizer import Optimizer, make_optimizer
from bert_jax.train.state import TrainState, join_frozen

# Initialisation uses the seed's own key; everything else folds in a stream first.
_DROPOUT_STREAM = 1
_MASKING_STREAM = 2


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """How a train step is computed.

    Attributes:
      accumulation: the micro-batches of a step, one after the other.
      masking: where given, the batch comes unmasked, and each step draws its own masks.
      dropout_rng: the generator of dropout's masks, one of GENERATORS.
      shard_optimizer: whether weights and moments are split over `data` (sharding.shards_update).
      dtype: of the objective's arithmetic, in which weights are then gathered.
      encoder: the encoder's shape, for an optimizer that measures whole tensors.
      grows: whether the last micro-batches may hold no rows (`example_weights` of 0).
      clipped_apart: parts of the parameters that are clipped by norms of their own.
    """

    accumulation: int = 1
    masking: DynamicMasking | None = None
    dropout_rng: str = 'threefry'
    shard_optimizer: bool = False
    dtype: DTypeLike = jnp.float32
    encoder: ModelConfig | None = None
    grows: bool = False
    clipped_apart: tuple[str, ...] = ()


_PLAIN = StepOptions()


def make_train_step(
    objective: Objective, optimizer: Optimizer, options: StepOptions = _PLAIN
) -> Callable[[TrainState, Batch, Hparams], tuple[TrainState, MetricSums]]:
    """Return step(state, batch, hparams) -> (state, metrics as (sum, weight) pairs).

    Metrics are loss (what is minimised, in place of an objective's own `loss`), grad_norm,
    param_norm, bad_steps and, of an optimizer by settings, learning_rate.

    Args:
      objective: what is minimised.
      optimizer: its settings, or an optax one, whose schedule counts steps not discarded.
      options: how it is computed.
    """
    return _Step(objective, optimizer, options).train_step


@dataclasses.dataclass(frozen=True, eq=False)
class _Step:
    """A train step, and what it follows from: the arguments of `make_train_step`."""

    objective: Objective
    optimizer: Optimizer
    options: StepOptions

    def train_step(
        self, state: TrainState, batch: Batch, h: Hparams
    ) -> tuple[TrainState, MetricSums]:
        """Return the state after a batch, and the metrics."""
        options, generator = self.options, GENERATORS[self.options.dropout_rng]
        # A mask is named by (seed, stream, step, row): nothing random is carried from step to step.
        dropout_key = make_key(h.seed, _DROPOUT_STREAM, state.step, generator.implementation)
        rows_B, filled = number_rows(batch), None
        if options.grows:
            rows_B, filled = number_filled_rows(batch, options.accumulation)

        # Before the micro-batches are cut: masks must not depend on how the batch is summed.
        if options.masking is not None:
            batch = draw_masks(options.masking, batch, h.seed, state.step, rows_B)

        # Of the whole batch: a micro-batch's loss is its share of the batch's.
        denominators = self.objective.weigh(batch, state.step - h.first_step, h.total_steps)
        compute_gradient = make_gradient(self.objective, generator)
        rows, cut = (batch, rows_B), P('data')
        if options.accumulation > 1:  # rows lie below the micro-batches, [n, B / n, ...]
            compute_gradient = accumulate_gradients(compute_gradient, state.params)
            rows, cut = split_rows(rows, options.accumulation), P(None, 'data')
        is_cut = is_by_parts(options.accumulation, options.shard_optimizer, options.dropout_rng)
        if is_cut and not self.objective.whole_batch:
            places = find_places(state.params, options.shard_optimizer)
            compute_gradient = sum_by_parts(compute_gradient, places, cut, options.dtype)
        shared = Shared(dropout_key, denominators, state.frozen, filled)
        grads, sums = compute_gradient(state.params, shared, rows)
        state, scalars = self._apply_gradients(state, grads, add_losses(sums, denominators), h)
        # Scalars of the step have weight 1, so that they are averaged like any other metric.
        return state, sums | {name: (value, jnp.ones(())) for name, value in scalars.items()}

    def _apply_gradients(
        self, state: TrainState, grads: Any, loss: jax.Array, h: Hparams
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Return the state after an update by `grads`, if all is finite, and the step's scalars."""
        # Of the whole batch: the norm of the gradient before it is clipped, and whether it and the
        # loss are numbers. One NaN anywhere reaches the loss or the norm.
        norm = optax.tree.norm(grads)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)

        def keep_finite(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(is_finite, n, o), new, old)

        # The update is computed in any case and taken only where all is finite: the choice is made
        # on the device, so that the host need not look at this step before it sends the next.
        options = self.options
        transformation = make_optimizer(
            self.optimizer, h, state.step, is_finite, options.encoder, options.clipped_apart
        )
        updates, opt_state = transformation.update(grads, state.opt_state, state.params)
        params = keep_finite(optax.apply_updates(state.params, updates), state.params)
        # Those by settings keep their own state.
        if not isinstance(self.optimizer, OptimizerConfig):
            opt_state = keep_finite(opt_state, state.opt_state)

        # In a row: the host stops a run that does not recover, which a single bad batch is not.
        bad_steps = jnp.where(is_finite, 0, state.bad_steps + 1)
        scalars = {
            'loss': loss,
            'grad_norm': norm,
            'param_norm': optax.tree.norm(params),
            'bad_steps': bad_steps.astype(jnp.float32),
        }
        if isinstance(self.optimizer, OptimizerConfig):
            scalars['learning_rate'] = compute_learning_rate(self.optimizer, h, state.step)
        # The step counts a discarded step too: data and schedule go on.
        new_state = state._replace(
            params=params, opt_state=opt_state, step=state.step + 1, bad_steps=bad_steps
        )
        return new_state, scalars


def draw_masks(
    masking: DynamicMasking, batch: Batch, seed: Any, step: Any, rows_B: jax.Array
) -> dict[str, jax.Array]:
    """Mask a batch as the step with that number (from 0) of a run with that seed masks it.

    Args:
      masking: the rule.
      batch: unmasked rows.
      seed: of the run, uint32.
      step: of the run.
      rows_B: the number of each row in the batch (number_rows).
    """
    key = make_key(seed, _MASKING_STREAM, step)
    return jax.tree.map(constrain_rows, masking.draw(batch, key, constrain_rows(rows_B)))


def make_key(seed: Any, stream: int, step: Any, generator: str = 'threefry2x32') -> jax.Array:
    """Return the key of one step and one use of random numbers."""
    stream_key = jax.random.fold_in(jax.random.key(seed, impl=generator), stream)
    return jax.random.fold_in(stream_key, step)


def make_gradient(objective: Objective, generator: Generator) -> Gradient:
    """Return the gradient of a batch, or of a micro-batch, with the objective's metric sums."""

    def compute_loss(params, shared, rows):
        batch, rows_B = rows
        sums = objective.sums(
            join_frozen(params, shared.frozen),
            jax.tree.map(constrain_rows, batch),
            DropoutRng(shared.dropout_key, rows_B, generator),
        )
        return add_losses(sums, shared.denominators), sums

    return jax.grad(compute_loss, has_aux=True)


def jit_train_step(
    train_step: Callable[..., tuple[TrainState, MetricSums]],
    state: TrainState,
) -> Any:
    """Jit `train_step`: it takes the state's memory, and the new state lies as `state` does.

    Without the second XLA may place an array elsewhere (mlm/bias under fsdp), and the next step
    compiles again. `state` may be abstract (ShapeDtypeStructs with shardings).
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))


def warn_of_recompilation(step: Any, at: int, programs: int = 1) -> None:
    """Warn where a jitted `step` has been compiled more than `programs` times by step `at`.

    Shapes, dtypes or placement have changed on the way then.
    """
    compiled = step._cache_size()
    if compiled > programs:
        logging.warning(
            'the train step had been compiled %d times by step %d: each costs a pause', compiled, at
        )


def make_eval_step(objective: Objective) -> Callable[[Any, Batch], MetricSums]:
    """Return step(params, batch) -> {metric: (sum, weight)}, without dropout."""

    def eval_step(params: Any, batch: Batch) -> MetricSums:
        return objective.sums(params, batch, None)

    return eval_step
