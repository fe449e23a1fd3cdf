"""TensorFlow's checkpoint files, read and written without TensorFlow.

They are the "V2" format of tf.train.Saver. Owns the bytes of NAME.index and
NAME.data-00000-of-00001. Must not know what the variables are.

The index is a sorted table as LevelDB's (tensorflow/core/lib/io/format.cc): blocks of keys and
values, a footer that says where they lie, a checksum after each. Key '' holds a BundleHeaderProto,
every other key is a variable's name and holds a BundleEntryProto
(tensorflow/core/protobuf/tensor_bundle.proto): type, shape, and the place of the values in the data
file, which are plain little-endian arrays with a CRC-32C each.

The host side reads protocol buffers and masked checksums too, for its records. The two sides share
no code but configs, which is standard library only, so these few lines are here once more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import google_crc32c
import ml_dtypes
import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError

_MAGIC = 0xDB4775248B80FB57  # LevelDB's kTableMagicNumber
_FOOTER = 48  # bytes: two block handles, padded to 40, and the magic number
# Numbers of tensorflow/core/framework/types.proto.
_DTYPES = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    9: np.int64,
    10: np.bool_,
    14: ml_dtypes.bfloat16,
    19: np.float16,
}


class Variable(NamedTuple):
    """Where an array lies, and its masked CRC-32C.

    Its type's number, its shape, the number of its data file, the place and bytes there.
    """

    type: int  # its number in types.proto
    shape: tuple[int, ...]
    shard: int  # number of the data file
    offset: int  # of its first byte, in that file
    size: int  # in bytes
    crc: int
    sliced: bool  # saved in parts, which are not read here


class Bundle:
    """A checkpoint that is open for reading.

    Attribute `variables`: what it holds, by name, in order.
    """

    def __init__(self, prefix: str):
        """`prefix` is the path without .index. UserError where the index is absent or damaged."""
        self._prefix, index = prefix, epath.Path(f'{prefix}.index')
        self.variables: dict[str, Variable] = {}
        if not index.exists():
            raise UserError(
                f'{index}: no such file: a TensorFlow checkpoint is NAME.index and'
                ' NAME.data-00000-of-00001'
            )
        try:
            # BundleHeaderProto: 1 num_shards, 2 endianness (0: little).
            entries = dict(_iterate_table(index.read_bytes()))
            header = _parse_message(entries.pop(b''))
            self._shards = header.get(1, [0])[0]
            if header.get(2, [0])[0] != 0:
                raise ValueError('its values are big-endian')
            for key, value in entries.items():
                self.variables[key.decode(errors='replace')] = _parse_variable(value)
        # Whatever a damaged table makes of these readers: too short, wrong types, absent fields.
        except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
            raise UserError(
                f'{index}: not a whole index of a TensorFlow checkpoint ({error!r}): copy it again'
            ) from error

    def read(self, name: str) -> np.ndarray:
        """Return the array of a variable; UserError where it cannot be had whole."""
        v = self.variables[name]

        # Size before checksum: a file that was cut off says so by its length.
        file = epath.Path(f'{self._prefix}.data-{v.shard:05d}-of-{self._shards:05d}')
        if v.sliced or v.type not in _DTYPES:
            raise UserError(
                f'{self._prefix}: {name} is saved in slices, or has a type that is not read here'
                f' (number {v.type} of types.proto): save the checkpoint again as plain arrays of'
                ' numbers'
            )
        if not file.exists():
            raise UserError(f'{file}: no such file, but {self._prefix}.index names it: copy it too')
        is_whole = v.size == np.dtype(_DTYPES[v.type]).itemsize * math.prod(v.shape)
        content = b''
        # What the table claims may be more than there is memory for.
        if is_whole and v.offset + v.size <= file.stat().length:
            with file.open('rb') as f:
                f.seek(v.offset)
                content = f.read(v.size)
        if not is_whole or len(content) != v.size or _compute_crc(content) != v.crc:
            raise UserError(
                f'{file}: damaged or cut off at {name} (byte {v.offset}): copy it again'
            )
        return np.frombuffer(content, _DTYPES[v.type]).reshape(v.shape)


def write(prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write float32 arrays as the checkpoint `prefix`: the data, and then the index."""
    # one data file; version 1
    entries: dict[bytes, bytes] = {b'': _encode_field(1, 1) + _encode_field(3, _encode_field(1, 1))}
    with epath.Path(f'{prefix}.data-00000-of-00001').open('wb') as f:
        # The order of the bytes of names, as the table has them; offset 0 is left out, as protobuf
        # does.
        offset = 0
        for name in sorted(arrays, key=str.encode):
            content = np.ascontiguousarray(arrays[name], '<f4').tobytes()
            shape = b''.join(
                _encode_field(2, _encode_field(1, size)) for size in arrays[name].shape
            )
            location = (_encode_field(4, offset) if offset else b'') + _encode_field(
                5, len(content)
            )
            crc = b'\x35' + struct.pack('<I', _compute_crc(content))  # field 6, fixed32
            # field 1: float32
            entries[name.encode()] = _encode_field(1, 1) + _encode_field(2, shape) + location + crc
            offset += f.write(content)
    # The index last: without it there is no checkpoint.
    epath.Path(f'{prefix}.index').write_bytes(_make_table(entries))


def _iterate_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a sorted table, in order."""
    if len(content) < _FOOTER or struct.unpack('<Q', content[-8:])[0] != _MAGIC:
        raise ValueError('no footer')
    footer = content[-_FOOTER:]
    at = 0
    # The footer is two handles, of the metaindex and the index; the index's entries hold the
    # handles of the blocks of data.
    for _ in range(2):  # of the block of metadata, which is not used
        _, at = _read_varint(footer, at)
    for _, handle in _iterate_block(content, *_read_handle(footer, at)):
        yield from _iterate_block(content, *_read_handle(handle, 0))


def _iterate_block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of one block, whose keys share beginnings with the ones before."""
    block, kind = content[offset : offset + size], content[offset + size]

    # After each block a byte for its compression and a checksum of both.
    crc = struct.unpack_from('<I', content, offset + size + 1)[0]
    if _compute_crc(content[offset : offset + size + 1]) != crc:
        raise ValueError(f'wrong checksum at byte {offset}')
    if kind != 0:
        raise ValueError('it is compressed')
    # At the end: the restart points, four bytes each, and their number; they serve look-ups only.
    end = size - 4 - 4 * struct.unpack('<I', block[-4:])[0]
    at, key = 0, b''
    while at < end:
        shared, at = _read_varint(block, at)
        more, at = _read_varint(block, at)
        length, at = _read_varint(block, at)
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + length]
        at += length


def _make_table(entries: Mapping[bytes, bytes]) -> bytes:
    """Return a sorted table of one block."""
    # Data, an empty metaindex, the index of one entry (a key at or after the last, and the handle),
    # then the footer.
    out = b''

    def add(rows: Mapping[bytes, bytes]) -> bytes:
        """Append a block whose every key stands whole; return its handle."""
        nonlocal out
        # Every key is a restart point, because none shares a beginning with the one before.
        block, restarts = b'', []
        for key, value in rows.items():
            restarts.append(len(block))
            for number in (0, len(key), len(value)):
                block += _encode_varint(number)
            block += key + value
        restarts = restarts or [0]
        block += struct.pack(f'<{len(restarts) + 1}I', *restarts, len(restarts))
        handle = _encode_varint(len(out)) + _encode_varint(len(block))
        out += block + b'\0' + struct.pack('<I', _compute_crc(block + b'\0'))
        return handle

    data = add(entries)
    handles = add({}) + add({max(entries): data})
    return out + handles.ljust(40, b'\0') + struct.pack('<Q', _MAGIC)


def _parse_variable(content: bytes) -> Variable:
    """Return the variable that a BundleEntryProto describes."""
    fields = _parse_message(content)

    # A field that is absent has protobuf's default, 0; repeated ones are lists.
    number = lambda field: fields.get(field, [0])[0]
    dims = _parse_message(fields.get(2, [b''])[0]).get(2, [])
    shape = tuple(_parse_message(dim).get(1, [0])[0] for dim in dims)
    return Variable(number(1), shape, number(3), number(4), number(5), number(6), 7 in fields)


def _parse_message(content: bytes) -> dict[int, list]:
    """Return {field's number: its values} of a protocol buffer: integers and bytes."""
    fields: dict[int, list] = {}
    value: int | bytes
    at = 0

    # A tag is a field's number and three bits for the kind: varint, bytes, four bytes.
    while at < len(content):
        tag, at = _read_varint(content, at)
        if tag & 7 == 0:
            value, at = _read_varint(content, at)
        elif tag & 7 == 2:
            size, at = _read_varint(content, at)
            value, at = content[at : at + size], at + size
        elif tag & 7 == 5:
            value, at = struct.unpack_from('<I', content, at)[0], at + 4
        else:
            raise ValueError(f'wire type {tag & 7}')
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _encode_field(number: int, value: int | bytes) -> bytes:
    """Return one field of a protocol buffer."""
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _read_handle(content: bytes, at: int) -> tuple[int, int]:
    """Return (offset, size) of a block."""
    offset, at = _read_varint(content, at)
    return offset, _read_varint(content, at)[0]


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return (number, the place after it)."""
    # Seven bits a byte, the lowest first; the eighth says that more follow.
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compute_crc(content: bytes) -> int:
    """Return CRC-32C as LevelDB and TensorFlow write it.

    Rotated and shifted, so that a checksum of checksums stays one.
    """
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
