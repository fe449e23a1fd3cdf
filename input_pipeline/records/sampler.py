"""Samplers: which record is in which row of an endless run of epochs, and which rows a step reads.

An epoch is a permutation of all records, and the next follows without a gap, so a batch may hold
the end of one and the start of the next. Which record is row r is arithmetic in (seed, r), and so
are the rows of a step where batches grow (`Growth`): to resume is to seek, and any number of
processes that ask for any rows see one order. Records lie in blocks that are read as a whole; a
sampler names a record by its block and its offset there. This file must not know where blocks lie,
nor what is read.

Runs depend on a sampler for as long as they live: none is ever changed, a better one gets a name.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from bert_jax.configs.phases import count_grown_rows
from bert_jax.input_pipeline.randomness import digest64, mix

_WINDOW = 256  # blocks that take turns, where there are so many


class Sampler(ABC):
    """An order of the records of blocks of the given sizes [K], decided by `seed`."""

    # Blocks that rows which follow each other come from at most, as long as they are few.
    open_blocks: int

    def __init__(self, sizes: np.ndarray, seed: int):
        self._sizes, self._seed = sizes, seed
        self.records = int(sizes.sum())

    def _permuted(self, name: int) -> np.ndarray:
        """Return the blocks in the order of an epoch, whose randomness has that name."""
        # Sorting by mixed numbers is a permutation that needs no state. Stable, here and below, so
        # that ties fall alike everywhere.
        return np.argsort(mix(np.arange(len(self._sizes)), name), kind='stable')

    def indices(self, rows: np.ndarray) -> np.ndarray:
        """Return [2, N]: the block of each row [N], and the offset of its record in that block.

        Row 0 is the first of the first epoch.
        """
        indices, epochs = np.empty((2, len(rows)), np.int64), rows // self.records
        for epoch in np.unique(epochs).tolist():
            member = epochs == epoch
            indices[:, member] = self._indices_in(epoch, rows[member] - epoch * self.records)
        return indices

    @abstractmethod
    def _indices_in(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        """Return `indices` for rows that are counted from the start of their epoch."""


class SpreadSampler(Sampler):
    """Blocks take turns, 256 at a time, and each gives one record a turn.

    An epoch is a permutation of the blocks, cut into windows of 256 to 511 of them (one window
    where there are fewer). In a window each block's records come in an order of their own, and are
    spread evenly over all of the window's rows; where in its turn a block comes is random. So any
    256 rows that follow each other in a window are of different blocks, but for those at the end of
    a shard, which may be smaller; and the records of a batch meet again in the next epoch no more
    often than in a permutation of all records.
    """

    def __init__(self, sizes: np.ndarray, seed: int):
        super().__init__(sizes, seed)
        windows = max(1, len(sizes) // _WINDOW)
        self._borders = np.arange(windows + 1) * len(sizes) // windows  # in permuted blocks
        self.open_blocks = int(np.diff(self._borders).max())

        # Two, because a batch may end one and begin the next.
        self._epoch = functools.lru_cache(2)(self._make_epoch)
        self._window = functools.lru_cache(2)(self._make_window)

    def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return permuted blocks [K], first row of each window, the name of the randomness."""
        name = digest64('spread', self._seed, epoch)
        blocks = self._permuted(name)
        ends = np.concatenate([[0], np.cumsum(self._sizes[blocks])])
        return blocks, ends[self._borders[:-1]], name

    def _make_window(self, epoch: int, window: int) -> np.ndarray:
        """Return `indices` of all rows of a window."""
        permuted, _, name = self._epoch(epoch)
        blocks = permuted[self._borders[window] : self._borders[window + 1]]
        sizes, salts = self._sizes[blocks], mix(blocks, name)

        # Record by record, block after block: which of the window's blocks, and the offset in it.
        turn = np.repeat(np.arange(len(blocks)), sizes)
        offset = np.arange(len(turn)) - np.repeat(np.cumsum(sizes) - sizes, sizes)

        # Each block's own permutation: sorted by block and then by mixed numbers, whose low bits
        # make room for the block (there are fewer than 512).
        keys = turn.astype(np.uint64) << np.uint64(55) | mix(offset, salts[turn]) >> np.uint64(9)
        shuffled = offset[np.argsort(keys, kind='stable')]

        # Its k-th record of n comes at (k + phase) / n of the window, with a phase in [0, 1) for
        # each block: as whole numbers, in units of 2**-32, so that no machine rounds otherwise.
        phase = (mix(salts, 0) >> np.uint64(32)).astype(np.int64)
        when = ((offset << 32) + phase[turn]) // sizes[turn]
        rows = np.argsort(when, kind='stable')
        return np.stack([blocks[turn[rows]], shuffled[rows]])

    def _indices_in(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        indices, starts = np.empty((2, len(rows)), np.int64), self._epoch(epoch)[1]
        windows = np.searchsorted(starts, rows, side='right') - 1
        for window in np.unique(windows).tolist():
            member = windows == window
            indices[:, member] = self._window(epoch, window)[:, rows[member] - starts[window]]
        return indices


class BlocksSampler(Sampler):
    """Block after block: an epoch permutes the blocks, and the records inside each.

    The order of runs that began before there was another. It reads the fewest blocks, but records
    of one block come together in every epoch: of those that share a batch of 256, half do again in
    the next epoch.
    """

    open_blocks = 1

    def __init__(self, sizes: np.ndarray, seed: int):
        super().__init__(sizes, seed)
        self._epoch = functools.lru_cache(2)(self._make_epoch)

    def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return permuted blocks [K], first row of each [K], the name of the randomness."""
        name = digest64('records', self._seed, epoch)
        order = self._permuted(name)
        sizes = self._sizes[order]
        return order, np.cumsum(sizes) - sizes, name

    def _indices_in(self, epoch: int, rows: np.ndarray) -> np.ndarray:
        # Row -> turn (which of the permuted blocks) -> offset in that block's own permutation.
        order, starts, name = self._epoch(epoch)
        turn = np.searchsorted(starts, rows, side='right') - 1

        # In order within the block; then permuted inside, once for each block that is touched.
        offsets, blocks = rows - starts[turn], order[turn]
        for block in np.unique(blocks).tolist():
            inner = np.argsort(mix(np.arange(self._sizes[block]), mix(block, name)), kind='stable')
            member = blocks == block
            offsets[member] = inner[offsets[member]]
        return np.stack([blocks, offsets])


# By the names of the setting record_order.
SAMPLERS: dict[str, type[Sampler]] = {'spread': SpreadSampler, 'blocks': BlocksSampler}


class Growth(NamedTuple):
    """A batch of `first` rows for `steps` steps, of 2 * first for as many, and so on to `full`.

    parts: how many micro-batches the places of a batch are cut into, place p into micro-batch
    p % parts (bert_jax/train/step.py). The first ones hold the rows, so that a small step makes
    fewer of them. `first` must be a multiple of full / parts, and divide `full`.
    """

    first: int
    steps: int
    full: int
    parts: int

    def size(self, step: int) -> int:
        """Return how many rows a step reads."""
        return min(self.first * (1 + step // self.steps), self.full)

    def before(self, step: int) -> int:
        """Return how many rows all steps before this one read."""
        return count_grown_rows(self.first, self.steps, self.full, step)

    def rows(self, step: int, places: np.ndarray) -> np.ndarray:
        """Return which row of the order lies at each place of the batch."""
        parts = self._parts(step)
        row = places // self.parts * parts + places % self.parts % parts
        return self.before(step) + row

    def weights(self, step: int, places: np.ndarray) -> np.ndarray:
        """Return 1 for each place whose row counts, 0 for copies; float32."""
        return (places % self.parts < self._parts(step)).astype(np.float32)

    def _parts(self, step: int) -> int:
        """Return how many micro-batches hold rows."""
        return self.parts * self.size(step) // self.full
