"""A corpus divided into units, each read by itself, in any process.

A unit is a stretch of a plain file that begins and ends between documents, a row group of a parquet
file, a shard of a data set of the Hub, a whole compressed file, or many small files. Owns where
files are divided and which ones are put together; that depends on the text alone, and what is read
does not depend on it. Must not know how a document is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.text.files import (
    CHUNK,
    Compression,
    changed,
    compression_of,
    decompressed,
    opened,
    state,
)
from bert_jax.input_pipeline.text.inputs.formats import HEAD_BYTES, Format, format_of
from bert_jax.input_pipeline.text.inputs.listing import below, matching
from bert_jax.input_pipeline.text.lines import Report, TextOptions
from bert_jax.input_pipeline.text.sources import hub, parquet, tfds_files

UNIT_BYTES = 32 << 20  # of a large corpus
# A small corpus has smaller units, so that workers have some: 64 to 128, of so many bytes or more.
_MIN_UNIT_BYTES = 1 << 16
_UNIT_FILES = 4096  # at most: of tiny files the opening takes the time
_NUL = '\0'  # stands in no file's name


@dataclass(frozen=True)
class Unit:
    """What of one file or data set is read by itself: a stretch, row group or shard, or all."""

    path: str
    name: str  # the path below the root of the glob: the same on every machine
    start: int  # byte, or number of the row group or shard
    bytes: int  # as they lie on disk
    format: Format | None  # None: nobody has looked yet
    compression: Compression | None
    whole: bool  # the unit is all of its file
    language: str = ''  # of its text, where the user named it
    version: int = 0  # of a data set of the Hub: a number that changes with its files
    # Of all of its file when it was listed: bytes, and when written; None for the Hub's.
    state: tuple[int, int] | None = None

    @property
    def identity(self) -> str:
        """By what it is known among the units of another listing, wherever its file lies."""
        return _identity((self.name, self.start, self.bytes))

    def of_language(self, language: str) -> Unit:
        """The unit under a name that begins with the language."""
        return dataclasses.replace(self, name=f'{language}/{self.name}', language=language)

    def files(self) -> Iterator[Unit]:
        """Itself."""
        yield self


@dataclass(frozen=True, eq=False)
class SmallFiles:
    """A unit of many files, read one after the other.

    Nobody has opened them yet: what each is shows when it is its turn.
    """

    root: str  # what their names are below
    names: str  # with NUL between: of millions of files there is not much more than their names
    sizes: np.ndarray  # int64, bytes of each on disk
    times: np.ndarray  # int64, when each was written
    language: str = ''

    @property
    def bytes(self) -> int:
        """Of all of them, as they lie on disk."""
        return int(self.sizes.sum())

    @property
    def identity(self) -> str:
        """By what it is known among the units of another listing, wherever its files lie."""
        return _identity((self.language, self.names, self.sizes.tolist()))

    def of_language(self, language: str) -> SmallFiles:
        """The same files under names that begin with the language."""
        return dataclasses.replace(self, language=language)

    def files(self) -> Iterator[Unit]:
        """Each file as a unit of its own."""
        states = zip(self.sizes.tolist(), self.times.tolist())
        for name, then in zip(self.names.split(_NUL), states):
            yield _whole(self.root, name, then, self.language)


AnyUnit = Unit | SmallFiles


def _whole(root: str, name: str, state: tuple[int, int], language: str = '') -> Unit:
    """All of a file that nobody has looked at yet."""
    called = f'{language}/{name}' if language else name
    path = below(root, name)
    return Unit(path, called, 0, state[0], None, None, True, language, state=state)


def _identity(listed: tuple) -> str:
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:24]


def units(
    pattern: str | Sequence[str],
    options: TextOptions = TextOptions(),
    unit_bytes: int = UNIT_BYTES,
    report: Report | None = None,
) -> list[AnyUnit]:
    """Divides the matching files into units, sorted by name and place.

    `pattern`: one or more, each a file, a folder (all files below it), a glob (`**` for any depth),
    or several with commas between, local or gs://; or tfds:NAME/SPLIT, or
    hf:NAME[:CONFIG]:SPLIT. A document belongs to the unit in which it begins. What is not taken is
    added to `report`. Raises UserError where no file matches, or a large one cannot be read as what
    it is.
    """
    # Data sets of tensorflow-datasets: a unit a file, for a TFRecord file cannot be entered in its
    # middle. One that is named twice is read once.
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    divided: list[AnyUnit] = []
    for dataset in dict.fromkeys(text for text in patterns if text.startswith('tfds:')):
        for path in tfds_files.find(dataset, options.text_column):
            now = state(str(path))
            divided.append(Unit(str(path), path.name, 0, now[0], 'tfds', None, True, state=now))

    # Data sets of the Hub: a unit a shard, as their library divides them.
    for dataset in dict.fromkeys(text for text in patterns if hub.is_meant(text)):
        found = hub.find(dataset, options.text_column)
        if {file.name for unit in divided for file in unit.files()} & set(found.names):
            raise UserError(f'{dataset}: another input has this name too: give its folder another')
        divided += [
            Unit(found.path, name, i, found.bytes, 'hf', None, True, version=found.version)
            for i, name in enumerate(found.names)
        ]

    given = [text for text in patterns if not (text.startswith('tfds:') or hub.is_meant(text))]
    if not given:
        return divided
    listing = matching(given, None if report is None else report.left_out)

    # Small files that follow one another, until they make a unit. A power of two, or every unit
    # would be another where a single file has changed.
    share = 1 << (sum(listing.sizes) // 64).bit_length() >> 1
    small = min(unit_bytes, max(_MIN_UNIT_BYTES, share))
    names, sizes, times = list[str](), array('q'), array('q')

    def together() -> Iterator[SmallFiles]:
        if names:
            numbers = np.array(sizes, np.int64), np.array(times, np.int64)
            yield SmallFiles(listing.root, _NUL.join(names), *numbers)
            names.clear()
            del sizes[:], times[:]

    # Large ones, of which a corpus has at most about 64 or as many as it has 32 MB, are opened
    # here, and so is parquet, which was divided when it was written.
    filled = 0
    for name, size, time in zip(listing.names, listing.sizes, listing.times):
        if size >= small or name.endswith('.parquet'):
            divided += together()
            divided += _stretches(_whole(listing.root, name, (size, time)), options, unit_bytes)
            filled = 0
            continue
        if filled + size > small or len(names) == _UNIT_FILES:
            divided += together()
            filled = 0
        names.append(name)
        sizes.append(size)
        times.append(time)
        filled += size
    divided += together()
    return divided


def looked_at(file: Unit, options: TextOptions) -> list[Unit]:
    """A file as what its first bytes say that it is; one of parquet by row groups.

    Raises UserError where it cannot be read.
    """
    if file.format is not None:
        return [file]
    with reading(file.path), opened(file.path) as f:
        compression = compression_of(f)
        begun = decompressed(f, compression, file.path, HEAD_BYTES)

        # the first chunk that has something in it: a decompressor may give empty ones before
        head = next((chunk for chunk in begun if chunk), b'')
        form = format_of(file.name, head, file.path)
        file = dataclasses.replace(file, format=form, compression=compression)
        if form != 'parquet':
            return [file]

        # One without row groups is still a unit, and is reported as empty.
        if compression:
            raise UserError(
                f'{file.path}: is a parquet file inside {compression}: unpack it, for parquet'
                ' compresses by itself'
            )
        groups = parquet.row_groups(f, file.path, options.text_column) or [0]
        return [
            dataclasses.replace(file, start=i, bytes=size, whole=len(groups) == 1)
            for i, size in enumerate(groups)
        ]


def require_unchanged(file: Unit) -> None:
    """Raises UserError for a file that is no more as it was when it was listed."""
    if file.format == 'hf':
        hub.require_unchanged(file.path, file.version)
    elif file.state is not None:
        with reading(file.path, 'it was there before; put it back'):
            now = state(file.path)
        if now != file.state:
            raise changed(file.path)


def _stretches(file: Unit, options: TextOptions, unit_bytes: int) -> list[Unit]:
    """A file in units."""
    parts = looked_at(file, options)

    # Compressed text can be read from its start alone, plain text from any border of documents;
    # a file that is one document has none.
    form = parts[0].format
    one_document = form == 'text' and options.documents == 'file'
    if form == 'parquet' or parts[0].compression or one_document:
        return parts
    with reading(file.path), opened(file.path) as f:
        borders = [0, *_borders(f, file.bytes, form, unit_bytes), file.bytes]

    # Only of all of a file can "no text in it" be said.
    alone = len(borders) == 2
    return [
        dataclasses.replace(parts[0], start=a, bytes=b - a, whole=alone)
        for a, b in itertools.pairwise(borders)
    ]


def _borders(f: BinaryIO, size: int, form: Format | None, unit_bytes: int) -> list[int]:
    """Places where a document begins for sure: one at or after each multiple of `unit_bytes`."""
    # From each multiple on, line by line, to the first border. The byte before it is read too:
    # whether a line begins at a place is told by the line end before it.
    borders = [0]
    for wanted in range(unit_bytes, size, unit_bytes):
        if wanted <= borders[-1]:
            continue

        # a line may be longer than CHUNK and then comes in pieces: only one that follows a line
        # end is a line's begin
        f.seek(wanted - 1)
        fresh = False  # whether the next piece begins a line
        while piece := f.readline(CHUNK):
            begins, fresh = fresh, piece.endswith(b'\n')

            # After a blank line; after any line of jsonl; before a <doc>.
            if (form == 'text' and begins and fresh and not piece.strip()) or (
                form == 'jsonl' and fresh
            ):
                borders.append(f.tell())
            elif form == 'wikiextractor' and begins and piece.startswith(b'<doc '):
                borders.append(f.tell() - len(piece))
            else:
                continue
            break

    # The end of the file is the caller's border already.
    return [place for place in borders[1:] if place < size]
