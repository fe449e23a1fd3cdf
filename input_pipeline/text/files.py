"""Files of text before their lines: how they are opened and compressed, and their bytes.

Owns decompression. Knows nothing of lines, documents or encodings, nor of which files there are
(inputs/listing.py).
"""

from __future__ import annotations

import bz2
import functools
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal

from etils import epath

from bert_jax.configs.errors import UserError

CHUNK = 1 << 20  # bytes read at once
_ZSTD_CHUNK = 1 << 12  # of input: at the very most 128 MiB of output
_ZSTD_WINDOW = 1 << 31  # bytes back that a file may refer to: all that `zstd --long=31` writes

Compression = Literal['gzip', 'bzip2', 'xz', 'zstd']
_MAGIC: dict[bytes, Compression] = {
    b'\x1f\x8b': 'gzip',
    b'BZh': 'bzip2',
    b'\xfd7zXZ\x00': 'xz',
    b'\x28\xb5\x2f\xfd': 'zstd',
    # 16 marks of a frame to be passed over, with which parallel compressors may begin
    **{bytes([mark]) + b'\x2a\x4d\x18': 'zstd' for mark in range(0x50, 0x60)},
}


def opened(path: str) -> BinaryIO:
    """Open a file to read, local or gs://."""
    # Without epath where it can be: making its paths costs more than reading a small file.
    return epath.Path(path).open('rb') if '://' in path else open(path, 'rb')


def state(path: str) -> tuple[int, int]:
    """Return (bytes, when they were written) of a file as it is now, by which a change is seen."""
    if '://' in path:
        remote = epath.Path(path).stat()
        return remote.length, int(remote.mtime)
    local = os.stat(path)
    return local.st_size, local.st_mtime_ns


def changed(path: str) -> UserError:
    """Word the error for a file that has changed while it was read."""
    return UserError(
        f'{path}: has changed since the reading began, and only a part of it may be read: run the'
        ' same command again when nobody writes there'
    )


def compression_of(f: BinaryIO) -> Compression | None:
    """Tell how an open file is compressed, by its first bytes; leave it at its beginning."""
    # By content: a name says what somebody believed.
    head = f.read(max(map(len, _MAGIC)))
    f.seek(0)
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def chunks(f: BinaryIO, count: int | None = None, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the next `count` bytes of a file, or all, in chunks of at most `size`."""
    while chunk := f.read(size if count is None else min(size, count)):
        count = None if count is None else count - len(chunk)
        yield chunk


def decompressed(
    f: BinaryIO, compression: Compression | None, path: str, size: int = CHUNK
) -> Iterator[bytes]:
    """Yield what a file holds, read `size` bytes at a time.

    Members that follow one another make one stream. A chunk is of bounded size, whatever the file
    says that it holds.

    Raises:
      UserError: it names `path`, which is damaged or truncated.
    """
    if compression is None:
        yield from chunks(f, size=size)
        return

    # One loop for all four: `new` begins a member, `inflate` feeds it, and each library says its
    # own way what it has not used.
    new: Callable[[], Any]  # what takes a member apart: the libraries share no type
    inflate: Callable[[Any, bytes], Iterator[bytes]]
    errors: tuple[type[Exception], ...]

    # zstd knows no limit on its output, so little is fed to it at a time.
    if compression == 'zstd':
        import zstandard

        new = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
        inflate, errors = _all, (zstandard.ZstdError,)
        size = min(size, _ZSTD_CHUNK)
    else:
        # | 16: with gzip's header, not zlib's
        gzip = functools.partial(zlib.decompressobj, zlib.MAX_WBITS | 16)
        kinds: dict[str, Callable[[], Any]] = {
            'gzip': gzip,
            'bzip2': bz2.BZ2Decompressor,
            'xz': lzma.LZMADecompressor,
        }
        new = kinds[compression]
        inflate = _from_tail if compression == 'gzip' else _from_buffer
        errors = (zlib.error, OSError, lzma.LZMAError)

    # Members follow one another, as `cat a.gz b.gz` and parallel compressors write them: what one
    # does not use begins the next.
    member, damaged = new(), None
    try:
        for data in chunks(f, size=size):
            while data:
                if member.eof:
                    data = data.lstrip(b'\0')  # padding after the last member
                    member = new() if data else member
                if data:
                    yield from inflate(member, data)
                    data = member.unused_data
    except errors as error:
        damaged = str(error)

    # A file that was cut in its middle gives good data up to there, and no error.
    if damaged is None and not member.eof:
        damaged = 'it ends before its data do: truncated?'
    if damaged is not None:
        raise UserError(f'{path}: damaged {compression} file ({damaged}): copy or make it again')


def _from_tail(member: Any, data: bytes) -> Iterator[bytes]:
    """Yield zlib's output; what is left of the input is an attribute of the decompressor."""
    while data and not member.eof:
        yield member.decompress(data, CHUNK)
        data = member.unconsumed_tail


def _from_buffer(member: Any, data: bytes) -> Iterator[bytes]:
    """Yield the output of bz2 or lzma, which keep what is left of the input inside."""
    # the output limit may leave input inside: it is asked for with nothing more to give
    yield member.decompress(data, CHUNK)
    while not member.eof and not member.needs_input:
        yield member.decompress(b'', CHUNK)


def _all(member: Any, data: bytes) -> Iterator[bytes]:
    """Yield the output of zstd, which has no limit."""
    yield member.decompress(data)
