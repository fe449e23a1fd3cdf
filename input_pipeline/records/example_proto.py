"""tf.train.Example messages to arrays and back, whole batches at a time with numpy.

An Example is a map from names to lists of numbers. This file knows how protobuf lays one out
(wire.py reads any message) and features of fixed length; it must not know which features a
record has (records/fields.py does) nor how records lie in files (shards.py does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from input_pipeline.wire import fields

# Tags of the protobuf fields: (field number << 3) | 2, where 2 means "length-delimited".
_FIELD_1, _FIELD_2 = 0x0A, 0x12
_LIST_TAG = {'float': 0x12, 'int': 0x1A}  # Feature.float_list, Feature.int64_list
_ROWS_AT_ONCE = 1024  # keeps an encoder's working buffers near the size of the second-level cache


class BadRecord(ValueError):
    """A record that does not hold what the schema promises; `row` is its place in the batch."""

    def __init__(self, row: int, reason: str):
        super().__init__(f'row {row}: {reason}')
        self.row, self.reason = row, reason


@dataclass(frozen=True)
class Feature:
    """One feature of fixed length: its name, how many values a record holds, and their type."""

    name: str
    length: int
    kind: Literal['int', 'float']  # Int64List or FloatList


# ---- encoding


def encode(features: Sequence[Feature], columns: dict[str, np.ndarray]) -> tuple[bytes, np.ndarray]:
    """Serialises a batch of N records.

    Args:
      features: what each record holds, in the order of writing.
      columns: one array a feature, [N, length]; ints must be in [0, 2**31).

    Returns:
      The N tf.train.Example messages one after the other, and int64 offsets [N + 1]:
      record i is payload[offsets[i]:offsets[i + 1]].
    """
    # Checked before a byte is made: negative numbers would take ten bytes, which _varints_of
    # cannot.
    arrays = {f.name: np.asarray(columns[f.name]).reshape(-1, f.length) for f in features}
    count = len(arrays[features[0].name])
    for feature in features:
        array = arrays[feature.name]
        if len(array) != count:
            raise ValueError(f'{feature.name} has {len(array)} rows, {features[0].name} {count}')
        if feature.kind == 'int' and array.size and not 0 <= array.min() <= array.max() < 2**31:
            raise ValueError(f'{feature.name} holds values outside [0, 2**31)')

    # A few rows at a time, or the matrix of bytes would be many times as large as the result.
    payloads, sizes = [], [np.zeros(1, np.int64)]
    for first in range(0, count, _ROWS_AT_ONCE):
        chunk = {name: array[first : first + _ROWS_AT_ONCE] for name, array in arrays.items()}
        payload, size = _encode_chunk(features, chunk)
        payloads.append(payload)
        sizes.append(size)
    return b''.join(payloads), np.cumsum(np.concatenate(sizes))


# The encoder lays a batch out as a matrix of bytes with room for the longest varint in
# each place, beside a matrix that says which bytes are used; one boolean selection then
# gives all records. A piece is such a pair, [N or 1, width] each.
_Piece = tuple[np.ndarray, np.ndarray]


def _encode_chunk(
    features: Sequence[Feature], arrays: dict[str, np.ndarray]
) -> tuple[bytes, np.ndarray]:
    """Encodes a few rows: (payload bytes, bytes of each row [N])."""
    count = len(arrays[features[0].name])

    # From the inside out, because each message begins with its own length: entries of the map
    # first, and of these the sum is the length of Features, the one field of Example.
    pieces, total = [], np.zeros(1, np.int64)
    for feature in features:
        entry, size = _entry(feature, arrays[feature.name])
        length = _varints_of(size[:, None])
        pieces += [_constant(bytes([_FIELD_1])), length, *entry]
        total = total + 1 + _used(length) + size
    pieces = [_constant(bytes([_FIELD_1])), _varints_of(total[:, None]), *pieces]

    # All pieces side by side, then the used cells row after row: numpy reads a boolean selection in
    # this order, so the records come out whole.
    width = sum(p.shape[1] for p, _ in pieces)
    cells, used = np.empty((count, width), np.uint8), np.empty((count, width), bool)
    at = 0
    for piece, piece_used in pieces:
        cells[:, at : at + piece.shape[1]] = piece
        used[:, at : at + piece.shape[1]] = piece_used
        at += piece.shape[1]
    return cells[used].tobytes(), used.sum(axis=1, dtype=np.int64)


def _entry(feature: Feature, array: np.ndarray) -> tuple[list[_Piece], np.ndarray]:
    """One entry of Features.feature: its pieces and its size in bytes [N or 1]."""
    # The values: floats are four bytes each, ints as many as they need.
    if feature.kind == 'float':
        cells = np.ascontiguousarray(array, '<f4').view(np.uint8)
        values = (cells, np.ones((1, cells.shape[1]), bool))
    else:
        values = _varints_of(array)

    # Around them, from the inside: the packed list, the Feature that holds it, the entry's key.
    # Each adds a tag and a length in front, and so to the size of the next.
    pieces, size = [values], _used(values)
    for prefix in (bytes([_FIELD_1]), bytes([_LIST_TAG[feature.kind]]), _key(feature.name)):
        length = _varints_of(size[:, None])
        pieces = [_constant(prefix), length, *pieces]
        size = len(prefix) + _used(length) + size
    return pieces, size


def _key(name: str) -> bytes:
    """The start of a map entry: its key, then the tag of its value."""
    # One byte for the length of the name: names are shorter than 128.
    return bytes([_FIELD_1, len(name)]) + name.encode('ascii') + bytes([_FIELD_2])


def _constant(text: bytes) -> _Piece:
    # One row, broadcast over all records.
    return np.frombuffer(text, np.uint8)[None], np.ones((1, len(text)), bool)


def _used(piece: _Piece) -> np.ndarray:
    """Bytes of the piece that each row uses [N or 1]."""
    # a row of its own only where records differ
    return piece[1].sum(axis=1, dtype=np.int64)


def _varints_of(values: np.ndarray) -> _Piece:
    """The varints of values [N, K]: each takes as many cells as the largest value needs."""
    # Below 2**31, as `encode` has checked, so five cells of 7 bits are enough.
    values = values.astype(np.uint32)
    largest = int(values.max(initial=0))

    # Most columns (masks, segments, labels): one byte a number, as it is.
    if largest < 128:
        return values.astype(np.uint8), np.ones((1, values.shape[1]), bool)

    # Else 7 bits a cell, low ones first. The top bit of a cell is set where higher bits are left;
    # cells beyond a number's own last one are not used, but its first one is, even for 0.
    width = -(-largest.bit_length() // 7)
    cells, used = np.empty((*values.shape, width), np.uint8), np.empty((*values.shape, width), bool)
    for i in range(width):
        unwritten = values >> np.uint32(7 * i)
        goes_on = (unwritten > 127).astype(np.uint32) << np.uint32(7)
        cells[:, :, i] = (unwritten & np.uint32(127)) | goes_on
        used[:, :, i] = unwritten > 0 if i else True
    return cells.reshape(len(values), -1), used.reshape(len(values), -1)


# ---- decoding


def decode(features: Sequence[Feature], payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Decodes N serialised records: [N, length] int32 or float32 a feature.

    Records may come from any writer of tf.train.Example (other order of features, unpacked
    lists); those that share the first record's layout are decoded together.

    Raises:
      BadRecord: a record is damaged, lacks a feature, or has one of another length.
    """
    # All at once where records are alike, as those of one program are; else one at a time.
    count = len(payloads)
    columns = {
        f.name: np.zeros((count, f.length), np.int32 if f.kind == 'int' else np.float32)
        for f in features
    }
    if count and not _decode_alike(features, payloads, columns):
        for row, payload in enumerate(payloads):
            for name, values in _decode_one(features, row, payload).items():
                columns[name][row] = values
    return columns


def _decode_alike(
    features: Sequence[Feature], payloads: Sequence[bytes], columns: dict[str, np.ndarray]
) -> bool:
    """Fills `columns` when all records have the layout of the first one; else returns False."""
    # The layout: which features in which order, as the first record says. Features that nobody
    # asked for need the slow way.
    known = {f.name: f for f in features}
    try:
        names = [name for name, _, _ in _features(payloads[0])]
    except ValueError:
        return False
    if sorted(names) != sorted(known):
        return False
    order = [known[name] for name in names]

    # Where each feature's numbers lie in every record; this proves all that is not a number.
    text = b''.join(payloads)
    regions = _regions(text, np.cumsum([0, *map(len, payloads)]), order)
    if regions is None:
        return False

    # The numbers of a feature, cut out of all records and decoded as one run.
    for feature in order:
        starts, ends = regions[feature.name]
        packed = np.frombuffer(
            b''.join([text[s:e] for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]),
            np.uint8,
        )
        sizes = ends - starts

        # Floats: four bytes each, so the size is the proof of their number.
        if feature.kind == 'float':
            if (sizes != 4 * feature.length).any():
                return False
            columns[feature.name][:] = packed.view('<f4').reshape(-1, feature.length)
            continue

        # Ints: as many varints in all as there should be, and the last one of each record ends with
        # the record's part, or numbers of one record would slip into the next.
        last = np.flatnonzero(packed < 128)  # the last byte of each varint
        if last.size != len(payloads) * feature.length:
            return False
        record_ends = last[feature.length - 1 :: feature.length] + 1
        if (record_ends != np.cumsum(sizes)).any():
            return False

        # What does not fit in 32 bits is refused in _decode_one, by row and feature.
        values = _varints(packed, last)
        if values.min() < -(2**31) or values.max() >= 2**31:
            return False
        columns[feature.name][:] = values.reshape(-1, feature.length)
    return True


def _regions(
    text: bytes, bounds: np.ndarray, order: Sequence[Feature]
) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """Where each feature's packed values lie in each record: starts [N] and ends [N].

    All records are walked at once. None unless every record is written canonically, with packed
    lists, in this order of features.
    """
    # `at` [N]: the place in every record up to which it has been read.
    data = np.frombuffer(text + bytes(64), np.uint8)  # room to look past the end
    at, limit = bounds[:-1].copy(), bounds[1:]

    def expect(constant: bytes) -> bool:
        """Steps over these bytes; False where a record has others."""
        nonlocal at
        size = len(constant)

        # Every run of `size` bytes, as a view with stride 1: nothing is copied but those asked for.
        windows = np.ndarray(len(data) - size + 1, f'V{size}', data, strides=(1,))
        actual = windows[at].view(np.uint8).reshape(-1, size)
        at = at + size
        return bool((actual == np.frombuffer(constant, np.uint8)).all())

    def length(end: np.ndarray) -> bool:
        """Steps over a length and fills in where what it measures ends.

        False where that is beyond the record.
        """
        nonlocal at

        # Up to four bytes of a varint, in all records together; those whose length has ended add
        # nothing.
        byte = data[at].astype(np.int64)
        value, more, at = byte & 127, byte > 127, at + 1
        for shift in (7, 14, 21):
            if not more.any():
                break
            byte = data[at] * more.astype(np.int64)
            value |= (byte & 127) << shift
            at = at + more
            more = byte > 127

        # A length of five bytes would be 256 MB or more: no record of ours.
        np.add(at, value, out=end)
        return not more.any() and bool((end <= limit).all())

    # The nesting: Example > Features > entries > Feature > list > packed numbers, and the last four
    # of these must end at one place, or something else stands between.
    outer, entry, value, numbers, inner = (np.empty(len(at), np.int64) for _ in range(5))
    if not (expect(bytes([_FIELD_1])) and length(outer) and (outer == limit).all()):
        return None
    regions = {}
    for feature in order:
        if not (
            (expect(bytes([_FIELD_1])) and length(entry))
            and (expect(_key(feature.name)) and length(value))
            and (expect(bytes([_LIST_TAG[feature.kind]])) and length(numbers))
            and (expect(bytes([_FIELD_1])) and length(inner))
            and all((inner == other).all() for other in (entry, value, numbers))
        ):
            return None
        regions[feature.name] = at, inner.copy()
        at = inner.copy()

    # Nothing may follow the last feature.
    return regions if (at == limit).all() else None


def _varints(packed: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The values of a run of varints (uint8) whose last bytes are at `last`.

    int64, wrapping as protobuf does.
    """
    # Every number is a byte by itself.
    if last.size == packed.size:
        return packed

    # From the last byte, which has the highest bits, backwards: round k takes the k-th byte before
    # it of those numbers that have one. Bytes beyond the tenth would wrap; protobuf ignores them
    # too.
    extra = np.diff(last, prepend=-1) - 1  # bytes before the last one
    values = packed[last].astype(np.int64)
    for back in range(1, min(int(extra.max(initial=0)), 9) + 1):
        longer = np.flatnonzero(extra >= back)
        values[longer] = values[longer] << 7 | (packed[last[longer] - back] & 127)
    return values


def _decode_one(features: Sequence[Feature], row: int, payload: bytes) -> dict[str, np.ndarray]:
    """Decodes one record of any layout, feature by feature."""
    values: dict[str, np.ndarray] = {}

    # A name that comes twice counts as its last, as in protobuf's maps; features unknown to the
    # schema are passed over.
    try:
        kinds = {f.name: f.kind for f in features}
        for name, kind, body in _features(payload):
            if name in kinds:
                if kind != kinds[name]:
                    raise ValueError(f'{name} is a list of another type than {kinds[name]}')
                values[name] = _numbers(kind, body)
    except ValueError as error:
        raise BadRecord(row, f'not a tf.train.Example ({error})') from error

    # All that the schema promises, in its order, so that the first fault named is always the same.
    for feature in features:
        if feature.name not in values:
            raise BadRecord(row, f'feature {feature.name} is missing')
        numbers = values[feature.name]
        if len(numbers) != feature.length:
            raise BadRecord(
                row, f'feature {feature.name} has {len(numbers)} values, not {feature.length}'
            )
        if feature.kind == 'int' and not -(2**31) <= numbers.min() <= numbers.max() < 2**31:
            raise BadRecord(row, f'feature {feature.name} holds a value beyond 32 bits')
    return {f.name: values[f.name] for f in features}


def lengths(payload: bytes) -> dict[str, int]:
    """How many numbers each feature of one Example has; ValueError where it is none."""
    return {
        name: len(_numbers(kind, body))
        for name, kind, body in _features(payload)
        if kind != 'bytes'
    }


def bytes_of(payload: bytes, name: str) -> list[bytes]:
    """The values of a feature of bytes in one Example; none where it is absent."""
    return [
        value
        for feature, kind, body in _features(payload)
        if feature == name and kind == 'bytes'
        for _, value in fields(body, 1)
    ]


def _features(payload: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Each feature of an Example: (name, 'int' or 'float' or 'bytes', its list message)."""
    kinds = {1: 'bytes', 2: 'float', 3: 'int'}  # numbers of the fields of the oneof in Feature
    for _, message in fields(payload, 1):
        for _, entry in fields(message, 1):
            # 1: the name; 2: the Feature. An entry without either is valid protobuf, and means
            # "empty".
            parts = dict(fields(entry, 1, 2))
            for number, body in fields(parts.get(2, b''), 1, 2, 3):
                yield parts.get(1, b'').decode('utf-8'), kinds[number], body


def _numbers(kind: str, body: bytes) -> np.ndarray:
    """The values of an Int64List or FloatList, packed or not."""
    # Packed: one field with all numbers. Unpacked: a field a number. Joined they are the same
    # bytes.
    size = 4 if kind == 'float' else 1
    packed = b''.join(part for _, part in fields(body, 1))
    if len(packed) % size:
        raise ValueError('a list of floats is cut')
    if kind == 'float':
        return np.frombuffer(packed, '<f4')

    # Only the last varint can be cut: any other would run into the next, and be too many or too
    # few.
    data = np.frombuffer(packed, np.uint8)
    if data.size and data[-1] > 127:
        raise ValueError('a varint is cut')
    return _varints(data, np.flatnonzero(data < 128))
