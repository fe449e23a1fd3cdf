"""TFRecord files: the frame of bytes around each record.

A frame is the length of its payload (uint64), the masked crc32c of that length, the payload, and
its masked crc32c (tensorflow/core/lib/io/record_writer.h). This file owns those bytes, writing,
reading and what is wrong with them; it must not know what payloads hold, nor how many frames a
file should have (shards.py does).
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

_HEADER, _FOOTER = 12, 4  # bytes of a frame before and after its payload
FRAME_BYTES = _HEADER + _FOOTER  # that a record takes in a file beyond its own
DAMAGED = 'payload damaged (its crc32c does not match)'
_CUT = 'cut before its end'
_MOST = 1 << 31  # bytes of a payload: no message of protobuf is larger
_PIECE = 1 << 26  # bytes that are read at once: memory is taken for what is there, not for a claim
_UINT32, _UINT64 = struct.Struct('<I'), struct.Struct('<Q')  # little-endian, as TFRecord has them


class CorruptRecord(ValueError):
    """A frame that cannot be read.

    Attributes:
      record: its number, from 0 in the text or file given.
      byte: where it begins there.
      reason: what is wrong with it.
    """

    def __init__(self, record: int, byte: int, reason: str):
        super().__init__(f'record {record} at byte {byte}: {reason}')
        self.record, self.byte, self.reason = record, byte, reason


# ---- writing


def masked_crc(data: bytes) -> int:
    """Return TFRecord's checksum: crc32c rotated by 15 bits, plus a constant.

    So checksums of checksums differ.
    """
    return _masked(google_crc32c.value(data)) & 0xFFFFFFFF


def _masked(crc: Any) -> Any:
    """Mask a crc32c, or an array of them; the result is to be cut to 32 bits."""
    # Constants of tensorflow/core/lib/hash/crc32c.h.
    return (crc >> 15 | crc << 17) + 0xA282EAD8


@functools.lru_cache(1 << 14)
def _header(size: int) -> bytes:
    """Return the first 12 bytes of a frame; records have few different lengths."""
    length = _UINT64.pack(size)
    return length + _UINT32.pack(masked_crc(length))


def frame_records(payloads: Iterable[bytes]) -> bytes:
    """Return the frames of records, one after the other."""
    # Joined once: records are hundreds of bytes, and a write each would cost more than its
    # checksum.
    parts: list[bytes] = []
    for payload in payloads:
        parts += (_header(len(payload)), payload, _UINT32.pack(masked_crc(payload)))
    return b''.join(parts)


# ---- reading


def frame_bounds(text: bytes) -> list[int]:
    """Return where each frame begins, and the end: [N + 1].

    Raises:
      CorruptRecord: for the first frame whose length is damaged, or that is cut.
    """
    # A frame is found only by the lengths of all before it, so a damaged length ends the walk.
    bounds, at, end = [0], 0, len(text)
    try:
        while at < end:
            at += _frame_size(text[at : at + _HEADER])
            bounds.append(at)
    except ValueError as error:
        raise CorruptRecord(len(bounds) - 1, at, str(error)) from None
    if at > end:
        raise CorruptRecord(len(bounds) - 2, bounds[-2], _CUT)
    return bounds


@functools.lru_cache(1 << 14)
def _frame_size(header: bytes) -> int:
    """Return the length of a frame by its first 12 bytes, of which records have few different ones.

    Raises:
      ValueError: no frame begins with these bytes.
    """
    if len(header) < _HEADER:
        raise ValueError('cut inside its header')
    (size,) = _UINT64.unpack_from(header)
    if header != _header(size):
        raise ValueError('length damaged (its crc32c does not match)')
    if size > _MOST:
        raise ValueError(f'claims {size:,} bytes, and no record has more than {_MOST:,}')
    return size + FRAME_BYTES


def find_payloads(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return where the payload of each frame of a text begins and ends: [N] each.

    Raises:
      CorruptRecord: for the first frame that is damaged or cut.
    """
    bounds = frame_bounds(text)
    failed = find_failed_checksums(text, bounds)
    if failed:
        raise CorruptRecord(failed[0], bounds[failed[0]], DAMAGED)
    edges = np.array(bounds)
    return edges[:-1] + _HEADER, edges[1:] - _FOOTER


def iterate_payloads(text: bytes, bounds: list[int]) -> Iterator[bytes]:
    """Yield the payloads of the frames with these bounds."""
    return (text[start + _HEADER : end - _FOOTER] for start, end in itertools.pairwise(bounds))


def find_failed_checksums(text: bytes, bounds: list[int]) -> list[int]:
    """Return which payloads of the frames with these bounds differ from their checksums."""
    count = len(bounds) - 1
    if not count:
        return []

    # Compared as two arrays: the mask is arithmetic, which numpy does for all of them. A number
    # begins at every byte of the text, and those wanted are picked.
    numbers = np.ndarray(len(text) - _FOOTER + 1, '<u4', text, strides=(1,))
    stored = numbers[np.array(bounds[1:]) - _FOOTER]

    # One payload at a time: its memory in the cache becomes the next one's.
    checksums = map(google_crc32c.value, iterate_payloads(text, bounds))
    computed = _masked(np.fromiter(checksums, np.uint32, count))
    return np.flatnonzero(stored != computed).tolist()


def read_records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (byte at which the frame begins, payload) of each frame of an open file.

    Raises:
      CorruptRecord: for the first frame that is damaged or cut.
    """
    # One frame at a time, so a file may be larger than memory.
    at = 0
    for record in itertools.count():
        head = file.read(_HEADER)
        if not head:
            return
        try:
            size = _frame_size(head) - FRAME_BYTES
        except ValueError as error:
            raise CorruptRecord(record, at, str(error)) from None
        body = _read(file, size + _FOOTER)
        if len(body) < size + _FOOTER:
            raise CorruptRecord(record, at, _CUT)
        payload = body[:size]
        if _UINT32.pack(masked_crc(payload)) != body[size:]:
            raise CorruptRecord(record, at, DAMAGED)
        yield at, payload
        at += len(head) + len(body)


def _read(file: BinaryIO, size: int) -> bytes:
    """Return the next `size` bytes of a file, or as many as there are."""
    body = file.read(min(size, _PIECE))
    while len(body) < size:
        piece = file.read(min(size - len(body), _PIECE))
        if not piece:
            break
        body += piece
    return body
