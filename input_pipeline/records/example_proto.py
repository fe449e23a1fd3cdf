"""tf.train.Example messages to arrays and back, whole batches at a time with numpy.

An Example is a map from names to lists of numbers. This file knows how protobuf lays one out
(wire.py reads any message) and features of fixed length; it must not know which features a
record has (records/fields.py does) nor how records lie in files (shards.py does).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bert_jax.input_pipeline.wire import fields

# Tags of the protobuf fields: (field number << 3) | 2, where 2 means "length-delimited".
_FIELD_1, _FIELD_2 = 0x0A, 0x12
# A feature's header is looked at eight bytes together: up to seven too many, of which the numbers
# behind it may not be enough in the last record.
_LOOKS_BEYOND = 7
_LIST_TAG = {'float': 0x12, 'int': 0x1A}  # Feature.float_list, Feature.int64_list
_ROWS_AT_ONCE = 1024  # that are encoded: the buffers stay within a few megabytes, as caches have


class BadRecord(ValueError):
    """A record that does not hold what the schema promises; `row` counts in its batch."""

    def __init__(self, row: int, reason: str):
        super().__init__(f'row {row}: {reason}')
        self.row, self.reason = row, reason


@dataclass(frozen=True)
class Feature:
    """One feature of fixed length: its name, how many values a record holds, and their type."""

    name: str
    length: int
    kind: Literal['int', 'float']  # Int64List or FloatList

    @property
    def dtype(self) -> type:
        """Return the type of its decoded values."""
        return np.int32 if self.kind == 'int' else np.float32


# ---- encoding


def encode(features: Sequence[Feature], columns: dict[str, np.ndarray]) -> tuple[bytes, np.ndarray]:
    """Serialise a batch of N records.

    Args:
      features: what each record holds, in the order of writing.
      columns: one array a feature, [N, length]; ints must be in [0, 2**31).

    Returns:
      The N tf.train.Example messages one after the other, and int64 offsets [N + 1]:
      record i is payload[offsets[i]:offsets[i + 1]].
    """
    # Checked first: negative numbers would take ten bytes, which _varints_of cannot.
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


def _encode_chunk(
    features: Sequence[Feature], arrays: dict[str, np.ndarray]
) -> tuple[bytes, np.ndarray]:
    """Encode a few rows: (payload bytes, bytes of each row [N])."""
    # The rows are laid out as a matrix of bytes with room for the longest varint in each place,
    # with a matrix that says which bytes are used. A piece is such a pair, [N, width] each.
    pieces, total = [], np.zeros(len(arrays[features[0].name]), np.int64)
    for feature in features:
        # The values: floats are four bytes each, ints as many as they need.
        array, headers = arrays[feature.name], _headers(feature)
        if feature.kind == 'float':
            cells = np.ascontiguousarray(array, '<f4').view(np.uint8)
            used = np.ones((1, cells.shape[1]), bool)
        else:
            cells, used = _varints_of(array)

        # Before them comes what each message has in front: it depends on their size alone.
        size = used.sum(axis=1, dtype=np.int64)
        row = np.broadcast_to(size - headers.least, total.shape)
        width = headers.widths[row].max(initial=0)
        words, there = (part.view(np.uint8)[row, :width] for part in (headers.words, headers.used))
        pieces += [(words, there > 0), (cells, used)]
        total += headers.widths[row] + size

    # The message as a whole begins with its own length.
    tag = np.full((1, 1), _FIELD_1, np.uint8), np.ones((1, 1), bool)
    pieces = [tag, _varints_of(total[:, None]), *pieces]

    # All pieces next to each other, then the used cells row after row: numpy reads a boolean
    # selection in this order, so the records come out whole.
    bounds = np.cumsum([0, *(cells.shape[1] for cells, _ in pieces)])
    matrix, selected = (np.empty((len(total), bounds[-1]), kind) for kind in (np.uint8, bool))
    for start, end, (cells, used) in zip(bounds, bounds[1:], pieces):
        matrix[:, start:end], selected[:, start:end] = cells, used
    return matrix[selected].tobytes(), selected.sum(axis=1, dtype=np.int64)


def _varints_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return varints of values [N, K]: cells, as many each as the largest needs; which are used."""
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
    """Decode N serialised records: [N, length] int32 or float32 a feature.

    Records may come from any writer of tf.train.Example (other order of features, unpacked
    lists); those that share the first record's layout are decoded together.

    Raises:
      BadRecord: a record is damaged, lacks a feature, or has one of another length.
    """
    # All at once where records are alike, as those of one program are; else one at a time.
    count = len(payloads)
    columns: dict[str, np.ndarray] = {
        f.name: np.empty((count, f.length), f.dtype) for f in features
    }
    bounds = np.cumsum([0, *map(len, payloads)])
    text = b''.join([*payloads, bytes(_LOOKS_BEYOND)])
    if count and not decode_alike(features, text, bounds[:-1], bounds[1:], columns):
        for row, payload in enumerate(payloads):
            for name, values in _decode_one(features, row, payload).items():
                columns[name][row] = values
    return columns


def decode_alike(
    features: Sequence[Feature],
    text: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    columns: Mapping[str, np.ndarray] | np.ndarray,
    below: Mapping[str, int] | None = None,
) -> bool:
    """Decode N records that lie in one text, where all have the layout of the first one.

    Args:
      features: what each record holds.
      text: holds the records. The features of ours need nothing after the last one but the four
        bytes that a TFRecord file has there; others may need up to _LOOKS_BEYOND, and are not
        decoded without.
      starts: [N], where they begin.
      ends: [N], where they end.
      columns: [N, length] a feature, filled with its numbers; of any type that takes them.
      below: names of whole numbers -> what all of them must be less than.

    Returns:
      Whether they were decoded. False says nothing of the records but that `decode` has to look
      at them; `columns` may be filled in part.
    """
    # Where each feature's numbers lie in every record; this proves all that is not a number. In the
    # order in which `encode` writes them, or else as the first record has it.
    limits = {f.name: 1 << 31 for f in features} | dict(below or {})
    order = features
    regions = _regions(text, starts, ends, order, limits)
    if regions is None:
        order = _order_in(text[starts[0] : ends[0]], features)
        regions = _regions(text, starts, ends, order, limits)
    if regions is None:
        return False

    # The numbers of a feature, cut out of all records and decoded as one run.
    for feature, (begin, sizes) in zip(order, regions, strict=True):
        numbers = _numbers_of(feature, text, begin, sizes, limits[feature.name])
        if numbers is None:
            return False
        columns[feature.name][:] = numbers
    return True


def _order_in(payload: bytes, features: Sequence[Feature]) -> Sequence[Feature]:
    """Return the features in the order of a record, or as given where it has others."""
    by_name = {f.name: f for f in features}
    try:
        names = [name for name, _, _ in _features(payload)]
    except ValueError:
        return features
    return [by_name[name] for name in names] if sorted(names) == sorted(by_name) else features


def all_below(numbers: np.ndarray, limit: int) -> bool:
    """Tell whether all whole numbers are in [0, limit): one maximum, read as unsigned."""
    # What is negative becomes large.
    return bool(numbers.view(f'u{numbers.itemsize}').max(initial=0) < limit)


def _numbers_of(
    feature: Feature, text: bytes, starts: np.ndarray, sizes: np.ndarray | int, limit: int
) -> np.ndarray | None:
    """Return [N, length]: the numbers in those stretches of the text, each of a possible size.

    None where there are more or fewer, or a whole number that is not below the limit.
    """
    # Cut out: by numpy where all are of one size.
    if isinstance(sizes, int):
        packed = _windows(text, sizes)[starts].view(np.uint8)
    else:
        ends = (starts + sizes).tolist()
        packed = np.frombuffer(
            b''.join([text[s:e] for s, e in zip(starts.tolist(), ends, strict=True)]), np.uint8
        )
    shape = (len(starts), feature.length)
    if feature.kind == 'float':
        return packed.view('<f4').reshape(shape)

    # A byte each: no size is less, so every record has as many as it should.
    if packed.size == shape[0] * shape[1]:
        return packed.reshape(shape) if packed.max() < min(128, limit) else None

    # As many varints in all as there should be, and the last one of each record ends with the
    # record's part, or numbers of one record would slip into the next.
    last = np.flatnonzero(packed < 128)  # the last byte of each varint
    if last.size != shape[0] * shape[1]:
        return None
    if (last[shape[1] - 1 :: shape[1]] + 1 != np.cumsum(np.broadcast_to(sizes, shape[0]))).any():
        return None

    # What is beyond the limit is refused elsewhere, by row and feature.
    values = _varints(packed, last)
    return values.reshape(shape) if all_below(values, limit) else None


def _regions(
    text: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    order: Sequence[Feature],
    limits: Mapping[str, int],
) -> list[tuple[np.ndarray, np.ndarray | int]] | None:
    """Find where each feature's values lie in each record: starts [N], and sizes [N] or one.

    All records are walked at once. None unless every record is written canonically, with packed
    lists, in this order of features, and with numbers that take no more bytes than those below
    their limits may.
    """
    # `at` [N]: the byte in every record up to which it has been read. First the message itself:
    # its tag, and a length that ends with the record.
    data = np.frombuffer(text, np.uint8)
    length, at = _length(data, starts + 1)
    if (data[starts] != _FIELD_1).any() or (at + length != ends).any():
        return None

    # How many bytes the numbers take: as many as each has to, or as the entry's length says. That
    # these are the numbers of this feature is taken for granted, and proved below.
    begun, regions = [], []
    for feature in order:
        headers = _headers(feature)
        size: np.ndarray | int = headers.least
        if feature.kind == 'int' and limits[feature.name] > 128:
            length, _ = _length(data, at + 1)
            size = headers.size_of[np.minimum(length, len(headers.size_of) - 1)]
            if np.min(size) < 0:
                return None
        row = size - headers.least
        begun.append((headers, row, at))
        at = at + headers.widths[row]
        regions.append((at, size))
        at = at + size

    # Nothing may follow the last feature, and what precedes the numbers of each is what that
    # size says: looked up, and compared as a whole.
    if (at != ends).any():
        return None
    try:
        for headers, row, start in begun:
            actual = _windows(text, headers.words.shape[1] * 8)[start].view(np.uint64)
            words, used = headers.words.take(row, 0), headers.used.take(row, 0)
            if ((actual.reshape(len(at), -1) ^ words) & used).max() > 0:
                return None
    except IndexError:  # too little follows the last record
        return None
    return regions


def _length(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths [N] that begin at those bytes [N], and the bytes after them [N].

    -1 for one of more than three bytes, which would be two megabytes: no record of ours. What lies
    beyond the data reads as its last byte.
    """
    # In all records together: those whose length has ended add nothing.
    value, more = np.zeros(len(at), np.int64), np.ones(len(at), bool)
    for shift in (0, 7, 14):
        byte = data.take(at, mode='clip') * more.astype(np.int64)
        value |= (byte & 127) << shift
        at, more = at + more, byte > 127
    return np.where(more, -1, value), at


def _windows(text: bytes, size: int) -> np.ndarray:
    """View every run of `size` bytes of the text: only those asked for are copied."""
    return np.ndarray(len(text) - size + 1, f'V{size}', text, strides=(1,))


class _Headers(NamedTuple):
    """What is in front of the numbers of a feature, for all sizes [K] that they may have.

    size_of: the size that an entry of each length has, -1 where none has; least: the least size;
    words [K, W]: the bytes, eight together; used: all bits of those that are there; widths [K]: how
    many bytes.
    """

    size_of: np.ndarray
    least: int
    words: np.ndarray
    used: np.ndarray
    widths: np.ndarray


@functools.cache
def _headers(feature: Feature) -> _Headers:
    # A float takes four bytes, an int up to five; negative ones take ten and need the slow way.
    sizes = np.arange(feature.length, 5 * feature.length + 1)
    if feature.kind == 'float':
        sizes = np.array([4 * feature.length])

    # From the inside, each with the length of all behind it: the packed list, the Feature that
    # holds it, the entry's key, and the entry, which is all but its own tag and length.
    # One byte for the length of the name: names are shorter than 128.
    name = feature.name.encode('ascii')
    key = bytes([_FIELD_1, len(name)]) + name + bytes([_FIELD_2])
    pieces: list[tuple[np.ndarray, np.ndarray]] = []
    behind = entries = sizes
    for prefix in (bytes([_FIELD_1]), bytes([_LIST_TAG[feature.kind]]), key, bytes([_FIELD_1])):
        entries = behind
        cells, used = _varints_of(behind[:, None])
        front = np.frombuffer(prefix, np.uint8)[None]
        pieces = [(front, front > 0), (cells, used), *pieces]
        behind = behind + len(prefix) + used.sum(axis=1)

    # All sizes at once: cells that are used, row after row, to the left of a row of whole words.
    rows = [np.broadcast_to(part, (len(sizes), part.shape[1])) for part, _ in pieces]
    selected = np.hstack([np.broadcast_to(u, r.shape) for (_, u), r in zip(pieces, rows)])
    widths = selected.sum(axis=1)
    words, used = (np.zeros((len(sizes), -(-widths.max() // 8)), np.uint64) for _ in range(2))
    there = np.arange(words.shape[1] * 8) < widths[:, None]
    words.view(np.uint8)[there] = np.hstack(rows)[selected]
    used.view(np.uint8)[there] = 255
    size_of = np.full(entries[-1] + 2, -1)  # one more, for all that are too long
    size_of[entries] = sizes
    return _Headers(size_of, int(sizes[0]), words, used, widths)


def _varints(packed: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the values of a run of varints (uint8) whose last bytes are at `last`.

    As int64, they wrap as protobuf's do; in a smaller type where no number is long.
    """
    # Every number is a byte by itself.
    if last.size == packed.size:
        return packed

    # Whether the k bytes before each byte belong to its number, for k = 1, 2 and so on. Bytes
    # beyond the tenth would wrap; protobuf ignores them too.
    goes_on = packed > 127
    belong: list[np.ndarray] = []
    run = goes_on[:-1]
    while run.any() and len(belong) < 9:
        belong.append(run)
        run = run[1:] & goes_on[: len(run) - 1]

    # Every byte as if it were the last of its number: the highest bits are its own, and those of
    # the bytes before it come behind. All of them, because that takes less than picking them.
    kind: type[np.signedinteger] = np.int64
    if len(belong) < 2:
        kind = np.int16
    elif len(belong) < 4:
        kind = np.int32
    values = packed.astype(kind)
    low = packed & np.uint8(127)
    for back, run in enumerate(belong, 1):
        later = values[back:]
        np.left_shift(later, run * np.uint8(7), out=later)
        np.bitwise_or(later, low[:-back] * run, out=later)
    return values[last]


def _decode_one(features: Sequence[Feature], row: int, payload: bytes) -> dict[str, np.ndarray]:
    """Decode one record of any layout, feature by feature."""
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


def bytes_of(payload: bytes, name: str) -> list[bytes]:
    """Return the values of a feature of bytes in one Example; none where it is absent."""
    values: list[bytes] = []
    for feature, kind, body in _features(payload):
        if feature == name and kind == 'bytes':
            values += [value for _, value in fields(body, 1)]
    return values


def _features(payload: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Yield each feature of an Example: (name, 'int' or 'float' or 'bytes', its list message)."""
    kinds = {1: 'bytes', 2: 'float', 3: 'int'}  # numbers of the fields of the oneof in Feature
    for _, message in fields(payload, 1):
        for _, entry in fields(message, 1):
            # 1: the name; 2: the Feature. An entry without either is valid protobuf, and means
            # "empty".
            parts = dict(fields(entry, 1, 2))
            for number, body in fields(parts.get(2, b''), 1, 2, 3):
                yield parts.get(1, b'').decode('utf-8'), kinds[number], body


def _numbers(kind: str, body: bytes) -> np.ndarray:
    """Return the values of an Int64List or FloatList, packed or not."""
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
