"""Sorted runs: the files between the stages of the offline job.

A run is what one task of a stage made, sorted by 64-bit keys, so that a task of the next
stage takes one range of keys out of every run. A run lies on disk, or a stretch of it is in
memory and travels to another machine. This file owns both forms; it must not know what keys
mean nor who asks for which range.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.input_pipeline.examples.pairs import Documents
from bert_jax.input_pipeline.randomness import mix

# What every file between the stages ends with: the version of the form, and the CRC-32 of all that
# comes before.
_SEAL = b'\nbert_jax 1 crc32 %08x\n'
_SEAL_BYTES = len(_SEAL % 0)
_CHECKED_BYTES = 1 << 22  # read at once
# The last two: where the document ends.
DOCUMENT = np.dtype([('language', '<i8'), ('sentences', '<i8'), ('tokens', '<i8')])


def key_range(number: int, count: int) -> tuple[int, int]:
    """Return part `number` of `count` equal parts of the 64-bit keys: [first key, end)."""
    # In Python's integers: (number + 1) << 64 does not fit into 64 bits.
    return (number << 64) // count, ((number + 1) << 64) // count


def hash_sentences(tokens: np.ndarray, lengths: np.ndarray, salt: int = 0) -> np.ndarray:
    """Return uint64, a hash of each sentence's tokens in their order; each `salt` gives another."""
    starts = np.cumsum(lengths) - lengths
    hashes = np.empty(lengths.size, np.uint64)
    step = 1 << 16  # sentences at once, so that the 64-bit arrays stay small
    for first in range(0, lengths.size, step):
        sizes = lengths[first : first + step].astype(np.int64)
        begin = starts[first]
        starts_here = np.cumsum(sizes) - sizes

        # Each token mixed with its place in the sentence, so that their order counts in the sum.
        batch = tokens[begin : begin + sizes.sum()].astype(np.uint64)
        index = np.arange(batch.size) - np.repeat(starts_here, sizes)
        mixed = mix(batch, index + (salt << 32))
        hashes[first : first + step] = np.add.reduceat(mixed, starts_here)
    return hashes


def _within(keys: np.ndarray, low: int, high: int) -> tuple[int, int]:
    """Return the rows of sorted `keys` that lie in [low, high)."""
    # As uint64: numpy compares uint64 with a Python integer as floats, and rounds both.
    first = int(np.searchsorted(keys, np.uint64(low), 'left'))

    # The last range ends at 2**64, which is no uint64.
    if high >= 1 << 64:
        return first, keys.size
    return first, int(np.searchsorted(keys, np.uint64(high), 'left'))


# ---- files that say whether they are whole


class SealedFile:
    """A file that is being written, and the CRC-32 of what has been."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.crc = 0

    def write(self, content: bytes | memoryview) -> None:
        """Write what comes next."""
        self._file.write(content)
        self.crc = zlib.crc32(content, self.crc)


@contextlib.contextmanager
def sealed_file(path: str) -> Iterator[SealedFile]:
    """Return a file to write that appears whole, with a seal at its end.

    A full disk is an OSError that says so.
    """
    # Not flushed to the disk before it gets its name, which would take most of the time of a small
    # task: a loss of power may leave holes in it, and the seal tells.
    with atomic_file(epath.Path(path), durable=False) as file:
        sealed = SealedFile(file)
        yield sealed
        file.write(_SEAL % sealed.crc)


def unsealed(content: bytes) -> bytes:
    """Return what is before the seal of a whole file. Raises ValueError where that does not fit."""
    body, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    if seal != _SEAL % zlib.crc32(body):
        raise ValueError('its checksum is missing or does not fit')
    return body


def check(path: str) -> None:
    """Read a local file that `sealed_file` wrote. Raises UserError where its seal does not fit."""
    crc = 0
    with open(path, 'rb') as file:
        # In blocks, for a file may be larger than memory; less than 0 where the seal is cut itself.
        unread = os.fstat(file.fileno()).st_size - _SEAL_BYTES
        while block := file.read(min(max(unread, 0), _CHECKED_BYTES)):
            crc = zlib.crc32(block, crc)
            unread -= len(block)
        seal = file.read()
    if seal != _SEAL % crc:
        raise _damaged(path)


def save(path: str, array: np.ndarray) -> None:
    """Return a sealed .npy file. numpy reads it: it takes no notice of what follows the array."""
    # Header and data by hand: numpy's own writer tells a full disk only by a count of bytes.
    with sealed_file(path) as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, np.lib.format.header_data_from_array_1_0(array)
        )
        file.write(header.getvalue())
        file.write(np.ascontiguousarray(array).view(np.uint8).data)


def load(path: str) -> np.ndarray:
    """Return what `save` wrote: mapped into memory where it is local, else read and checked."""
    try:
        if '://' in path:
            content = unsealed(epath.Path(path).read_bytes())
            return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        # Mapped, because a task takes one range of keys, a small share of the file. It refuses
        # objects, which are what could run code.
        return np.lib.format.open_memmap(path, mode='r')
    except (ValueError, EOFError):
        raise _damaged(path) from None


def _damaged(path: str) -> UserError:
    return UserError(
        f'{path}: damaged, or shorter than it was made (did the machine lose power?): '
        'run the same command again, which begins anew'
    )


# ---- arrays as bytes, for another machine


def _dump(arrays: Iterable[np.ndarray]) -> bytes:
    """Return arrays as .npy files, one after the other."""
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _parse(content: bytes) -> list[np.ndarray]:
    """Return what `_dump` was given. Raises ValueError for objects."""
    file, arrays = io.BytesIO(content), []
    while file.tell() < len(content):
        arrays.append(np.load(file, allow_pickle=False))
    return arrays


# ---- the runs


@dataclass(frozen=True)
class DocumentRun:
    """Documents sorted by key: what stage 1 made of one unit, or a stretch of that."""

    keys: np.ndarray  # [N] uint64
    documents: np.ndarray  # [N] DOCUMENT
    lengths: np.ndarray  # [sentences] int32, tokens of each sentence
    tokens: np.ndarray  # [tokens] uint16, or int32 where the vocabulary is larger

    def dump(self) -> bytes:
        """Return the run as bytes, for another machine."""
        return _dump(getattr(self, name) for name in self.__dataclass_fields__)

    @classmethod
    def parse(cls, content: bytes) -> DocumentRun:
        """Return what `dump` made."""
        return cls(*_parse(content))

    @classmethod
    def open(cls, path: str) -> DocumentRun:
        """Return what `write` wrote, mapped into memory and not yet read."""
        return cls(*(load(f'{path}.{name}.npy') for name in cls.__dataclass_fields__))

    def write(self, path: str) -> None:
        """Write PATH.keys.npy and so on."""
        for name in self.__dataclass_fields__:
            save(f'{path}.{name}.npy', getattr(self, name))

    @classmethod
    def remove(cls, path: str) -> None:
        """Remove what `write` wrote, where it is there."""
        for name in cls.__dataclass_fields__:
            epath.Path(f'{path}.{name}.npy').unlink(missing_ok=True)

    def within(self, low: int, high: int) -> DocumentRun | None:
        """Return a copy of those whose keys lie in [low, high); None where there are none."""
        first, last = _within(self.keys, low, high)
        if first == last:
            return None

        # Ends are counted from the run's begin: where the document before ends, the stretch begins.
        documents = np.array(self.documents[first:last])
        sentence, token = 0, 0
        if first:
            sentence = int(self.documents['sentences'][first - 1])
            token = int(self.documents['tokens'][first - 1])

        # Copies, not views of a mapped file: the run is closed again, and what is mapped counts as
        # memory for as long as one view of it is held.
        lengths = np.array(self.lengths[sentence : documents['sentences'][-1]])
        tokens = np.array(self.tokens[token : documents['tokens'][-1]])

        # From here on counted from the begin of the stretch.
        documents['sentences'] -= sentence
        documents['tokens'] -= token
        return DocumentRun(np.array(self.keys[first:last]), documents, lengths, tokens)

    def summed(self, unk_id: int, line_sample: int) -> tuple[Counter[str], np.ndarray]:
        """Return the sums over the run, and the hashes of its sentences that are watched."""
        # A sample by the hash itself: all copies of a sentence are in it, or none. The sums as
        # Python's integers: numpy's have no form in JSON.
        hashes = hash_sentences(self.tokens, self.lengths)
        sentences = np.diff(self.documents['sentences'], prepend=0)
        sums = Counter(
            documents=self.keys.size,
            sentences=self.lengths.size,
            one_sentence_documents=int(np.sum(sentences == 1)),
            tokens=self.tokens.size,
            unknown_tokens=int(np.count_nonzero(self.tokens == unk_id)),
        )
        return sums, hashes[hashes % np.uint64(line_sample) == 0]


@dataclass
class Tokenised:
    """What one unit of input gave.

    Runs of documents, sums by name (e.g. 'documents'), the same by language, hashes of watched
    sentences, fingerprints of held-out documents.
    """

    runs: list[str] = field(default_factory=list)  # paths of DocumentRuns
    sums: Counter[str] = field(default_factory=Counter)
    languages: dict[str, Counter[str]] = field(default_factory=dict)
    # the runs of each language, where such sums are; of one unit they are all of its language
    runs_of: dict[str, list[str]] = field(default_factory=dict)
    # uint64 both: of sentences, and of documents
    lines: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))

    @classmethod
    def merged(cls, parts: Sequence[Tokenised]) -> Tokenised:
        """Return what several gave together."""
        together = cls([run for part in parts for run in part.runs])
        for part in parts:
            together.sums.update(part.sums)
            for language, sums in part.languages.items():
                together.languages.setdefault(language, Counter()).update(sums)
                together.runs_of.setdefault(language, []).extend(part.runs)
        together.lines = np.concatenate([together.lines, *(part.lines for part in parts)])
        together.held_out = np.concatenate([together.held_out, *(part.held_out for part in parts)])
        return together


@dataclass(frozen=True)
class RecordRun:
    """Records sorted by key: what stage 2 made of one bucket, or a stretch of that."""

    keys: np.ndarray  # [N] uint64
    offsets: np.ndarray  # [N + 1] int64, where each record begins, and the end
    payload: bytes | memoryview | str  # the records, or the file that holds them

    def dump(self) -> bytes:
        """Return a run that is in memory as bytes, for another machine."""
        assert not isinstance(self.payload, str), 'a file stays where it is'
        return _dump((self.keys, self.offsets, np.frombuffer(self.payload, np.uint8)))

    @classmethod
    def parse(cls, content: bytes) -> RecordRun:
        """Return what `dump` made."""
        keys, offsets, payload = _parse(content)
        return cls(keys, offsets, payload.data)

    @classmethod
    def open(cls, path: str) -> RecordRun:
        """Return what `make_records` wrote, not yet read."""
        return cls(load(f'{path}.keys.npy'), load(f'{path}.offsets.npy'), f'{path}.records')

    def within(self, low: int, high: int) -> RecordRun | None:
        """Read those whose keys lie in [low, high) into memory; None where none do."""
        first, last = _within(self.keys, low, high)
        if first == last:
            return None

        # Records of adjacent keys are neighbours: one read gets them all.
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


# ---- one range of keys out of all runs


def sorted_documents(inputs: Iterable[str | DocumentRun], low: int, high: int) -> Documents | None:
    """Return the documents of all units whose keys lie in [low, high); None where there are none.

    Those of a language are together.
    """
    # The range's stretch of every run; a run is open only while its stretch is copied.
    runs = (DocumentRun.open(run) if isinstance(run, str) else run for run in inputs)
    stretches = [stretch for run in runs if (stretch := run.within(low, high))]
    if not stretches:
        return None

    # One after the other: numbers of documents, of sentences, of tokens are sizes of their own, so
    # ends become counts, which can be rearranged.
    keys, lengths, tokens = (
        np.concatenate([getattr(run, name) for run in stretches])
        for name in ('keys', 'lengths', 'tokens')
    )
    languages = np.concatenate([run.documents['language'] for run in stretches])
    sentence_counts, token_counts = (
        np.concatenate([np.diff(run.documents[name], prepend=0) for run in stretches])
        for name in ('sentences', 'tokens')
    )
    del stretches  # or the bucket would be held three times below

    # An order that does not depend on which unit a document came from.
    order = np.lexsort((keys, languages))
    sentences = np.concatenate(
        [[0], np.cumsum(_gather(lengths, sentence_counts, order), dtype=np.int64)]
    )
    documents = np.concatenate([[0], np.cumsum(sentence_counts[order])])
    return Documents(
        _gather(tokens, token_counts, order), sentences, documents, keys[order], languages[order]
    )


def _gather(values: np.ndarray, counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return runs of `counts` values, rearranged."""
    ends = np.cumsum(counts)
    starts = ends - counts
    return np.concatenate(
        [values[s:e] for s, e in zip(starts[order].tolist(), ends[order].tolist())]
    )


def sorted_records(inputs: Sequence[str | RecordRun], low: int, high: int) -> list[bytes]:
    """Return the records of all buckets with keys in [low, high), in order of their keys."""
    # All records of the range as they are in their buckets, each a piece of bytes of its own.
    keys, texts = [], []
    for run in inputs:
        run = RecordRun.open(run) if isinstance(run, str) else run
        stretch = run.within(low, high)
        if stretch is not None:
            keys.append(stretch.keys)
            bounds = itertools.pairwise(stretch.offsets.tolist())
            texts += [stretch.payload[start:end] for start, end in bounds]
    if not keys:
        return []

    # Stable, so that equal keys keep the order of their buckets, whoever sorts.
    order = np.argsort(np.concatenate(keys), kind='stable')
    return [texts[i] for i in order.tolist()]
