"""Files of text before their lines: how they are opened and compressed, and their bytes.

Owns decompression. Knows nothing of lines, documents or encodings, nor of which files there are
(listing.py).
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

import google_crc32c
from etils import epath

from bert_jax.configs.errors import UserError, check_regular

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


def open_file(path: str) -> BinaryIO:
    """Open a file to read, local or gs://; UserError for a pipe that nobody may write to."""
    check_regular(path)
    # Without epath where it can be: making its paths costs more than reading a small file.
    if '://' in path:
        return epath.Path(path).open('rb')
    return open(path, 'rb')


def read_state(path: str) -> tuple[int, int]:
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


def detect_compression(f: BinaryIO) -> Compression | None:
    """Tell how an open file is compressed, by its first bytes; leave it at its beginning."""
    # By content: a name says what somebody believed.
    head = f.read(max(map(len, _MAGIC)))
    f.seek(0)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    return None


def iterate_chunks(f: BinaryIO, count: int | None = None, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the next `count` bytes of a file, or all, in chunks of at most `size`."""
    while True:
        wanted = size if count is None else min(size, count)
        chunk = f.read(wanted)
        if not chunk:
            return
        if count is not None:
            count -= len(chunk)
        yield chunk


def compute_crc32c(f: BinaryIO, count: int | None = None) -> int:
    """Return the checksum of the next `count` bytes of a file, or of all."""
    crc = 0
    for chunk in iterate_chunks(f, count):
        crc = google_crc32c.extend(crc, chunk)
    return crc


def iterate_unpacked(
    f: BinaryIO,
    compression: Compression | None,
    path: str,
    count: int | None = None,
    size: int = CHUNK,
) -> Iterator[bytes]:
    """Yield what a file holds in chunks, of at most `size` bytes but for zstd.

    Of a plain file only the next `count` bytes. Members that follow one another make one stream, as
    `cat a.gz b.gz` and parallel compressors write them.

    Raises:
      UserError: it names `path`, which is damaged or truncated.
    """
    openers: dict[str, Any] = {'gzip': gzip.open, 'bzip2': bz2.open, 'xz': lzma.open}
    if compression is None:
        yield from iterate_chunks(f, count, size)
        return
    try:
        if compression == 'zstd':
            yield from _zstd(f)
        else:
            yield from iterate_chunks(openers[compression](f), size=size)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f'{path}: damaged {compression} file ({error}): copy or make it again'
        ) from error


def _zstd(f: BinaryIO) -> Iterator[bytes]:
    """Yield what a zstd file holds; its library's own reader takes a truncated file for a whole."""
    import zstandard

    # It knows no limit on its output, so little is fed to it at a time.
    new = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
    member = new()
    for data in iterate_chunks(f, size=_ZSTD_CHUNK):
        while data:
            if member.eof:
                member = new()
            try:
                yield member.decompress(data)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            data = member.unused_data
    if not member.eof:
        raise EOFError('it ends before its data do: truncated?')
