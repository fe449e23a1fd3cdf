"""A compiled function with its weights on the device, for records that come by and by.

Owns which rows go together there: a few lengths and batch sizes, so that few programs are made. How
a batch is collated and run is finetuning/data_collator.py's. Must not know what the function
computes.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.conversion import serving
from bert_jax.costs.step_costs import count_held_bytes
from bert_jax.input_pipeline.tasks.base import Arrays, get_row_lengths
from bert_jax.mesh import construction, sharding
from bert_jax.model import layout, partition
from bert_jax.runs.finetuning.data_collator import (
    DataCollator,
    PlannedBatch,
    Result,
    counted_jit,
    run,
)

# Doubling: at most half of a longer row is padding, and few programs are compiled.
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
# On a CPU padding costs more than a program does, once it has run a few times: four lengths to each
# doubling, of which an eighth is padding.
_FINE = tuple(sorted({16, 24, *(n * quarter // 4 for n in LENGTHS for quarter in range(4, 8))}))
# Rows of the batches that what is left over goes in.
_FEW = {'cpu': 4, 'gpu': 8, 'tpu': 8}
# Of a whole batch. What a CPU computes of a few hundred tokens stays in its caches.
_TOKENS = {'cpu': 512, 'gpu': 32768, 'tpu': 32768}

# Batches that a CPU works on at once: while one of them uses a single core another has the others.
_AT_ONCE = 2

_process: list[int] = []  # the one that the devices were first used in


def check_process() -> None:
    """Raise UserError in a process that was forked from the one whose devices are used."""
    # jax would hang in it.
    if _process and _process[0] != os.getpid():
        raise UserError(
            'this process was forked from one in which a model is on the devices, and jax would'
            ' hang in it: start processes by multiprocessing.get_context("spawn"), and load the'
            ' model in each of them'
        )
    _process[:] = [os.getpid()]


class DeviceWeights:
    """Arrays of models on the devices, each of them once, however many models have it."""

    def __init__(self, compute_dtype: DTypeLike = 'float32'):
        """Hold none yet; compute_dtype: arithmetic of the layers, for `serving.cast_stored`."""
        self._compute_dtype = compute_dtype
        # Arrays of the host and the same on the devices, by the identity of the former.
        self._placed: dict[Any, tuple[np.ndarray, jax.Array]] = {}

    def place(self, params: Any) -> tuple[Any, int]:
        """Put numpy `params` on the devices; return them, and the bytes that this adds on each.

        Arrays that are there are not put there again.
        """
        added = 0

        def place_array(path: Any, array: np.ndarray, shard: jax.sharding.NamedSharding) -> Any:
            nonlocal added
            # Blocks are views of a stack, new ones at each call: they are known by their memory.
            key = (array.ctypes.data, array.shape) if isinstance(array, np.ndarray) else id(array)
            if key not in self._placed:
                kept = serving.cast_stored(sharding.format_path(path), array, self._compute_dtype)
                self._placed[key] = array, jax.device_put(kept, shard)
                added += count_held_bytes(self._placed[key][1])
            return self._placed[key][1]

        mesh = construction.make_mesh(RuntimeConfig())
        params = layout.separate_blocks(params)
        shards = partition.choose_shardings(params, mesh)
        return jax.tree_util.tree_map_with_path(place_array, params, shards), added


@functools.cache
def _get_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, 'inference')


class InferenceEngine:
    """A function of (params, batch), over all devices, the rows split among them.

    A program is compiled for each length that comes up, in at most three batch sizes: one row, a
    few, and as many as make a full batch.

    Attributes:
      max_length: the longest row there is.
      compilations: how many programs were made, under 'predict'.
      added_bytes: what its weights take on each device, but for those that were there.
    """

    def __init__(
        self,
        function: Callable[[Any, dict[str, jax.Array]], Any],
        params: Any,
        max_length: int,
        inputs: Callable[[Arrays], Arrays] = lambda batch: batch,
        weights: DeviceWeights | None = None,
    ):
        """Put the weights on the devices.

        Args:
          function: what is computed.
          params: its weights, numpy arrays.
          max_length: the longest row there is.
          inputs: makes what the function reads of a batch, as DataCollator has it.
          weights: what is on the devices; those of `params` that are not yet are added.
        """
        self.max_length = max_length
        self.compilations: collections.Counter[str] = collections.Counter()

        check_process()

        # All devices by default: what a model was trained on says nothing of where it serves.
        self._collate = DataCollator(construction.make_mesh(RuntimeConfig()), inputs)
        self._params, self.added_bytes = (weights or DeviceWeights()).place(params)
        self._function = counted_jit(function, self.compilations, 'predict')

        # The longest row closes the list, whether it is one of them or not.
        self._backend = jax.default_backend()
        lengths = _FINE if self._backend == 'cpu' else LENGTHS
        self._lengths = np.array([n for n in lengths if n < max_length] + [max_length])

    def __call__(self, rows: Arrays) -> Iterable[Result]:
        """Start the function on all rows, without waiting for it; `gather` does.

        rows: ROW_KEYS [N, S], cut to the batch's length, and other arrays [N, ...] as they are.
        """
        check_process()

        # A list, so that all batches are sent before anyone waits for the first.
        plan = list(self._plan(get_row_lengths(rows)))
        if len(plan) == 1 or self._backend != 'cpu' or self._collate.mesh.size > 1:
            return list(run(self._function, self._params, rows, plan, self._collate))
        started = [_get_pool().submit(self._answer, rows, planned) for planned in plan]
        return (future.result() for future in started)

    def _answer(self, rows: Arrays, planned: PlannedBatch) -> Result:
        """Run the function on a batch in a thread of its own, and wait for it."""
        # Where two threads meet a new shape, jax makes one program.
        (result,) = run(self._function, self._params, rows, [planned], self._collate)
        return jax.block_until_ready(result)

    def _plan(self, lengths: np.ndarray) -> Iterator[PlannedBatch]:
        """Plan batches of rows with these many tokens [N], longer ones first."""
        # What a program takes is a multiple of the devices.
        devices = self._collate.mesh.size
        order = np.argsort(-lengths, kind='stable')
        bucket = np.searchsorted(self._lengths, lengths[order])
        while len(order):
            # The shortest bucket that holds the longest row; what follows it comes along, so that
            # only the last batch is not full.
            length = int(self._lengths[bucket[0]])
            # Longer rows, fewer of them: about the same number of tokens, and so of memory.
            full = max(_TOKENS[self._backend] // length, 1)
            full = 1 << (full.bit_length() - 1)
            # A full batch where half of its rows are at least half as long: the few long rows that
            # there may be must not draw many short ones along. Else a few at a time, and a single
            # row (the common question) by itself, without padding.
            if len(order) > full // 2 and 2 * lengths[order[full // 2]] >= length:
                size = full
            elif len(order) == 1:
                size = 1
            else:
                size = min(_FEW[self._backend], full)
            yield PlannedBatch(order[:size], length, -(-size // devices) * devices)
            order, bucket = order[size:], bucket[size:]
