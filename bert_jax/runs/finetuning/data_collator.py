"""Rows of any length through a compiled function: the one way in which splits are predicted, words
encoded and records answered.

Owns how the rows of a batch are cut, filled up, placed on the mesh and run, and how the results
come back in the rows' order. Which rows go together is a plan: `by_length` makes one for rows that
are all known, bert_jax/inference/bucketing.py for rows that come by and by. Must not know what the
function computes.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays
from bert_jax.input_pipeline.tasks.batching import length_groups
from bert_jax.mesh import sharding

# Tokens in an evaluation batch. No gradients are kept, so it may be larger than a training batch;
# on a CPU what stays in the cache is faster (BERT-tiny, S=64: 4096 takes 0.4 of the time of 16384).
_EVAL_TOKENS = {'cpu': 4096, 'gpu': 65536, 'tpu': 65536}


class PlannedBatch(NamedTuple):
    """Rows that go together.

    Attributes:
      rows: their places among all rows, int64 [n].
      length: the positions that their inputs are cut to.
      size: how many rows the program takes, n or more: copies of the last row fill it up.
    """

    rows: np.ndarray
    length: int
    size: int


class Result(NamedTuple):
    """What the function gave for a batch.

    Attributes:
      rows: the places of its rows, int64 [n].
      outputs: arrays on the device, [size, ...]: first those of the rows, then of what fills up.
    """

    rows: np.ndarray
    outputs: dict[str, jax.Array]


def counted_jit(
    function: Callable, counts: collections.Counter, name: str, **options: Any
) -> Callable:
    """`jax.jit(function, **options)`, every compilation counted under `name`."""

    def traced(*arguments):
        counts[name] += 1  # runs when jit traces, which is once for each shape of the arguments
        return function(*arguments)

    return jax.jit(traced, **options)


def eval_batch_size(mesh: jax.sharding.Mesh, length: int, rows: int) -> int:
    """Rows, of `length` tokens each, of an evaluation batch of at most about _EVAL_TOKENS.

    A multiple of the devices, with as little padding as that allows.
    """
    # Rows are split over these two axes; `model` has the same rows on all its devices.
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    # As few batches as stay within the tokens, then the rows spread evenly over them, rounded up to
    # whole shards: the last batch is nearly as full as the first.
    batches = -(-rows * length // _EVAL_TOKENS[jax.default_backend()])
    return -(-rows // (batches * shards)) * shards


def by_length(
    features: Arrays, lengths: int, mesh: jax.sharding.Mesh, wanted: np.ndarray | None = None
) -> Iterator[PlannedBatch]:
    """Batches of rows of like length, in at most `lengths` lengths, shorter ones first.

    features: INPUT_KEYS [N, S] or, of a choice, [N, C, S]. With `wanted`, bool [N], only those rows
    are planned, in the lengths and sizes that all rows together have, so that doing the rest later
    compiles nothing new.
    """
    _, *inputs, _ = features['input_ids'].shape  # () or, of a choice, (C,)
    for length, rows in length_groups(features, lengths):
        # The size follows from all rows, before `wanted` thins them out: the program stays the
        # same.
        size = eval_batch_size(mesh, math.prod(inputs) * length, len(rows))
        rows = rows if wanted is None else rows[wanted[rows]]
        for begin in range(0, len(rows), size):
            yield PlannedBatch(rows[begin : begin + size], length, size)


def place_global(batch: Arrays, mesh: jax.sharding.Mesh, size: int) -> dict[str, jax.Array]:
    """A whole batch of `size` rows, of which each process puts its own on its devices."""
    # Row ranges [a, b) of this process; several where its devices are not neighbours in the mesh.
    local = sharding.local_rows(mesh, size)
    own = {name: np.concatenate([value[a:b] for a, b in local]) for name, value in batch.items()}
    return sharding.place(own, mesh, size)


def run(
    function: Callable[[Any, dict[str, jax.Array]], dict[str, jax.Array]],
    params: Any,
    features: Arrays,
    plan: Iterable[PlannedBatch],
    mesh: jax.sharding.Mesh,
    inputs: Callable[[Arrays], Arrays] | None = None,
) -> Iterator[Result]:
    """The results of `function(params, batch)` for each batch of the plan, in its order.

    A result is yielded when the device has begun with it, not when it is done: whoever takes all
    before reading any keeps the device busy.

    features: of INPUT_KEYS [N, ..., S], which are cut to a batch's length, and other arrays
    [N, ...], which are not. `inputs` makes what the function reads of a batch of them; without it
    that is the batch.
    """
    for rows, length, size in plan:
        # Copies of a real row, not zeros: they cannot make NaN, and `gather` drops them again.
        filled = np.concatenate([rows, np.repeat(rows[-1:], size - len(rows))])
        batch = {
            name: value[filled, ..., :length] if name in INPUT_KEYS else value[filled]
            for name, value in features.items()
        }

        # After the cut: what `inputs` looks up (states of words) is then no longer than needed.
        model_inputs = inputs(batch) if inputs else batch
        with jax.set_mesh(mesh):
            outputs = function(params, place_global(model_inputs, mesh, size))
        yield Result(rows, outputs)


def gather(results: Iterable[Result], count: int, positions: int = 0) -> Arrays:
    """The outputs of all `count` rows in their order, [count, ...], on the host.

    Where batches differ in the shape of a row's output, all have the largest, filled up with zeros
    at the end. With `positions` every output is of every position, [count, S, ...], and S is at
    least that.
    """
    # Waits here for the device, once all batches are on their way.
    fetched = [(rows, jax.device_get(outputs)) for rows, outputs in results]
    gathered: Arrays = {}
    for name in fetched[0][1] if fetched else ():
        # Batches of different length differ in their outputs' axes: each output gets the largest.
        shapes = [outputs[name].shape[1:] for _, outputs in fetched]
        shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
        if positions:
            shape[0] = max(shape[0], positions)
        gathered[name] = np.zeros((count, *shape), fetched[0][1][name].dtype)

        # The rows that fill up come last, and are left out.
        for rows, outputs in fetched:
            value = outputs[name][: len(rows)]
            corner: tuple[Any, ...] = tuple(slice(size) for size in value.shape[1:])
            gathered[name][(rows, *corner)] = value
    return gathered
