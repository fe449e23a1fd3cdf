"""Rows of any length through a compiled function: padded to a few fixed lengths and batch sizes, so
few programs are made.

Owns which rows go together and how a batch is filled up. Must not know what the function computes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bert_jax.mesh import sharding
from configs.schema import RuntimeConfig
from input_pipeline.tasks.base import INPUT_KEYS
from launch.finetuning.evaluation import counted_jit, place

LENGTHS = (32, 64, 128, 256, 512)
_FEW = 8  # rows of the batches that what is left over goes in
_TOKENS = {'cpu': 4096, 'gpu': 32768, 'tpu': 32768}  # of a whole batch

Batches = list[tuple[np.ndarray, dict[str, jax.Array]]]


class Buckets:
    """A function of (params, batch), over all devices, the rows split among them.

    A program is compiled for each length that comes up, in at most three batch sizes: one row, a
    few, and as many as make a full batch.

    Attributes:
      max_length: the longest row there is.
      compilations: how many programs were made, under 'predict'.
    """

    def __init__(
        self, function: Callable[[Any, dict[str, jax.Array]], Any], params: Any, max_length: int
    ):
        self.max_length = max_length
        self.compilations: collections.Counter[str] = collections.Counter()
        self._mesh = sharding.make_mesh(RuntimeConfig())
        self._params = jax.device_put(params, sharding.shardings(params, self._mesh))
        self._function = counted_jit(function, self.compilations, 'predict')
        self._lengths = np.array(
            [length for length in LENGTHS if length < max_length] + [max_length]
        )

    def __call__(self, rows: dict[str, np.ndarray]) -> Batches:
        """Starts the function on all rows; -> (their places, outputs on the device, first the rows
        named) for each batch.

        rows: INPUT_KEYS [N, S], cut to the batch's length, and other arrays [N, ...] as they are.
        """
        lengths = rows['input_mask'].sum(axis=1)
        bucket = np.searchsorted(self._lengths, lengths)
        batches: Batches = []
        with jax.set_mesh(self._mesh):
            for number in np.unique(bucket):
                length = int(self._lengths[number])
                for places, size in self._batches(np.flatnonzero(bucket == number), length):
                    filled = np.concatenate([places, np.repeat(places[-1:], size - len(places))])
                    batch = {
                        name: value[filled, :length] if name in INPUT_KEYS else value[filled]
                        for name, value in rows.items()
                    }
                    batches.append(
                        (places, self._function(self._params, place(batch, self._mesh, size)))
                    )
        return batches

    def _batches(self, places: np.ndarray, length: int) -> Iterator[tuple[np.ndarray, int]]:
        """The places cut into batches, and the rows that the program takes, which are a multiple of
        the devices.
        """
        devices = self._mesh.size
        up = lambda rows: -(-rows // devices) * devices
        full = up(max(_TOKENS[jax.default_backend()] // length, 1))
        while len(places):
            size = full if len(places) >= full else 1 if len(places) == 1 else min(_FEW, full)
            yield places[:size], up(size)
            places = places[size:]


def gather(batches: Batches, rows: int, positions: int | None = None) -> dict[str, np.ndarray]:
    """The outputs of all rows in their order, [N, ...]; outputs of every position are brought to
    `positions` with zeros.
    """
    found: dict[str, np.ndarray] = {}
    for places, outputs in batches:
        for name, value in jax.device_get(outputs).items():
            shape = value.shape[1:] if positions is None else (positions, *value.shape[2:])
            whole = found.setdefault(name, np.zeros((rows, *shape), value.dtype))
            part = value[: len(places)]
            if positions is None:
                whole[places] = part
            else:
                whole[places, : part.shape[1]] = part
    return found
