"""TFRecord frames: the bytes around each record of a file.

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

_HEAD, _TAIL = 12, 4  # bytes of a frame before and after its payload
FRAME_BYTES = _HEAD + _TAIL  # that a record takes in a file beyond its own
DAMAGED = 'payload damaged (its crc32c does not match)'
_CUT = 'cut before its end'
_MOST = 1 << 31  # bytes of a payload: no message of protobuf is larger
_PIECE = 1 << 26  # bytes that are read at once: memory is taken for what is there, not for a claim
_UINT32, _UINT64 = struct.Struct('<I'), struct.Struct('<Q')  # little-endian, as TFRecord has them


class BadFrame(ValueError):
    """A frame that does not read; `record` and `byte` count from the start of the text given."""

    def __init__(self, record: int, byte: int, reason: str):
        """`record`: its place from 0. `byte`: where it begins. `reason`: what is wrong with it."""
        super().__init__(f'record {record} at byte {byte}: {reason}')
        self.record, self.byte, self.reason = record, byte, reason


# ---- writing


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum: crc32c rotated by 15 bits plus a constant.

    So checksums of checksums stay apart.
    """
    return _masked(google_crc32c.value(data)) & 0xFFFFFFFF


def _masked(crc: Any) -> Any:
    """The mask of a crc32c, to be cut to 32 bits, or of an array of them."""
    # Constants of tensorflow/core/lib/hash/crc32c.h.
    return (crc >> 15 | crc << 17) + 0xA282EAD8


@functools.lru_cache(1 << 14)
def _head(size: int) -> bytes:
    """The first 12 bytes of a frame; records have few different lengths."""
    length = _UINT64.pack(size)
    return length + _UINT32.pack(masked_crc(length))


def framed(payloads: Iterable[bytes]) -> bytes:
    """The frames of records, one after the other."""
    # Joined once: records are hundreds of bytes, and a write each would cost more than its
    # checksum.
    parts: list[bytes] = []
    for payload in payloads:
        parts += (_head(len(payload)), payload, _UINT32.pack(masked_crc(payload)))
    return b''.join(parts)


# ---- reading


def frame_bounds(text: bytes) -> list[int]:
    """Where each frame begins, and the end: [N + 1].

    Raises BadFrame for the first whose length is damaged, or that is cut.
    """
    # A frame is found only by the lengths of all before it, so a damaged length ends the walk.
    bounds, at, end = [0], 0, len(text)
    try:
        while at < end:
            at += _FRAME_OF[text[at : at + _HEAD]]
            bounds.append(at)
    except ValueError as error:
        raise BadFrame(len(bounds) - 1, at, str(error)) from None
    if at > end:
        raise BadFrame(len(bounds) - 2, bounds[-2], _CUT)
    return bounds


class _FrameOf(dict[bytes, int]):
    """The length of a frame by its first 12 bytes, of which records have few different ones.

    Looked up as a whole, in place of a crc each. ValueError for what no frame begins with.
    """

    def __missing__(self, head: bytes) -> int:
        if len(head) < _HEAD:
            raise ValueError('cut inside its header')
        (size,) = _UINT64.unpack_from(head)
        if head != _head(size):
            raise ValueError('length damaged (its crc32c does not match)')
        if size > _MOST:
            raise ValueError(f'claims {size:,} bytes, and no record has more than {_MOST:,}')
        self[head] = size + FRAME_BYTES
        return size + FRAME_BYTES


_FRAME_OF = _FrameOf()


def payloads_in(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where the payload of each frame of a text begins and ends: [N] each.

    Raises BadFrame for a frame that is damaged or cut.
    """
    bounds = frame_bounds(text)
    # One payload at a time: its place in the cache is the next one's.
    if damaged := damaged_among(payloads_between(text, bounds), text, bounds):
        raise BadFrame(damaged[0], bounds[damaged[0]], DAMAGED)
    places = np.array(bounds)
    return places[:-1] + _HEAD, places[1:] - _TAIL


def payloads_between(text: bytes, bounds: list[int]) -> Iterator[bytes]:
    """The payloads of the frames with these bounds."""
    return (text[start + _HEAD : end - _TAIL] for start, end in itertools.pairwise(bounds))


def damaged_among(payloads: Iterable[bytes], text: bytes, bounds: list[int]) -> list[int]:
    """Which payloads of the frames with these bounds differ from their checksums."""
    count = len(bounds) - 1
    if not count:
        return []

    # Compared as two arrays: the mask is arithmetic, which numpy does for all of them. A number
    # begins at every byte of the text, and those wanted are picked.
    numbers = np.ndarray(len(text) - _TAIL + 1, '<u4', text, strides=(1,))
    stored = numbers[np.array(bounds[1:]) - _TAIL]
    computed = _masked(np.fromiter(map(google_crc32c.value, payloads), np.uint32, count))
    return np.flatnonzero(stored != computed).tolist()


def read_frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(byte at which the frame begins, payload) of each frame of an open file, one at a time.

    Raises BadFrame for the first that is damaged or cut.
    """
    # One frame at a time, so a file may be larger than memory.
    at = 0
    for record in itertools.count():
        head = file.read(_HEAD)
        if not head:
            return
        try:
            size = _FRAME_OF[head] - FRAME_BYTES
        except ValueError as error:
            raise BadFrame(record, at, str(error)) from None
        body = _read(file, size + _TAIL)
        if len(body) < size + _TAIL:
            raise BadFrame(record, at, _CUT)
        payload = body[:size]
        if _UINT32.pack(masked_crc(payload)) != body[size:]:
            raise BadFrame(record, at, DAMAGED)
        yield at, payload
        at += len(head) + len(body)


def _read(file: BinaryIO, size: int) -> bytes:
    """The next bytes of a file: so many, or as many as there are."""
    body = file.read(min(size, _PIECE))
    while len(body) < size and (piece := file.read(min(size - len(body), _PIECE))):
        body += piece
    return body
