"""Files of text before their lines: which match a pattern, how they are compressed, their bytes.

Owns globs (local or gs://) and decompression. Knows nothing of lines, documents or encodings.
"""

from __future__ import annotations

import bz2
import functools
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from etils import epath

from configs.errors import UserError

CHUNK = 1 << 20
_ZSTD_CHUNK = 1 << 12  # of input: at the very most 128 MiB of output
_MAGIC = {b'\x1f\x8b': 'gzip', b'BZh': 'bzip2', b'\xfd7zXZ\x00': 'xz', b'\x28\xb5\x2f\xfd': 'zstd'}

Compression = Literal['gzip', 'bzip2', 'xz', 'zstd']


def matching(pattern: str) -> list[tuple[epath.Path, str]]:
    """(path, name below the glob's root) of every file that matches, sorted by name.

    `pattern`: a file, a folder (all files below it, or on gs:// in it), a glob (`**` for any depth), or several with commas between.
    Raises UserError where one of them matches nothing.
    """
    parts = [pattern] if epath.Path(pattern).exists() else [part for part in pattern.split(',') if part]
    roots, paths = [], []
    for part in parts:
        path = epath.Path(part) if '://' in part else Path(part).expanduser()
        if '://' in part and '**' in part:
            raise UserError(f'{part}: ** is for local folders: on remote storage name each level (*/*)')
        if path.is_dir():
            root, found = path, [match for match in path.glob('*' if '://' in part else '**/*') if not match.name.startswith('.')]
        elif path.exists():
            root, found = path.parent, [path]
        else:
            wild = next((i for i, step in enumerate(path.parts) if re.search(r'[*?\[]', step)), len(path.parts) - 1)
            root, rest = type(path)(*path.parts[:wild]), '/'.join(path.parts[wild:])
            found = root.glob(f'{rest}/*' if rest.endswith('**') else rest) if root.is_dir() else []
        matches = [match for match in found if match.is_file()]
        if not matches:
            raise UserError(f'no file matches {part!r}: check the path, and put a glob in quotes')
        roots.append(str(root))
        paths += matches
    common = epath.Path(roots[0] if len(set(roots)) == 1 else os.path.commonpath(roots))
    return [(epath.Path(path), name) for name, path in sorted({path.relative_to(common).as_posix(): path for path in paths}.items())]


def compression_of(f: BinaryIO) -> Compression | None:
    """How an open file is compressed, by its first bytes; leaves it at its beginning."""
    head = f.read(max(map(len, _MAGIC)))
    f.seek(0)
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def chunks(f: BinaryIO, count: int | None = None, size: int = CHUNK) -> Iterator[bytes]:
    """The next `count` bytes of a file, or all, in chunks of at most `size`."""
    while chunk := f.read(size if count is None else min(size, count)):
        count = None if count is None else count - len(chunk)
        yield chunk


def decompressed(f: BinaryIO, compression: Compression | None, path: str, size: int = CHUNK) -> Iterator[bytes]:
    """What a file holds, read `size` bytes at a time; members that follow one another make one stream.

    A chunk is of bounded size, whatever the file says that it holds. Raises UserError, naming
    `path`, for a damaged or truncated file.
    """
    if compression is None:
        yield from chunks(f, size=size)
        return
    if compression == 'zstd':
        import zstandard

        new, inflate, errors = zstandard.ZstdDecompressor().decompressobj, _all, zstandard.ZstdError
        size = min(size, _ZSTD_CHUNK)
    else:
        gzip = functools.partial(zlib.decompressobj, zlib.MAX_WBITS | 16)
        new = {'gzip': gzip, 'bzip2': bz2.BZ2Decompressor, 'xz': lzma.LZMADecompressor}[compression]
        inflate = _from_tail if compression == 'gzip' else _from_buffer
        errors = (zlib.error, OSError, lzma.LZMAError)
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
    if damaged is None and not member.eof:
        damaged = 'it ends before its data do: truncated?'
    if damaged is not None:
        raise UserError(f'{path}: damaged {compression} file ({damaged}): copy or make it again')


def _from_tail(member: Any, data: bytes) -> Iterator[bytes]:
    """zlib's: what is left of the input stands beside the output."""
    while data and not member.eof:
        yield member.decompress(data, CHUNK)
        data = member.unconsumed_tail


def _from_buffer(member: Any, data: bytes) -> Iterator[bytes]:
    """bz2's and lzma's: what is left of the input stays inside."""
    yield member.decompress(data, CHUNK)
    while not member.eof and not member.needs_input:
        yield member.decompress(b'', CHUNK)


def _all(member: Any, data: bytes) -> Iterator[bytes]:
    """zstd's, which knows no limit."""
    yield member.decompress(data)
