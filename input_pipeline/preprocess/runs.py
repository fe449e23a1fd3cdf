"""Sorted runs: the files between the stages of the offline job.

A run is what one task of a stage made, sorted by 64-bit keys, so that a task of the next
stage takes one range of keys out of every run. A run lies on disk, or a stretch of it is in
memory and travels to another machine. This file owns both forms; it must not know what keys
mean nor who asks for which range.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from etils import epath

from configs.atomic import atomic_file
from configs.errors import UserError

# The last two: where the document ends.
DOCUMENT = np.dtype([('language', '<i8'), ('sentences', '<i8'), ('tokens', '<i8')])


def key_range(number: int, count: int) -> tuple[int, int]:
    """Part `number` of `count` equal parts of the 64-bit keys: [first key, end)."""
    return (number << 64) // count, ((number + 1) << 64) // count


def _within(keys: np.ndarray, low: int, high: int) -> tuple[int, int]:
    """The rows of sorted `keys` that lie in [low, high)."""
    first = int(np.searchsorted(keys, np.uint64(low), 'left'))
    return first, (
        keys.size if high >= 1 << 64 else int(np.searchsorted(keys, np.uint64(high), 'left'))
    )


def save(path: str, array: np.ndarray) -> None:
    """np.save, but the file appears whole, and a full disk is an OSError that says so."""
    with atomic_file(epath.Path(path), durable=False) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).view(np.uint8).data)


def load(path: str) -> np.ndarray:
    """What `save` wrote: mapped into memory where the file is local."""
    try:
        if '://' in path:
            text = io.BytesIO(epath.Path(path).read_bytes())
            return np.lib.format.read_array(text, allow_pickle=False)
        return np.lib.format.open_memmap(path, mode='r')  # refuses objects
    except (ValueError, EOFError):
        raise _damaged(path) from None


def _damaged(path: str) -> UserError:
    return UserError(
        f'{path}: damaged, or shorter than it was made (did the machine lose power?): '
        'run the same command again, which begins anew'
    )


@dataclass(frozen=True)
class DocumentRun:
    """Documents sorted by key: what stage 1 made of one unit, or a stretch of that."""

    keys: np.ndarray  # [N] uint64
    documents: np.ndarray  # [N] DOCUMENT
    lengths: np.ndarray  # tokens of each sentence
    tokens: np.ndarray

    @classmethod
    def open(cls, path: str) -> DocumentRun:
        """What `write` wrote, mapped into memory and not yet read."""
        return cls(*(load(f'{path}.{name}.npy') for name in cls.__dataclass_fields__))

    def write(self, path: str) -> None:
        """Writes PATH.keys.npy and so on."""
        for name in self.__dataclass_fields__:
            save(f'{path}.{name}.npy', getattr(self, name))

    @classmethod
    def remove(cls, path: str) -> None:
        """Removes what `write` wrote, where it is there."""
        for name in cls.__dataclass_fields__:
            epath.Path(f'{path}.{name}.npy').unlink(missing_ok=True)

    def within(self, low: int, high: int) -> DocumentRun | None:
        """A copy of those whose keys lie in [low, high); None where there are none."""
        first, last = _within(self.keys, low, high)
        if first == last:
            return None
        documents = np.array(self.documents[first:last])
        sentence, token = (
            int(self.documents[name][first - 1]) if first else 0 for name in ('sentences', 'tokens')
        )
        lengths = np.array(self.lengths[sentence : documents['sentences'][-1]])
        tokens = np.array(self.tokens[token : documents['tokens'][-1]])
        documents['sentences'] -= sentence
        documents['tokens'] -= token
        return DocumentRun(np.array(self.keys[first:last]), documents, lengths, tokens)


@dataclass(frozen=True)
class RecordRun:
    """Records sorted by key: what stage 2 made of one bucket, or a stretch of that."""

    keys: np.ndarray  # [N] uint64
    offsets: np.ndarray  # [N + 1] int64, where each record begins, and the end
    payload: bytes | str  # the records, or the file that holds them

    @classmethod
    def open(cls, path: str) -> RecordRun:
        """What `make_records` wrote, not yet read."""
        return cls(load(f'{path}.keys.npy'), load(f'{path}.offsets.npy'), f'{path}.records')

    def within(self, low: int, high: int) -> RecordRun | None:
        """A copy of those whose keys lie in [low, high), read into memory; None where none do."""
        first, last = _within(self.keys, low, high)
        if first == last:
            return None
        offsets = np.array(self.offsets[first : last + 1])
        start, end = int(offsets[0]), int(offsets[-1])
        if isinstance(self.payload, str):
            with epath.Path(self.payload).open('rb') as file:
                file.seek(start)
                payload = file.read(end - start)
            if len(payload) < end - start:
                raise _damaged(self.payload)
        else:
            payload = self.payload[start:end]
        return RecordRun(np.array(self.keys[first:last]), offsets - start, payload)
