"""Whether text is what it was when it was read, by its files' times or else their bytes.

Owns the marks that a job keeps of the text that it has read. The time is that of the last change of
any kind, renaming and copying included (on gs:// of the last write), which no program can set back:
an equal one means the same bytes, and another one says nothing, so the bytes are read again. That
is 6 GB a CPU-second, where the job itself reads 1.5 MB. This file must not know what is in the
text.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import google_crc32c
from etils import epath

from input_pipeline.text.corpus import Unit
from input_pipeline.text.files import chunks


@dataclass(frozen=True)
class Mark:
    """By what a unit is known again.

    When its file was last changed, and the crc32c of its bytes.
    """

    changed: int
    crc32c: int


def mark(unit: Unit) -> Mark:
    """The mark of a unit as it is now."""
    return Mark(_changed(unit), _crc32c(unit))


def _changed(unit: Unit) -> int:
    # a data set of the Hub has a commit, by which its files never change
    if unit.format == 'hf':
        return unit.changed
    if '://' in unit.path:
        return epath.Path(unit.path).stat().mtime

    # the time of the inode, not of the content, which programs may set
    return os.stat(unit.path).st_ctime_ns


def _crc32c(unit: Unit) -> int:
    """The crc32c of the unit's bytes on disk.

    All of a parquet file's bytes belong to the first of its row groups.
    """
    if unit.format == 'hf':
        return unit.changed

    # Row groups are no stretches of bytes (columns interleave), so the file's bytes are counted
    # once.
    first = unit.start
    size: int | None = unit.bytes
    if unit.format == 'parquet':
        first, size = 0, None if unit.start == 0 else 0
    crc = 0
    with epath.Path(unit.path).open('rb') as file:
        file.seek(first)
        for chunk in chunks(file, size):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def same(unit: Unit, then: Mark) -> bool:
    """Whether a unit still holds what it held when it got its mark."""
    # The cheap question first; the bytes are read only where it says nothing.
    return _changed(unit) == then.changed or _crc32c(unit) == then.crc32c


def all_same(read: Iterable[tuple[Unit, Mark]]) -> bool:
    """Whether every unit still holds what it held when it got its mark."""
    return all(_in_threads(lambda one: same(*one), read))


def describe(marks: Iterable[Mark]) -> dict[str, str]:
    """What a manifest keeps of the marks of all units."""
    # Two digests: after a copy all times differ, and the contents still say that it is the same
    # text.
    marks = list(marks)
    return {
        'input_times': _digest(mark.changed for mark in marks),
        'input_contents': _digest(mark.crc32c for mark in marks),
    }


def as_described(units: Sequence[Unit], described: dict[str, Any]) -> bool:
    """Whether the units hold what the job with this description has read."""
    if described['input_times'] == _digest(map(_changed, units)):
        return True
    return described['input_contents'] == _digest(_in_threads(_crc32c, units))


def _in_threads(function: Callable, items: Iterable) -> list:
    """Reading and checksums leave the interpreter to others, so threads share the work."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def _digest(numbers: Iterable[int]) -> str:
    return hashlib.sha256(repr(list(numbers)).encode()).hexdigest()
