"""Blocks of a split: stretches of its files that are read as a whole.

Owns the numbering of a split's blocks over all its shards, reading one, and what to say of one that
cannot be read. It must not know in which order records are asked for, nor what they hold.
"""

from __future__ import annotations

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
            starts, ends = tfrecord.payload_bounds(text)
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
