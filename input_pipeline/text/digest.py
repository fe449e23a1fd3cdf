"""Marks of text that was read: by the times of its files or else their bytes, is it still the same.

Owns the marks that a job keeps of the text that it has read. The time is that of the last change of
any kind, renaming and copying included (on gs:// of the last write), which no program can set back:
an equal one means the same bytes, and another one says nothing, so the bytes are read again. That
is 6 GB a CPU-second, where the job itself reads 1.5 MB. This file must not know what is in the
text.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath

from bert_jax.configs.errors import reading
from bert_jax.input_pipeline.text.files import crc32c, opened, state
from bert_jax.input_pipeline.text.units import AnyUnit, Unit


@dataclass(frozen=True)
class Marks:
    """By what the files of a unit are known again, of which each has one of both."""

    changed: np.ndarray  # int64, when the file was last changed
    crc32c: np.ndarray  # int64, of its bytes, or of those in the unit


def marks(unit: AnyUnit) -> Marks:
    """Return the marks of a unit as it is now."""
    return Marks(_of_files(unit, _changed), _of_files(unit, _crc32c))


def _of_files(unit: AnyUnit, number: Callable[[Unit], int]) -> np.ndarray:
    return np.array([number(file) for file in unit.files()], np.int64)


def _changed(file: Unit) -> int:
    """Return when a file was last changed."""
    # a data set of the Hub has a commit, by which its files never change
    if file.format == 'hf':
        return file.version
    with reading(file.path, 'it was there before; put it back'):
        if '://' in file.path:
            return epath.Path(file.path).stat().mtime

        # the time of the inode, not of the content, which programs may set
        return os.stat(file.path).st_ctime_ns


def _crc32c(file: Unit) -> int:
    """Return the crc32c of the bytes on disk of a file, or a stretch of it.

    All of a parquet file's bytes belong to the first of its row groups.
    """
    if file.format == 'hf':
        return file.version

    # Row groups are no stretches of bytes (columns interleave), so the file's bytes are counted
    # once.
    first, size = file.start, file.bytes
    if file.format == 'parquet':
        first, size = 0, 0 if first else state(file.path)[0]
    with reading(file.path), opened(file.path) as f:
        f.seek(first)
        return crc32c(f, size)


def same(unit: AnyUnit, then: Marks) -> bool:
    """Tell whether a unit still holds what it held when it got its marks."""
    return not any(changes(unit, then))


def changes(unit: AnyUnit, then: Marks) -> Iterator[Unit]:
    """Yield the files of a unit that do not hold what they held when it got its marks."""
    # The cheap question first; the bytes are read only where it says nothing.
    touched = _of_files(unit, _changed) != then.changed
    for file, crc, asked in zip(unit.files(), then.crc32c, touched):
        if asked and _crc32c(file) != crc:
            yield file


def all_same(read: Iterable[tuple[AnyUnit, Marks]]) -> bool:
    """Tell whether every unit still holds what it held when it got its marks."""
    return all(_in_threads(lambda unit_and_marks: same(*unit_and_marks), read))


def describe(marks: Sequence[Marks]) -> dict[str, str]:
    """Return what a manifest keeps of the marks of all units."""
    # Two digests: after a copy all times differ, and the contents still say that it is the same
    # text.
    return {
        'input_times': _digest_of(mark.changed for mark in marks),
        'input_contents': _digest_of(mark.crc32c for mark in marks),
    }


def as_described(units: Sequence[AnyUnit], described: dict[str, Any]) -> bool:
    """Tell whether the units hold what the job with this description has read."""
    now = lambda number: _digest_of(_in_threads(lambda unit: _of_files(unit, number), units))
    return described['input_times'] == now(_changed) or described['input_contents'] == now(_crc32c)


def _in_threads(function: Callable, items: Iterable) -> list:
    """Map in threads, which share the work: reading and checksums leave the interpreter."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def listing_digest(*sides: Sequence[AnyUnit]) -> str:
    """Hash the inputs by their listing: names, where each unit begins, and how long it is."""
    files = lambda units: (file for unit in units for file in unit.files())
    return _digest(((file.name, file.start, file.bytes) for file in files(side)) for side in sides)


def _digest_of(arrays: Iterable[np.ndarray]) -> str:
    return _digest(number for array in arrays for number in array.tolist())


def _digest(items: Iterable) -> str:
    """Hash items, of which there may be millions, as Python writes a list of them."""
    # In this form manifests have had them from the first.
    hashed = hashlib.sha256()
    for text in _written(items):
        hashed.update(text.encode())
    return hashed.hexdigest()


def _written(items: Iterable) -> Iterator[str]:
    """Yield the parts of what Python writes of a list, whose items may be lists to come."""
    yield '['
    for number, item in enumerate(items):
        yield ', ' if number else ''
        yield from _written(item) if isinstance(item, Iterator) else [repr(item)]
    yield ']'
