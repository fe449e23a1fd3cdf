"""The protobuf wire format, read without a schema or a library.

It is protobuf.dev/programming-guides/encoding. A message is a row of fields, each a number with its
contents. This file must not know what any message means. A library would tie the versions of those
that bring generated code to each other.
"""

from __future__ import annotations

from collections.abc import Iterator


def fields(message: bytes, *wanted: int) -> Iterator[tuple[int, bytes]]:
    """Yield the wanted fields of a message as (number, contents); scalars come as their bytes.

    ValueError where it is none.
    """
    for number, start, end in spans(message, 0, len(message), *wanted):
        yield number, message[start:end]


def spans(text: bytes, at: int, limit: int, *wanted: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) of the contents of the wanted fields of text[at:limit]."""
    # Each field begins with its tag: the field's number, and in the low 3 bits how its end is
    # found.
    while at < limit:
        start, tag, at = at, *varint(text, at, limit)

        # 0: a varint; 2: a length, then so many bytes; 1 and 5: 8 and 4 bytes. 3 and 4 are groups,
        # which proto3 no longer writes.
        wire = tag & 7
        if wire == 0:
            start, (_, at) = at, varint(text, at, limit)
        elif wire == 2:
            size, at = varint(text, at, limit)
            start, at = at, at + size
        elif wire in (1, 5):
            start, at = at, at + (8 if wire == 1 else 4)
        else:
            raise ValueError(f'unknown wire type at byte {start}')

        # Checked for fields that nobody wants, too: after a wrong length all that follows is noise.
        if at > limit:
            raise ValueError(f'a field runs over its end at byte {start}')
        if tag >> 3 in wanted:
            yield tag >> 3, start, at


def varint(text: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return the varint at a byte, and the byte after it."""
    value = 0

    # Seven bits a byte, low ones first; the top bit says that more follow. 64 bits are ten bytes at
    # most.
    for shift in range(0, 70, 7):
        if at == limit:
            break
        byte = text[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(f'a varint is cut or too long at byte {at}')
