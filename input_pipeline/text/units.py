"""A corpus divided into units, each read by itself, in any process.

A unit is a stretch of a plain file that begins and ends between documents, a row group of a parquet
file, a shard of a data set of the Hub, a whole compressed file, or many small files. Owns where
files are divided and which ones are put together; that depends on the text alone, and what is read
does not depend on it. Must not know how a document is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.text import data_sets
from bert_jax.input_pipeline.text.files import (
    CHUNK,
    Compression,
    changed,
    detect_compression,
    iterate_chunks,
    iterate_unpacked,
    open_file,
    read_state,
)
from bert_jax.input_pipeline.text.formats import HEAD_BYTES, Format, detect_format
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.text.listing import Listing, join_below, matching

UNIT_BYTES = 32 << 20  # of a large corpus
# A small corpus has smaller units, so that workers have some: 64 to 128, of so many bytes or more.
_MIN_UNIT_BYTES = 1 << 16
_UNIT_FILES = 4096  # at most: of tiny files the opening takes the time
_NUL = '\0'  # stands in no file's name
_COPIED_AT_ONCE = 16
# Where the files of a bucket lie on the disk while this process reads them, by path and first byte.
_copies: dict[tuple[str, int], str] = {}


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
        """Identify it among the units of another listing, wherever its file lies."""
        return _identity((self.name, self.start, self.bytes))

    def of_language(self, language: str) -> Unit:
        """Return the unit under a name that begins with the language."""
        return dataclasses.replace(self, name=f'{language}/{self.name}', language=language)

    def files(self) -> Iterator[Unit]:
        """Yield itself."""
        yield self

    def open(self) -> BinaryIO:
        """Open the file at the first byte of the unit, or the copy that is on the disk."""
        copy = _copies.get((self.path, self.start))
        if copy is not None:
            return open_file(copy)
        f = open_file(self.path)
        f.seek(self.start)
        return f


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
        """Return the bytes of all of them, as they lie on disk."""
        return int(self.sizes.sum())

    @property
    def identity(self) -> str:
        """Identify it among the units of another listing, wherever its files lie."""
        return _identity((self.language, self.names, self.sizes.tolist()))

    def of_language(self, language: str) -> SmallFiles:
        """Return the same files under names that begin with the language."""
        return dataclasses.replace(self, language=language)

    def files(self) -> Iterator[Unit]:
        """Yield each file as a unit of its own."""
        states = zip(self.sizes.tolist(), self.times.tolist())
        for name, then in zip(self.names.split(_NUL), states):
            yield _make_whole(self.root, name, then, self.language)


AnyUnit = Unit | SmallFiles


@contextlib.contextmanager
def copy_from_bucket(unit: AnyUnit, folder: str, limit: float) -> Iterator[None]:
    """Let a unit of a bucket lie on the disk while it is read, so that it is fetched once.

    A unit of more than `limit` bytes is read where it lies, and so is parquet, of which one column
    is wanted; a data set of the Hub is a stream. What was left in `folder` goes first.

    Raises:
      UserError: a file cannot be read, or is not as long as it was when it was listed.
    """
    files = [file for file in unit.files() if '://' in file.path]
    if not files or unit.bytes > limit or files[0].format in ('parquet', 'hf'):
        yield
        return

    def copy_file(file: Unit, copy: str) -> None:
        with reading(file.path), open_file(file.path) as source, open(copy, 'wb') as target:
            source.seek(file.start)
            for chunk in iterate_chunks(source, file.bytes):
                target.write(chunk)
        if os.path.getsize(copy) != file.bytes:
            raise changed(file.path)

    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    copies = [os.path.join(folder, str(i)) for i in range(len(files))]
    try:
        # Several at once: a bucket takes its time for each question.
        with ThreadPoolExecutor(_COPIED_AT_ONCE) as pool:
            list(pool.map(copy_file, files, copies))
        for file, copy in zip(files, copies):
            _copies[file.path, file.start] = copy
        yield
    finally:
        _copies.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _make_whole(root: str, name: str, state: tuple[int, int], language: str = '') -> Unit:
    """Return a unit of all of a file that nobody has looked at yet."""
    called = f'{language}/{name}' if language else name
    path = join_below(root, name)
    return Unit(path, called, 0, state[0], None, None, True, language, state=state)


def _identity(listed: tuple) -> str:
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:24]


def units(
    pattern: str | Sequence[str],
    options: TextOptions = TextOptions(),
    unit_bytes: int = UNIT_BYTES,
    left_out: list[str] | None = None,
) -> list[AnyUnit]:
    """Divide the matching files into units, sorted by name and where they begin.

    A document belongs to the unit in which it begins.

    Args:
      pattern: one or more, each a file, a folder (all files below it), a glob (`**` for any depth),
        or several with commas between, local or gs://; or tfds:NAME/SPLIT, or
        hf:NAME[:CONFIG]:SPLIT.
      options: how the text is read.
      unit_bytes: the size of a unit of a large corpus.
      left_out: what is not taken is added to it.

    Raises:
      UserError: no file matches, or a large one cannot be read as what it is.
    """
    # Data sets that are named twice are read once.
    patterns = dict.fromkeys([pattern] if isinstance(pattern, str) else pattern)
    divided: list[AnyUnit] = []
    given = []
    for text in sorted(patterns, key=data_sets.is_hub_name):  # those of the Hub come last
        if text.startswith('tfds:'):
            # A unit a file: a TFRecord file cannot be entered in its middle.
            for path in data_sets.find_tfds_files(text, options.text_column):
                now = read_state(str(path))
                unit = Unit(str(path), path.name, 0, now[0], 'tfds', None, True, state=now)
                divided.append(unit)
        elif data_sets.is_hub_name(text):
            taken = {file.name for unit in divided for file in unit.files()}
            shards = data_sets.find_hub_shards(text, options.text_column)
            if taken & set(shards.names):
                raise UserError(f'{text}: another input has this name too: give its folder another')
            # A unit a shard, as the library divides the data set.
            for i, name in enumerate(shards.names):
                size, version = shards.bytes, shards.version
                divided.append(Unit(shards.path, name, i, size, 'hf', None, True, version=version))
        else:
            given.append(text)
    if given:
        listing = matching(given, left_out)
        divided += _file_units(listing, options, unit_bytes)
    return divided


def _file_units(listing: Listing, options: TextOptions, unit_bytes: int) -> Iterator[AnyUnit]:
    """Yield large files divided, and small ones that follow one another together."""
    # A power of two, or every unit would be another where a single file has changed.
    share = 1 << (sum(listing.sizes) // 64).bit_length() >> 1
    small = min(unit_bytes, max(_MIN_UNIT_BYTES, share))
    begin = filled = 0  # of the small files that are to be put together

    # Large ones, of which a corpus has at most about 64 or as many as it has 32 MB, are opened
    # here, and so is parquet, which was divided when it was written.
    for i, (name, size) in enumerate(zip(listing.names, listing.sizes)):
        large = size >= small or name.endswith('.parquet')
        if large or filled + size > small or i - begin == _UNIT_FILES:
            yield from _put_together(listing, begin, i)
            begin, filled = i, 0
        if large:
            begin = i + 1
            file = _make_whole(listing.root, name, (size, listing.times[i]))
            yield from _divide_file(file, options, unit_bytes)
        else:
            filled += size
    yield from _put_together(listing, begin, len(listing.names))


def _put_together(listing: Listing, begin: int, end: int) -> Iterator[SmallFiles]:
    """Yield the files of a listing from `begin` to `end` as one unit, if there are any."""
    if begin < end:
        names = _NUL.join(listing.names[begin:end])
        sizes, times = np.array(listing.sizes[begin:end]), np.array(listing.times[begin:end])
        yield SmallFiles(listing.root, names, sizes, times)


def detect_formats(file: Unit, options: TextOptions) -> list[Unit]:
    """Return a file as what its first bytes say that it is; one of parquet by row groups.

    Raises:
      UserError: it cannot be read.
    """
    if file.format is not None:
        return [file]
    with reading(file.path), file.open() as f:
        compression = detect_compression(f)
        begun = iterate_unpacked(f, compression, file.path, size=HEAD_BYTES)

        # the first chunk that has something in it: a decompressor may give empty ones before
        head = next(filter(None, begun), b'')
        any_bytes = options.on_bad_utf8 in ('replace', 'skip')
        form = detect_format(file.name, head, file.path, any_bytes)
        file = dataclasses.replace(file, format=form, compression=compression)
        if form != 'parquet':
            return [file]

        # One without row groups is still a unit, and is reported as empty.
        if compression:
            raise UserError(
                f'{file.path}: is a parquet file inside {compression}: unpack it, for parquet'
                ' compresses by itself'
            )
        groups = data_sets.find_row_groups(file.path, options.text_column) or [0]
        return [
            dataclasses.replace(file, start=i, bytes=size, whole=len(groups) == 1)
            for i, size in enumerate(groups)
        ]


def require_unchanged(file: Unit) -> None:
    """Raise UserError for a file that has changed since it was listed."""
    if file.format == 'hf':
        data_sets.require_unchanged_shards(file.path, file.version)
    elif file.state is not None:
        with reading(file.path, 'it was there before; put it back'):
            now = read_state(file.path)
        if now != file.state:
            raise changed(file.path)


def _divide_file(file: Unit, options: TextOptions, unit_bytes: int) -> list[Unit]:
    """Divide a file into units."""
    parts = detect_formats(file, options)

    # Compressed text can be read from its start alone, plain text from any border of documents;
    # a file that is one document has none.
    form = parts[0].format
    one_document = form == 'text' and options.documents == 'file'
    if form == 'parquet' or parts[0].compression or one_document:
        return parts
    with reading(file.path), open_file(file.path) as f:
        borders = [0, *_find_borders(f, file.bytes, form, unit_bytes), file.bytes]

    # Only of all of a file can "no text in it" be said.
    alone = len(borders) == 2
    return [
        dataclasses.replace(parts[0], start=a, bytes=b - a, whole=alone)
        for a, b in itertools.pairwise(borders)
    ]


def _find_borders(f: BinaryIO, size: int, form: Format | None, unit_bytes: int) -> list[int]:
    """Find where documents begin for sure: one at or after each multiple of `unit_bytes`."""
    # From each multiple on, line by line, to the first border. The byte before it is read too:
    # a line begins there if that byte is a line end.
    borders = [0]
    for wanted in range(unit_bytes, size, unit_bytes):
        if wanted <= borders[-1]:
            continue

        # a line may be longer than CHUNK and then comes in pieces: only one that follows a line
        # end is a line's begin
        f.seek(wanted - 1)
        fresh = False  # whether the next piece begins a line
        for piece in iter(lambda: f.readline(CHUNK), b''):
            begins, fresh = fresh, piece.endswith(b'\n')

            # After a blank line; after any line of jsonl; before a <doc>.
            is_blank = begins and fresh and not piece.strip()
            if (form == 'text' and is_blank) or (form == 'jsonl' and fresh):
                borders.append(f.tell())
                break
            if form == 'wikiextractor' and begins and piece.startswith(b'<doc '):
                borders.append(f.tell() - len(piece))
                break

    # The end of the file is the caller's border already.
    return [border for border in borders[1:] if border < size]
