"""Rows of any length, bucketed by length, collated to batches and run through a compiled function.

The one way in which splits are predicted, words encoded and records answered. Owns how the rows of
a batch are cut, filled up, placed on the mesh and run, and how the results come back in the rows'
order. Which rows go together is a plan: `bucket_by_length` makes one for rows that are all there,
bert_jax/inference/engine.py for rows that come by and by. Batches for training, in an order of
their own, are input_pipeline/tasks/batching.py's. Must not know what the function computes.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.input_pipeline.tasks.base import ROW_KEYS, Arrays
from bert_jax.input_pipeline.tasks.batching import group_by_length
from bert_jax.mesh import sharding

# Tokens in an evaluation batch. No gradients are kept, so it may be larger than a training batch;
# on a CPU what stays in the cache is faster (BERT-tiny, S=64: 4096 takes 0.4 of the time of 16384).
_EVAL_TOKENS = {'cpu': 4096, 'gpu': 65536, 'tpu': 65536}


class PlannedBatch(NamedTuple):
    """Rows that go together.

    Attributes:
      rows: their indices among all rows, int64 [n].
      length: the positions that their inputs are cut to.
      size: how many rows the program takes, n or more: copies of the last row fill it up.
    """

    rows: np.ndarray
    length: int
    size: int


class Result(NamedTuple):
    """What the function gave for a batch.

    Attributes:
      rows: the indices of its rows, int64 [n].
      outputs: arrays on the device, [size, ...]: first those of the rows, then of what fills up.
    """

    rows: np.ndarray
    outputs: dict[str, jax.Array]


class DataCollator(NamedTuple):
    """Makes a batch on the mesh of the rows that a plan puts together.

    Attributes:
      mesh: the devices.
      inputs: makes what the function reads of a batch of rows, as `word_vectors.inputs` does.
    """

    mesh: Mesh
    inputs: Callable[[Arrays], Arrays] = lambda batch: batch

    def __call__(self, features: Arrays, plan: PlannedBatch) -> dict[str, Any]:
        """Return the batch of some rows of `features`.

        Args:
          features: ROW_KEYS [N, ..., S], which are cut to the batch's length, and other arrays
            [N, ...], which are not.
          plan: which rows, how long, how many.
        """
        # Copies of a real row, not zeros: they cannot make NaN, and `gather` drops them again.
        rows = np.concatenate([plan.rows, np.repeat(plan.rows[-1:], plan.size - len(plan.rows))])
        batch = {
            name: value[rows, ..., : plan.length] if name in ROW_KEYS else value[rows]
            for name, value in features.items()
        }

        # After the cut: what `inputs` looks up (states of words) is then no longer than needed.
        batch = self.inputs(batch)
        return place_global(batch, self.mesh, plan.size)


def counted_jit(
    function: Callable, counts: collections.Counter, name: str, **options: Any
) -> Callable:
    """Return `jax.jit(function, **options)`, every compilation counted under `name`."""

    def traced(*arguments):
        counts[name] += 1  # runs when jit traces, which is once for each shape of the arguments
        return function(*arguments)

    return jax.jit(traced, **options)


def eval_batch_size(mesh: Mesh, length: int, rows: int) -> int:
    """Return the rows, of `length` tokens each, of an evaluation batch of about _EVAL_TOKENS.

    It is a multiple of the devices, with as little padding as that allows.
    """
    # Rows are split over these two axes; `model` has the same rows on all its devices.
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    # As few batches as stay within the tokens, then the rows spread evenly over them, rounded up to
    # whole shards: the last batch is nearly as full as the first.
    batches = -(-rows * length // _EVAL_TOKENS[jax.default_backend()])
    return -(-rows // (batches * shards)) * shards


def bucket_by_length(
    features: Arrays, lengths: int, mesh: Mesh, wanted: np.ndarray | None = None
) -> Iterator[PlannedBatch]:
    """Plan batches of rows of like length, in at most `lengths` lengths, shorter ones first.

    Args:
      features: INPUT_KEYS [N, S] or, of a choice, [N, C, S].
      lengths: how many programs there may be.
      mesh: the devices, among which the rows of a batch are split.
      wanted: bool [N]; only those rows are planned, in the lengths and sizes that all rows together
        have, so that doing the others later compiles nothing new.
    """
    _, *inputs, _ = features['input_ids'].shape  # () or, of a choice, (C,)
    for length, rows in group_by_length(features, lengths):
        # The size follows from all rows, before `wanted` thins them out: the program stays the
        # same.
        size = eval_batch_size(mesh, math.prod(inputs) * length, len(rows))
        rows = rows if wanted is None else rows[wanted[rows]]
        for begin in range(0, len(rows), size):
            yield PlannedBatch(rows[begin : begin + size], length, size)


def place_global(batch: Arrays, mesh: Mesh, size: int) -> dict[str, Any]:
    """Put a whole batch of `size` rows on the mesh, each process its own rows on its devices."""
    # Row ranges [a, b) of this process; several where its devices are not neighbours in the mesh.
    ranges = sharding.list_local_rows(mesh, size)
    local = {name: np.concatenate([value[a:b] for a, b in ranges]) for name, value in batch.items()}
    return sharding.place_batch(local, mesh, size)


def run(
    function: Callable[[Any, dict[str, jax.Array]], dict[str, jax.Array]],
    params: Any,
    features: Arrays,
    plan: Iterable[PlannedBatch],
    collate: DataCollator,
) -> Iterator[Result]:
    """Yield the results of `function(params, batch)` for each batch of the plan, in its order.

    A result is yielded when the device has begun with it, not when it is done: whoever takes all
    before reading any keeps the device busy.
    """
    for planned in plan:
        batch = collate(features, planned)
        with jax.set_mesh(collate.mesh):
            outputs = function(params, batch)
        yield Result(planned.rows, outputs)


def gather(results: Iterable[Result], count: int, positions: int = 0) -> Arrays:
    """Return the outputs of all `count` rows in their order, [count, ...], on the host.

    Where batches differ in the shape of a row's output, all have the largest, filled up with zeros
    at the end.

    Args:
      results: those of every row once.
      count: how many rows there are.
      positions: where it is not 0, every output is of every position, [count, S, ...], and S is at
        least this.
    """
    # Waits here for the device, once all batches are on their way.
    fetched = [(rows, jax.device_get(outputs)) for rows, outputs in results]
    gathered: Arrays = {}
    for name in fetched[0][1] if fetched else ():
        # Batches of different length differ in their outputs' axes: each output gets the largest.
        shape = np.max([outputs[name].shape[1:] for _, outputs in fetched], axis=0).astype(int)
        if positions:
            shape[0] = max(shape[0], positions)
        gathered[name] = np.zeros((count, *shape), fetched[0][1][name].dtype)

        # The rows that fill up come last, and are left out.
        for rows, outputs in fetched:
            value = outputs[name][: len(rows)]
            corner: tuple[Any, ...] = tuple(slice(size) for size in value.shape[1:])
            gathered[name][(rows, *corner)] = value
    return gathered
