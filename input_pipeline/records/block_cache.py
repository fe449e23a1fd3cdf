"""Blocks that are kept while rows of them are asked for: decoded, or as they were read.

Owns when a block is made, ahead and in the background, and when it leaves. It must not know where
blocks come from, nor what they hold.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from bert_jax.input_pipeline.records import shards


class BlockCache:
    """Decoded blocks in one piece of memory, from which rows are taken; for one reader.

    Blocks are made in threads as far ahead as there is room, and in the place of those that were
    asked for longest ago.
    """

    def __init__(
        self,
        make: Callable[[int, np.ndarray], None],
        sizes: np.ndarray,
        rows: np.ndarray,
        threads: int,
    ):
        """`make` fills the rows of a block, by its number; several threads call it at a time.

        sizes [K]: records of each block. rows [M, BLOCK]: room for as many blocks as are kept;
        where a group of rows needs more, there is more, elsewhere. threads: that call `make`.
        """
        most = len(rows)
        self._make, self._sizes, self._rows = make, sizes, rows
        # The slot of each block, or -1, and the other way round.
        self._slot_of, self._block_in = np.full(len(sizes), -1), np.full(most, -1)
        self._asked = np.full(most, -1)  # by which group last
        self._threads, self._left = threads, False

    def rows(
        self, groups: Iterable[tuple[np.ndarray, np.ndarray]], ahead: int
    ) -> Iterator[np.ndarray]:
        """The rows of each group of blocks [N] and places in them [N], which are asked for once.

        Up to `ahead` groups are asked for before the first of them is waited for.
        """
        try:
            yield from self._rows_of(groups, ahead)
        finally:
            self._left = True  # nobody waits for the blocks that are not made yet

    def _rows_of(
        self, groups: Iterable[tuple[np.ndarray, np.ndarray]], ahead: int
    ) -> Iterator[np.ndarray]:
        # No shutdown: a dropped pool ends its threads, and at the exit of the interpreter there is
        # nothing left to shut it down with.
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix='blocks')
        waiting: collections.deque[tuple[np.ndarray, list[Future[None]]]] = collections.deque()

        def first() -> np.ndarray:
            places, made = waiting.popleft()
            for future in made:
                future.result()
            # `take` copies a row as a whole, an index field by field: twice as long, or more.
            return self._rows.reshape(-1).take(places)

        for number, (blocks, places) in enumerate(groups):
            # Those that are there stay; the others come into the slots asked for longest ago, once
            # the groups that these hold rows of have been given out.
            slots = self._slot_of[blocks]
            self._asked[slots[slots >= 0]] = number
            missing = np.unique(blocks[slots < 0])
            count = len(missing)
            free = np.argpartition(self._asked, min(count, len(self._asked) - 1))[:count]
            while waiting and self._in_use(free, count, number - len(waiting)):
                yield first()
            if self._in_use(free, count, number):
                free = self._grow(count)

            there = self._block_in[free]
            self._slot_of[there[there >= 0]] = -1
            self._slot_of[missing], self._block_in[free], self._asked[free] = free, missing, number
            made = [
                pool.submit(self._fill, block, self._rows[slot, : self._sizes[block]])
                for block, slot in zip(missing.tolist(), free.tolist(), strict=True)
            ]
            waiting.append((self._slot_of[blocks] * shards.BLOCK + places, made))
            if len(waiting) > ahead:
                yield first()
        while waiting:
            yield first()

    def _fill(self, block: int, rows: np.ndarray) -> None:
        if not self._left:
            self._make(block, rows)

    def _in_use(self, free: np.ndarray, wanted: int, oldest: int) -> bool:
        """Whether these slots are too few, or the group `oldest` or a later one asked for them."""
        return len(free) < wanted or bool((self._asked[free] >= oldest).any())

    def _grow(self, slots: int) -> np.ndarray:
        """The numbers of so many new slots, made while no block is on its way into an old one."""
        # Shards of a few records have blocks of a few, so that a group may need many.
        old = len(self._rows)
        room = np.empty((slots, shards.BLOCK), self._rows.dtype)
        self._rows = np.concatenate([self._rows, room])
        self._block_in, self._asked = (
            np.concatenate([each, np.full(slots, -1)]) for each in (self._block_in, self._asked)
        )
        return np.arange(old, old + slots)


class LatestBlocks:
    """The records of the `most` blocks that were asked for last; several threads may ask."""

    def __init__(self, read: Callable[[int], list[bytes]], most: int, threads: int):
        """`read`: the serialised records of a block, by its number, called by so many threads."""
        self._read, self._most = read, most
        self._kept: collections.OrderedDict[int, Future[list[bytes]]] = collections.OrderedDict()
        self._lock = threading.Lock()
        # No shutdown: a dropped pool ends its threads.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix='blocks')

    def records(self, blocks: np.ndarray, places: np.ndarray) -> list[bytes]:
        """The serialised records at those places [N] of those blocks [N]."""
        # All are asked for before one is waited for. Held until the end of the call, whatever
        # other threads ask for meanwhile.
        each = blocks.tolist()
        with self._lock:
            asked = {block: self._ask(block) for block in dict.fromkeys(each)}
        payloads = {block: future.result() for block, future in asked.items()}
        return [payloads[block][place] for block, place in zip(each, places.tolist(), strict=True)]

    def _ask(self, block: int) -> Future[list[bytes]]:
        # Two threads that want the same block wait for the same read.
        if block not in self._kept:
            self._kept[block] = self._pool.submit(self._read, block)

        # The least recently asked for leaves first, so one that is asked for moves to the end.
        self._kept.move_to_end(block)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return self._kept[block]
