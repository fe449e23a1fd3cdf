"""Sorted runs: the files between the stages of the offline job.

A run is what one task of a stage made: an Arrow table whose rows are in the order of its column
`key`, 64-bit numbers, so that a task of the next stage takes one range of keys out of every run. A
run lies on disk, or a stretch of it is in memory and travels to another machine. This file owns
both forms, and the columns that documents have; it must not know what keys mean nor who asks for
which range.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pyarrow as pa
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.input_pipeline.examples.documents import Documents, offsets
from bert_jax.input_pipeline.randomness import mix

# What every file between the stages ends with: the version of the form, and the CRC-32 of all that
# comes before.
_SEAL = b'\nbert_jax 2 crc32 %08x\n'
_SEAL_BYTES = len(_SEAL % 0)


def key_range(number: int, count: int) -> tuple[int, int]:
    """Return part `number` of `count` equal parts of the 64-bit keys: [first key, end)."""
    # In Python's integers: (number + 1) << 64 does not fit into 64 bits.
    return (number << 64) // count, ((number + 1) << 64) // count


# ---- files that say whether they are whole


@dataclass
class SealedFile:
    """A file that is being written, and the CRC-32 of what has been."""

    file: IO[bytes]
    crc: int = 0
    closed = False  # as Arrow asks of a file

    def write(self, content: bytes | memoryview) -> None:
        """Write what comes next."""
        self.file.write(content)
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
    # Mapped, for a file may be larger than memory.
    content = memoryview(pa.memory_map(path).read_buffer())
    if content[-_SEAL_BYTES:] != _SEAL % zlib.crc32(content[:-_SEAL_BYTES]):
        raise _damaged(path)


def _damaged(path: str) -> UserError:
    return UserError(
        f'{path}: damaged, or shorter than it was made (did the machine lose power?): '
        'run the same command again, which begins anew'
    )


# ---- runs

Inputs = Iterable[str | pa.Table]  # on disk, or as an engine has brought them here


def save(path: str, schema: pa.Schema, batches: Iterable[Mapping[str, Any]]) -> None:
    """Write a run as a sealed file, from columns by name, some rows at a time."""
    # As a stream, whose reader takes no notice of the seal that follows.
    with sealed_file(path) as file, pa.ipc.new_stream(file, schema) as writer:
        for columns in batches:
            writer.write_batch(pa.record_batch(list(columns.values()), list(columns)))


def load(path: str) -> pa.Table:
    """Return what `save` wrote: mapped into memory where it is local, else read and checked."""
    try:
        if '://' in path:
            return parse(unsealed(epath.Path(path).read_bytes()))
        # Mapped, because a task takes one range of keys, a small share of the file.
        return parse(pa.memory_map(path))
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's; Arrow's own have no number
            raise
        raise _damaged(path) from None


def dump(run: pa.Table) -> pa.Buffer:
    """Return a run as bytes, for another machine."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, run.schema) as writer:
        writer.write_table(run)
    return sink.getvalue()


def parse(content: bytes | pa.Buffer | pa.NativeFile) -> pa.Table:
    """Return what `dump` made."""
    return pa.ipc.open_stream(content).read_all()


def within(run: pa.Table, low: int, high: int) -> pa.Table:
    """Return the rows whose keys lie in [low, high)."""
    # As uint64: numpy compares uint64 with a Python integer as floats, and rounds both. The last
    # range ends at 2**64, which is no uint64.
    keys = run['key'].to_numpy()
    first = int(np.searchsorted(keys, np.uint64(low)))
    end = keys.size
    if high < 1 << 64:
        end = int(np.searchsorted(keys, np.uint64(high)))
    return run.slice(first, end - first)


def stretches(inputs: Inputs, low: int, high: int) -> Iterator[pa.Table]:
    """Yield the rows of each run whose keys lie in [low, high)."""
    for run in inputs:
        yield within(load(run) if isinstance(run, str) else run, low, high)


def together(inputs: Inputs, low: int, high: int) -> pa.Table:
    """Return the rows of all runs whose keys lie in [low, high), run after run."""
    # Copies, not views of mapped files: a file is closed again before the next one is opened.
    return pa.concat_tables(parse(dump(rows)) for rows in stretches(inputs, low, high))


KEYS = pa.schema([('key', pa.uint64())])  # a run of numbers alone
RECORDS = pa.schema([('key', pa.uint64()), ('record', pa.large_binary())])


def sorted_records(inputs: Inputs, low: int, high: int) -> list[bytes]:
    """Return the records of all buckets with keys in [low, high), in order of their keys."""
    keys: list[np.ndarray] = []
    records: list[bytes] = []
    for stretch in stretches(inputs, low, high):
        keys.append(stretch['key'].to_numpy())
        records += stretch['record'].to_pylist()

    # Stable, so that equal keys keep the order of their buckets, whoever sorts.
    return [records[i] for i in np.argsort(np.concatenate(keys), kind='stable').tolist()]


# ---- runs of documents


def save_documents(path: str, documents: Documents) -> None:
    """Write documents, sorted by name, as a run: what stage 1 made of one unit."""
    lengths = np.diff(documents.sentences).astype(np.int32)
    starts = documents.sentences[documents.documents]
    columns = {
        'key': pa.array(documents.names),
        'language': pa.array(documents.languages),
        'lengths': pa.LargeListArray.from_arrays(documents.documents, lengths),
        'tokens': pa.LargeListArray.from_arrays(starts, documents.tokens),
    }
    if documents.lines is not None:
        hashes = documents.lines.reshape(-1)
        columns['lines'] = pa.LargeListArray.from_arrays(2 * documents.documents, hashes)
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    save(path, schema, [columns])


def documents_of(run: pa.Table) -> Documents:
    """Return the documents of a run that has some; of one that was just loaded, mapped."""
    columns = (column.chunk(0) for column in run.combine_chunks().columns)
    names, languages, lengths, tokens, *lines = columns
    return Documents(
        tokens.flatten().to_numpy(),
        offsets(lengths.flatten()),
        offsets(lengths.value_lengths()),
        names.to_numpy(),
        languages.to_numpy(),
        lines[0].flatten().to_numpy().reshape(-1, 2) if lines else None,
    )


def sorted_documents(inputs: Inputs, low: int, high: int) -> Documents | None:
    """Return the documents of all units whose keys lie in [low, high); None where there are none.

    Those of a language are together.
    """
    # An order that does not depend on which unit a document came from.
    run = together(inputs, low, high)
    order = np.lexsort((run['key'], run['language']))
    return documents_of(run.take(order)) if run.num_rows else None


def hash_sentences(documents: Documents, salt: int = 0) -> np.ndarray:
    """Return uint64, a hash of each sentence's tokens in their order; each `salt` gives another.

    Of `lines` where there are some: of these, 1 and 2 have nothing in common.
    """
    if documents.lines is not None:
        return mix(documents.lines[:, salt % 2], salt)
    bounds = documents.sentences
    hashes = np.empty(bounds.size - 1, np.uint64)
    step = 1 << 16  # sentences at once, so that the 64-bit arrays stay small
    for first in range(0, hashes.size, step):
        here = bounds[first : first + step + 1]

        # Each token mixed with its place in the sentence, so that their order counts in the sum.
        batch = documents.tokens[here[0] : here[-1]].astype(np.uint64)
        starts = here[:-1] - here[0]
        index = np.arange(batch.size) - np.repeat(starts, np.diff(here))
        mixed = mix(batch, index + (salt << 32))
        hashes[first : first + step] = np.add.reduceat(mixed, starts)
    return hashes


def summed(documents: Documents, unk_id: int, line_sample: int) -> tuple[Counter[str], np.ndarray]:
    """Return the sums over documents, and the hashes of their sentences that are watched."""
    # A sample by the hash itself: all copies of a sentence are in it, or none. The sums as
    # Python's integers: numpy's have no form in JSON.
    hashes = hash_sentences(documents)
    sums = Counter(
        documents=documents.names.size,
        sentences=hashes.size,
        one_sentence_documents=int(np.sum(np.diff(documents.documents) == 1)),
        tokens=documents.tokens.size,
        unknown_tokens=int(np.count_nonzero(documents.tokens == unk_id)),
    )
    return sums, hashes[hashes % np.uint64(line_sample) == 0]


@dataclass
class Tokenised:
    """What one unit of input gave.

    Runs of documents, sums by name (e.g. 'documents'), the same by language, hashes of watched
    sentences, fingerprints of held-out documents.
    """

    runs: list[str] = field(default_factory=list)  # files of documents
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
