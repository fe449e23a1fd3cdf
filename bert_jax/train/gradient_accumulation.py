"""Gradients of a batch that is too large for the devices: summed over micro-batches, in turn.

Losses of a micro-batch are divided by the whole batch's denominators, so sums of its gradients are
the whole batch's, and accumulation changes nothing but memory. Knows nothing of what is minimised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.train.losses.objective import Batch, MetricSums


class Shared(NamedTuple):
    """What all micro-batches of a step have in common.

    Attributes:
      dropout_key: the step's key of dropout.
      denominators: what each loss is divided by, of the whole batch.
      frozen: weights that are read and not trained, or None.
      filled: how many of the micro-batches hold rows, the first ones; None: all.
    """

    dropout_key: jax.Array
    denominators: dict[str, jax.Array]
    frozen: Any
    filled: jax.Array | None


# (params, shared, (rows, the rows' numbers in the batch)) -> (gradients, metric sums).
Gradient = Callable[[Any, Shared, Any], tuple[Any, MetricSums]]


def number_rows(batch: Batch) -> jax.Array:
    """Return the number of each row, uint32 [B]."""
    return jnp.arange(batch['input_ids'].shape[0], dtype=jnp.uint32)


def number_filled_rows(batch: Batch, micro_batches: int) -> tuple[jax.Array, jax.Array]:
    """Return the number of each row of a batch that grows, and how many micro-batches hold rows.

    Rows are numbered as in a batch of just those that count: how they are cut must not show.
    """
    rows_B = number_rows(batch)
    weighted = jnp.sum(batch['example_weights'] > 0, dtype=jnp.uint32)
    filled = weighted // (len(rows_B) // micro_batches)
    return rows_B // micro_batches * filled + rows_B % micro_batches, filled


def accumulate_gradients(gradient: Gradient, weights: Any) -> Gradient:
    """Return `gradient` summed over micro-batches, which lie along the first axis of its rows.

    Args:
      gradient: of one micro-batch.
      weights: the parameters as the state has them; gradients are added up in their dtypes.
    """

    def add(total: Any, more: Any) -> Any:
        return jax.tree.map(jnp.add, total, more)

    def sum_gradients(params: Any, shared: Shared, micros: Any) -> tuple[Any, MetricSums]:
        # In the dtype of the weights, whatever they were gathered in.
        params = jax.tree.map(lambda x, kept: x.astype(kept.dtype), params, weights)
        first_micro = jax.tree.map(lambda x: x[0], micros)
        # Zeros of the right shapes are where the sums begin.
        zeros = optax.tree.zeros_like(jax.eval_shape(gradient, params, shared, first_micro))

        if shared.filled is None:

            def add_next(total: Any, micro: Any) -> tuple[Any, None]:
                return add(total, gradient(params, shared, micro)), None

            total, _ = jax.lax.scan(add_next, zeros, micros)
            return total

        def add_at(i: jax.Array, total: Any) -> Any:
            micro = jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), micros
            )
            return add(total, gradient(params, shared, micro))

        return jax.lax.fori_loop(jnp.zeros_like(shared.filled), shared.filled, add_at, zeros)

    return sum_gradients
