"""Blocks of a split: stretches of its files that are read as a whole, and kept while in use.

Owns the numbering of a split's blocks over all its shards, reading one, and what to say of one that
cannot be read. It must not know in which order records are asked for, nor what they hold.
"""

from __future__ import annotations

import collections
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from etils import epath

from configs.errors import UserError
from input_pipeline.records import frames, shards

_READERS = 8  # blocks that are read at a time: what is far away takes long to come


class Blocks:
    """The blocks of a split, from 0 on: those of its first shard, then those of the next.

    `sizes` [K] are their records: 256, but for the last block of each shard, which has what is
    left.
    """

    def __init__(self, directory: epath.PathLike, of: tuple[shards.ShardInfo, ...]):
        """`of`: the shards of the split that lie in `directory`."""
        self._directory, self._shards = epath.Path(directory), of
        self._shard_of = np.repeat(np.arange(len(of)), [len(s.index) for s in of])
        self._number_of = np.concatenate([np.arange(len(s.index)) for s in of])
        left = np.array([s.records for s in of])[self._shard_of] - self._number_of * shards.BLOCK
        self.sizes = np.minimum(left, shards.BLOCK)

    def read(self, block: int) -> list[bytes]:
        """The serialised records of a block, by one read.

        Raises UserError where a byte of it is not as it was written.
        """
        shard, number = self.place(block)
        start, end = shard.block(number)
        try:
            with (self._directory / shard.file).open('rb') as file:
                file.seek(start)
                text = file.read(end - start)
            payloads = frames.payloads(text)
        except FileNotFoundError:
            raise UserError(
                f'{self._directory / shard.file}: gone since the start of the run: put it back and'
                ' resume'
            ) from None
        except OSError as error:
            fault = shards.unreadable(shard, error)
            raise UserError(f'{self._directory / str(fault)}: see to it and resume') from error
        except frames.BadFrame as error:
            raise self._fault(block, error.record, error.byte, error.reason) from None

        # All frames are sound, but there are too few: the file was cut between two of them.
        if len(payloads) != self.sizes[block]:
            raise self._fault(block, len(payloads), len(text), 'the file ends here')
        return payloads

    def place(self, block: int) -> tuple[shards.ShardInfo, int]:
        """The shard of a block, and its number there."""
        return self._shards[self._shard_of[block]], int(self._number_of[block])

    def fault(self, block: int, place: int, reason: str) -> UserError:
        """What to say of a whole record that holds what it should not."""
        before = self.read(block)[:place]
        byte = sum(len(payload) + frames.FRAME_BYTES for payload in before)
        return self._fault(block, place, byte, reason)

    def _fault(self, block: int, place: int, byte: int, reason: str) -> UserError:
        """What to say of a record, given by its place and byte in its block."""
        # Counted from the start of the file, as verify_data does.
        shard, number = self.place(block)
        fault = shards.Fault(
            shard.file, number * shards.BLOCK + place, shard.block(number)[0] + byte, reason
        )
        return UserError(
            f'{self._directory / str(fault)}: python -m launch.verify_data {self._directory} lists'
            ' every fault'
        )


class LatestBlocks:
    """The blocks that were asked for last, `most` of them; several threads may ask."""

    def __init__(self, blocks: Blocks, most: int):
        self._blocks, self._most = blocks, most
        self._read: collections.OrderedDict[int, Future[list[bytes]]] = collections.OrderedDict()
        self._lock = threading.Lock()
        # No shutdown: a dropped pool ends its threads.
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix='blocks')

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
        if block not in self._read:
            self._read[block] = self._pool.submit(self._blocks.read, block)

        # The least recently asked for leaves first, so one that is asked for moves to the end.
        self._read.move_to_end(block)
        if len(self._read) > self._most:
            self._read.popitem(last=False)
        return self._read[block]
