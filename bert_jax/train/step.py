"""One optimizer step and one evaluation step, as pure functions to be jitted.

The train step: one objective, gradients summed over micro-batches whose losses are already divided
by the whole batch's denominators, clipped once, applied once; a non-finite step leaves the state as
it was but for the step counter, so that data and schedule go on. Reads nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import logging
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.configs.schema import ModelConfig, OptimizerConfig
from bert_jax.mesh.exchange import is_by_parts, per_data_shard
from bert_jax.mesh.sharding import constrain_rows, split_rows
from bert_jax.model.dropout import GENERATORS, DropoutRng, Generator
from bert_jax.model.partition import places_of
from bert_jax.train.losses import Batch, MetricSums, Objective
from bert_jax.train.masking import DynamicMasking
from bert_jax.train.optimizer import Optimizer, make_optimizer
from bert_jax.train.schedule import Hparams, learning_rate
from bert_jax.train.state import TrainState, joined

# Initialisation uses the seed's own key; everything else folds in a stream first.
_DROPOUT_STREAM = 1
_MASKING_STREAM = 2


def _key(seed: Any, stream: int, step: Any, generator: str = 'threefry2x32') -> jax.Array:
    """Return the key of one step and one use of random numbers."""
    stream_key = jax.random.fold_in(jax.random.key(seed, impl=generator), stream)
    return jax.random.fold_in(stream_key, step)


def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def make_train_step(
    objective: Objective,
    optimizer: Optimizer,
    accumulation: int = 1,
    masking: DynamicMasking | None = None,
    dropout_rng: str = 'threefry',
    shard_optimizer: bool = False,
    dtype: DTypeLike = jnp.float32,
    encoder: ModelConfig | None = None,
    grows: bool = False,
) -> Callable[[TrainState, Batch, Hparams], tuple[TrainState, MetricSums]]:
    """Return step(state, batch, hparams) -> (state, metrics as (sum, weight) pairs).

    Metrics are loss (what is minimised, in place of an objective's own `loss`), grad_norm,
    param_norm, bad_steps, and learning_rate of an optimizer by settings. Rows are counted by
    `input_ids` [B, ...].

    Args:
      objective: what is minimised.
      optimizer: its settings, or an optax one of your own, whose schedule counts the steps that
        were not discarded.
      accumulation: the micro-batches of a step, one after the other.
      masking: where given, the batch comes unmasked, and each step draws its own masks.
      dropout_rng: the generator of dropout's masks, one of GENERATORS.
      shard_optimizer: whether weights and moments are split over `data` (sharding.shards_update).
      dtype: of the objective's arithmetic, in which weights are then gathered.
      encoder: the encoder's shape, for an optimizer that measures whole tensors.
      grows: whether the last micro-batches may hold no rows (`example_weights` of 0): passed over.
    """
    generator = GENERATORS[dropout_rng]

    def train_step(state: TrainState, batch: Batch, h: Hparams) -> tuple[TrainState, MetricSums]:
        # A mask of dropout and of tokens is named by (seed, stream, step, row): nothing random is
        # carried from step to step, and a resumed run draws the same.
        key = _key(h.seed, _DROPOUT_STREAM, state.step, generator.implementation)
        rows_B, count = _numbers(batch, accumulation if grows else None)

        # Before the micro-batches are cut: masks must not depend on how the batch is summed.
        if masking is not None:
            batch = _masked(masking, batch, _key(h.seed, _MASKING_STREAM, state.step), rows_B)

        # Denominators are of the whole batch, known before any loss is: so a micro-batch's loss is
        # its share of the batch's, and accumulation changes nothing but memory.
        denominators = objective.weights(batch)
        summed = _gradient(objective, generator)

        # Rows lie along the first axis, [B, ...], or below the micro-batches' [n, B / n, ...].
        rows, cut = (batch, rows_B), P('data')
        if accumulation > 1:
            summed, rows = _total(summed, state.params), split_rows(rows, accumulation)
            cut = P(None, 'data')
        if not objective.whole_batch and is_by_parts(accumulation, shard_optimizer, dropout_rng):
            places = places_of(state.params, shard_optimizer)
            summed = per_data_shard(summed, places, cut, dtype)
        grads, sums = summed(state.params, (key, denominators, state.frozen, count), rows)
        return _applied(state, grads, sums, _loss(sums, denominators), optimizer, h, encoder)

    return train_step


def _masked(masking: DynamicMasking, batch: Batch, key: jax.Array, rows_B: jax.Array) -> Batch:
    """Return the batch with masks of this step's own."""
    masked = masking.draw(batch, key, constrain_rows(rows_B))
    return jax.tree.map(constrain_rows, masked)


def _numbers(batch: Batch, parts: int | None) -> tuple[jax.Array, jax.Array | None]:
    """Return the number of each row [B]; of a batch that grows also how many parts hold rows."""
    rows_B = jnp.arange(batch['input_ids'].shape[0], dtype=jnp.uint32)
    if parts is None:
        return rows_B, None
    # Numbered as in a batch of just these rows: how they are cut must not show.
    weighted = jnp.sum(batch['example_weights'] > 0, dtype=jnp.uint32)
    count = weighted // (len(rows_B) // parts)
    return rows_B // parts * count + rows_B % parts, count


def _loss(sums: MetricSums, denominators: Mapping[str, jax.Array]) -> jax.Array:
    """Return the loss of a batch, or the share of a part of it."""
    shares = [sums[name][0] / weight for name, weight in denominators.items()]
    return sum(shares[1:], shares[0])


def _gradient(objective: Objective, generator: Generator) -> Callable[..., Any]:
    """Return a function of (params, shared, rows) -> (gradients, metric sums).

    shared is what all micro-batches have in common: (key of dropout, denominators, frozen weights,
    how many micro-batches hold rows); rows is (batch, its rows' numbers).
    """

    def loss(params, shared, micro):
        (key, denominators, frozen, _), (rows, row_numbers) = shared, micro
        sums = objective.sums(
            joined(params, frozen),
            jax.tree.map(constrain_rows, rows),
            DropoutRng(key, row_numbers, generator),
        )
        return _loss(sums, denominators), sums

    return jax.grad(loss, has_aux=True)


def _total(gradient: Callable[..., Any], state_params: Any) -> Callable[..., Any]:
    """Return `gradient` summed over micro-batches, one after the other.

    Over the first ones alone where `shared` says how many, which is traced.
    """

    def total(params, shared, micros):
        # In the dtype of the weights, whatever they were gathered in.
        params = jax.tree.map(lambda x, kept: x.astype(kept.dtype), params, state_params)
        first_micro = jax.tree.map(lambda x: x[0], micros)
        # Zeros of the right shapes are where the sums begin.
        zeros = optax.tree.zeros_like(jax.eval_shape(gradient, params, shared, first_micro))
        if (count := shared[-1]) is not None:
            at = lambda i: jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), micros
            )
            add_at = lambda i, sofar: _add(sofar, gradient(params, shared, at(i)))
            return jax.lax.fori_loop(jnp.zeros_like(count), count, add_at, zeros)
        add_next = lambda sofar, micro: (_add(sofar, gradient(params, shared, micro)), None)
        return jax.lax.scan(add_next, zeros, micros)[0]

    return total


def _applied(
    state: TrainState,
    grads: Any,
    sums: MetricSums,
    loss: jax.Array,
    optimizer: Optimizer,
    h: Hparams,
    encoder: ModelConfig | None,
) -> tuple[TrainState, MetricSums]:
    """Return the state after an update by `grads`, if all is finite, and the step's metrics."""
    # Of the whole batch: the norm of the gradient before it is clipped, and whether it and the loss
    # are numbers. One NaN anywhere reaches the loss or the norm.
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)

    # The update is computed in any case and taken only where all is finite: the choice is made on
    # the device, so that the host need not look at this step before it sends the next.
    transformation = make_optimizer(optimizer, h, state.step, finite, encoder)
    updates, opt_state = transformation.update(grads, state.opt_state, state.params)
    keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
    params = keep(optax.apply_updates(state.params, updates), state.params)
    if not isinstance(optimizer, OptimizerConfig):  # those by settings keep their own state
        opt_state = keep(opt_state, state.opt_state)

    # In a row: the host stops a run that does not recover, which a single bad batch is not.
    bad_steps = jnp.where(finite, 0, state.bad_steps + 1)

    # Scalars of the step have weight 1, so that they are averaged like any other metric.
    scalars = {
        'loss': loss,
        'grad_norm': norm,
        'param_norm': optax.tree.norm(params),
        'bad_steps': bad_steps.astype(jnp.float32),
    }
    if isinstance(optimizer, OptimizerConfig):
        scalars['learning_rate'] = learning_rate(optimizer, h, state.step)
    # The step counts a discarded step too: data and schedule go on.
    after = state._replace(
        params=params,
        opt_state=opt_state,
        step=state.step + 1,
        bad_steps=bad_steps,
    )
    return after, {**sums, **{name: (value, jnp.ones(())) for name, value in scalars.items()}}


def jit_train_step(
    train_step: Callable[..., tuple[TrainState, MetricSums]],
    state: TrainState,
) -> Any:
    """`train_step` jitted: it takes the state's memory, and the new state lies as `state` does.

    Without the second XLA may place an array elsewhere (mlm/bias under fsdp), and the next step
    compiles again. `state` may be abstract (ShapeDtypeStructs with shardings).
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(
        train_step,
        donate_argnums=0,
        out_shardings=(shardings, None),
    )


def warn_of_recompilation(step: Any, at: int, programs: int = 1) -> None:
    """Says so where a jitted `step` has been compiled more than `programs` times by step `at`.

    Shapes, dtypes or placement have changed on the way then.
    """
    if step._cache_size() > programs:
        logging.warning(
            'the train step had been compiled %d times by step %d: each costs a pause',
            step._cache_size(),
            at,
        )


def make_eval_step(objective: Objective) -> Callable[[Any, Batch], MetricSums]:
    """-> step(params, batch) -> {metric: (sum, weight)}, without dropout."""
    return lambda params, batch: objective.sums(params, batch, None)
