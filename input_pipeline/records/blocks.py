"""Blocks of a split: stretches of its files that are read as a whole, and a cache of them decoded.

Owns the numbering of a split's blocks over all its shards, reading one, what to say of one that
cannot be read, and when a decoded one is made, ahead and in the background, and when it leaves. It
must not know in which order records are asked for, nor what they hold.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import shards, tfrecord


class Blocks:
    """The blocks of a split, from 0 on: those of its first shard, then those of the next.

    `blocks` [K] names the shard of each, and its number there; `sizes` [K] are their records: 256,
    but for the last block of each shard, which has what is left.
    """

    def __init__(self, directory: epath.PathLike, of: tuple[shards.ShardInfo, ...]):
        """Make the blocks of the shards `of` a split, which lie in `directory`."""
        self._directory = epath.Path(directory)
        # The shard of each block, and its number there.
        self.blocks = [(shard, number) for shard in of for number in range(len(shard.index))]
        self.sizes = np.array([shard.block_records(number) for shard, number in self.blocks])

    def read(self, block: int) -> bytes:
        """Return the bytes of a block, by one read.

        Raises:
          UserError: they cannot be read.
        """
        shard, number = self.blocks[block]
        start, end = shard.block(number)
        try:
            with (self._directory / shard.file).open('rb') as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError:
            raise UserError(
                f'{self._directory / shard.file}: gone since the start of the run: put it back and'
                ' resume'
            ) from None
        except OSError as error:
            fault = shards.unreadable(shard, error)
            raise UserError(f'{self._directory / str(fault)}: see to it and resume') from error

    def records(self, block: int, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return where in a block's bytes each record begins [N] and ends [N].

        Raises:
          UserError: a byte is not as it was written.
        """
        try:
            starts, ends = tfrecord.find_payloads(text)
        except tfrecord.CorruptRecord as error:
            raise self._fault(block, error.record, error.byte, error.reason) from None

        # All frames are sound, but there are too few: the file was cut between two of them.
        if len(starts) != self.sizes[block]:
            raise self._fault(block, len(starts), len(text), 'the file ends here')
        return starts, ends

    def fault(self, block: int, offset: int, reason: str) -> UserError:
        """Return the error for a whole record that holds what it should not."""
        starts, _ = self.records(block, self.read(block))
        return self._fault(block, offset, int(starts[offset] - starts[0]), reason)

    def _fault(self, block: int, offset: int, byte: int, reason: str) -> UserError:
        """Return the error for a record, given by its offset and byte in its block."""
        # Counted from the start of the file, as verify_data does.
        shard, number = self.blocks[block]
        record, byte = number * shards.BLOCK + offset, shard.block(number)[0] + byte
        fault = shards.Fault(shard.file, reason, record, byte)
        return UserError(
            f'{self._directory / str(fault)}: bert-preprocess verify {self._directory} lists'
            ' every fault'
        )


class _Group(NamedTuple):
    """Rows that are asked for together: their places in the cache, and the blocks on the way."""

    places: np.ndarray
    made: list[Future[None]]


class BlockCache:
    """Decoded blocks in one array, from which rows are taken; for one reader.

    Blocks are made in threads as far ahead as there is room. Each takes the slot of one that was
    asked for longest ago.
    """

    def __init__(
        self,
        make: Callable[[int, np.ndarray], None],
        sizes: np.ndarray,
        rows: np.ndarray,
        threads: int,
    ):
        """Make an empty cache.

        Args:
          make: fills the rows of a block, by its number; several threads call it at a time.
          sizes: [K], records of each block.
          rows: [M, BLOCK], room for as many blocks as are kept; where a group of rows needs more,
            the cache grows.
          threads: how many call `make`.
        """
        self._make, self._sizes, self._rows = make, sizes, rows
        # The slot of each block, or -1, and the other way round.
        self._slot_of, self._block_in = np.full(len(sizes), -1), np.full(len(rows), -1)
        self._asked = np.full(len(rows), -1)  # by which group last
        self._threads, self._closed = threads, False

    def rows(
        self, groups: Iterable[tuple[np.ndarray, np.ndarray] | np.ndarray], ahead: int
    ) -> Iterator[np.ndarray]:
        """Yield the rows of each group; to be called once.

        Args:
          groups: blocks [N] and offsets in them [N].
          ahead: how many groups are asked for before the first of them is waited for.
        """
        # No shutdown: a dropped pool ends its threads, and at the exit of the interpreter there is
        # nothing left to shut it down with.
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix='blocks')
        waiting: collections.deque[_Group] = collections.deque()
        try:
            for number, (blocks, offsets) in enumerate(groups):
                # Blocks that are there stay; the others come into the slots asked for longest ago,
                # once the groups that have rows in these have been given out.
                slots = self._slot_of[blocks]
                self._asked[slots[slots >= 0]] = number
                missing = np.unique(blocks[slots < 0])
                # The slots that were asked for longest ago, or all where there are fewer.
                last = min(len(missing), len(self._asked) - 1)
                free = np.argpartition(self._asked, last)[: len(missing)]
                while waiting and self._in_use(free, len(missing), number - len(waiting)):
                    yield self._take(waiting.popleft())
                if self._in_use(free, len(missing), number):
                    free = self._grow(len(missing))
                made = self._fill_slots(pool, free, missing, number)
                waiting.append(_Group(self._slot_of[blocks] * shards.BLOCK + offsets, made))
                if len(waiting) > ahead:
                    yield self._take(waiting.popleft())
            while waiting:
                yield self._take(waiting.popleft())
        finally:
            self._closed = True  # nobody waits for the blocks that are not made yet

    def _take(self, group: _Group) -> np.ndarray:
        """Return the rows of a group, once its blocks are there."""
        for future in group.made:
            future.result()
        # `take` copies a row as a whole, an index field by field: twice as long, or more.
        return self._rows.reshape(-1).take(group.places)

    def _fill_slots(
        self, pool: ThreadPoolExecutor, slots: np.ndarray, blocks: np.ndarray, number: int
    ) -> list[Future[None]]:
        """Give slots to blocks, and have these made; `number` is the group that asks for them."""
        replaced = self._block_in[slots]
        self._slot_of[replaced[replaced >= 0]] = -1
        self._slot_of[blocks], self._block_in[slots] = slots, blocks
        self._asked[slots] = number
        made = []
        for block, slot in zip(blocks.tolist(), slots.tolist(), strict=True):
            made.append(pool.submit(self._fill, block, self._rows[slot, : self._sizes[block]]))
        return made

    def _fill(self, block: int, rows: np.ndarray) -> None:
        if not self._closed:
            self._make(block, rows)

    def _in_use(self, free: np.ndarray, wanted: int, oldest: int) -> bool:
        """Tell whether the slots are too few, or the group `oldest` or a later one needs them."""
        return len(free) < wanted or bool((self._asked[free] >= oldest).any())

    def _grow(self, slots: int) -> np.ndarray:
        """Add slots while no block is on its way into an old one, and return their numbers."""
        # Shards of a few records have blocks of a few, so that a group may need many.
        old = len(self._rows)
        room = np.empty((slots, shards.BLOCK), self._rows.dtype)
        self._rows = np.concatenate([self._rows, room])
        self._block_in, self._asked = (
            np.pad(each, (0, slots), constant_values=-1) for each in (self._block_in, self._asked)
        )
        return np.arange(old, old + slots)
