"""Marks of text that was read: by the times of its files or else their bytes, is it still the same.

Owns the marks that a job keeps of the text that it has read. The time is that of the last change of
any kind, renaming and copying included (on gs:// of the last write), which no program can set back:
an equal one means the same bytes, and another one says nothing, so the bytes are read again. That
is 6 GB a CPU-second, where the job itself reads 1.5 MB. This file must not know what is in the
text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath

from bert_jax.configs.errors import reading
from bert_jax.input_pipeline.text.files import compute_crc32c, read_state
from bert_jax.input_pipeline.text.units import AnyUnit, Unit


@dataclass(frozen=True)
class Marks:
    """By what the files of a unit are known again, of which each has one of both."""

    changed: np.ndarray  # int64, when the file was last changed
    crc32c: np.ndarray  # int64, of its bytes, or of those in the unit


def marks(unit: AnyUnit) -> Marks:
    """Return the marks of a unit as it is now."""
    return Marks(_ask_files(unit, _read_time), _ask_files(unit, _read_crc32c))


def _ask_files(unit: AnyUnit, ask: Callable[[Unit], int]) -> np.ndarray:
    return np.array([ask(file) for file in unit.files()], np.int64)


def _read_time(file: Unit) -> int:
    """Return when a file was last changed."""
    # a data set of the Hub has a commit, by which its files never change
    if file.format == 'hf':
        return file.version
    with reading(file.path, 'it was there before; put it back'):
        if '://' in file.path:
            return epath.Path(file.path).stat().mtime

        # the time of the inode, not of the content, which programs may set
        return os.stat(file.path).st_ctime_ns


def _read_crc32c(file: Unit) -> int:
    """Return the crc32c of the bytes on disk of a file, or a stretch of it.

    All of a parquet file's bytes belong to the first of its row groups.
    """
    if file.format == 'hf':
        return file.version

    # Row groups are no stretches of bytes (columns interleave), so the file's bytes are counted
    # once.
    size = file.bytes
    if file.format == 'parquet':
        size = 0 if file.start else read_state(file.path)[0]
    with reading(file.path), file.open() as f:
        return compute_crc32c(f, size)


def same(unit: AnyUnit, then: Marks) -> bool:
    """Tell whether a unit still holds what it held when it got its marks."""
    return not any(changes(unit, then))


def changes(unit: AnyUnit, then: Marks) -> Iterator[Unit]:
    """Yield the files of a unit that do not hold what they held when it got its marks."""
    # The cheap question first; the bytes are read only where it says nothing.
    touched = _ask_files(unit, _read_time) != then.changed
    for file, crc, asked in zip(unit.files(), then.crc32c, touched):
        if asked and _read_crc32c(file) != crc:
            yield file


def all_same(read: Iterable[tuple[AnyUnit, Marks]]) -> bool:
    """Tell whether every unit still holds what it held when it got its marks."""
    pairs = list(read)
    units, then = [unit for unit, _ in pairs], [marks for _, marks in pairs]
    return all(_map_in_threads(same, units, then))


def describe(marks: Sequence[Marks]) -> dict[str, str]:
    """Return what a manifest keeps of the marks of all units."""
    # Two digests: after a copy all times differ, and the contents still say that it is the same
    # text.
    return {
        'input_times': _hash_arrays(mark.changed for mark in marks),
        'input_contents': _hash_arrays(mark.crc32c for mark in marks),
    }


def as_described(units: Sequence[AnyUnit], described: dict[str, Any]) -> bool:
    """Tell whether the units hold what the job with this description has read."""
    # The cheap question first, as in `changes`.
    for name, ask in (('input_times', _read_time), ('input_contents', _read_crc32c)):
        now = _map_in_threads(functools.partial(_ask_files, ask=ask), units)
        if described[name] == _hash_arrays(now):
            return True
    return False


def _map_in_threads(function: Callable, *items: Iterable) -> list:
    """Map in threads, which share the work: reading and checksums leave the interpreter."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, *items))


def listing_digest(*sides: Sequence[AnyUnit]) -> str:
    """Hash the inputs by their listing: names, where each unit begins, and how long it is."""
    hashed = hashlib.sha256(b'[')
    for number, units in enumerate(sides):
        if number:
            hashed.update(b', ')
        files = itertools.chain.from_iterable(unit.files() for unit in units)
        _hash_list(hashed, ((file.name, file.start, file.bytes) for file in files))
    hashed.update(b']')
    return hashed.hexdigest()


def _hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    hashed = hashlib.sha256()
    _hash_list(hashed, itertools.chain.from_iterable(array.tolist() for array in arrays))
    return hashed.hexdigest()


def _hash_list(hashed: Any, items: Iterable) -> None:
    """Hash items, of which there may be millions, as Python writes a list of them."""
    # In this form manifests have had them from the first.
    hashed.update(b'[')
    for number, item in enumerate(items):
        if number:
            hashed.update(b', ')
        hashed.update(repr(item).encode())
    hashed.update(b']')
