"""Files of text before their lines: which match a pattern, how they are compressed, their bytes.

Owns globs (local or gs://) and decompression. Knows nothing of lines, documents or encodings.
"""

from __future__ import annotations

import bz2
import errno
import functools
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from etils import epath

from configs.errors import UserError, reading

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


def matching(
    patterns: str | Sequence[str], left_out: list[str] | None = None
) -> list[tuple[epath.Path, str]]:
    """(path, name below the globs' common root) of every file that matches, sorted by name.

    `patterns`: one or more, each a file, a folder (all files below it, or on gs:// in it), a glob
    (`**` for any depth), or several with commas between. What lies there and is not taken, because
    it is hidden, a link to a folder or no file, is added to `left_out` as 'PATH (why)'.
    Raises UserError where a pattern matches nothing, or what it matches cannot be reached.
    """
    # All patterns, one after the other, each with the folder that its names are relative to.
    left_out = [] if left_out is None else left_out
    tops: list[epath.Path | Path] = []
    files: list[epath.Path | Path] = []
    for part in _parts([patterns] if isinstance(patterns, str) else patterns):
        with reading(part):
            root, candidates = _remote(part) if '://' in part else _local(part, left_out)
            matches = [path for path in candidates if _is_text(path, part, left_out)]
        if not matches:
            lost = f'; left out: {", ".join(left_out[:5])}' if left_out else ''
            hint = f'check the path, and put a glob in quotes{lost}'
            raise UserError(f'no file matches {part!r}: {hint}')
        tops.append(root)
        files += matches

    # Names are relative to what all patterns have in common: the same on every machine, wherever
    # the corpus lies. That needs all paths absolute, or none.
    roots, paths = list(map(_posix, tops)), list(map(_posix, files))
    if len({path.startswith('/') for path in roots}) > 1:
        roots, paths = list(map(os.path.abspath, roots)), list(map(os.path.abspath, paths))
    common = os.path.commonpath(roots)

    # A file that two patterns match is there once. A name goes into keys and into the manifest, so
    # it must be text.
    by_name: dict[str, epath.Path] = {}
    for path in paths:
        name = PurePosixPath(path).relative_to(common).as_posix()
        try:
            name.encode()
        except UnicodeEncodeError:
            name = name.encode(errors='backslashreplace').decode()
            raise UserError(f"{name}: the file's name is not UTF-8: give it another") from None
        by_name[name] = epath.Path(path)
    return [(path, name) for name, path in sorted(by_name.items())]


def _posix(path: Any) -> str:
    """A path as text, gs://a as /gs/a, which epath takes for the same."""
    return path.as_posix().replace('gs://', '/gs/', 1)


def _parts(patterns: Sequence[str]) -> list[str]:
    """Patterns without commas, for names of which commas are no part."""
    all_parts = []
    for pattern in patterns:
        # A file whose own name has commas is meant as a whole.
        is_path = os.path.exists(os.path.expanduser(pattern))
        parts = [pattern] if is_path else [part for part in pattern.split(',') if part.strip()]
        if not parts:
            raise UserError(f'{pattern!r} names no file')
        all_parts += parts
    return all_parts


def _remote(part: str) -> tuple[epath.Path, list[epath.Path]]:
    """The root of a pattern on remote storage, and what matches."""
    if not part.startswith('gs://'):
        raise UserError(
            f'{part}: cannot be read from there: give a local path (download it first) or gs://'
        )

    # A walk through all of a bucket could take hours, and costs money.
    if '**' in part:
        raise UserError(f'{part}: ** is for local folders: on remote storage name each level (*/*)')

    # A folder, a file, or a glob, in this order, because a name may hold wildcard characters.
    path = epath.Path(part)
    if path.is_dir():
        return path, [match for match in path.glob('*') if not match.name.startswith('.')]
    if path.exists():
        return path.parent, [path]
    root, rest = _split_at_wildcard(path)
    return root, list(root.glob(rest)) if root.is_dir() else []


def _local(part: str, left_out: list[str]) -> tuple[Path, list[Path]]:
    """The root of a pattern among the files here, and what matches, as pathlib finds it.

    pathlib passes over folders that it may not read and links to folders without a word; here
    the first are refused and the others named.
    """
    # What is there by this very name is no glob, even with a bracket in its name.
    path = Path(part).expanduser()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        # a link to nothing, which `_is_text` refuses by name
        if path.is_symlink():
            return path.parent, [path]
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    else:
        return (path, _below(path, left_out)) if path.is_dir() else (path.parent, [path])

    # A glob. pathlib would pass over unreadable folders in silence, so each folder that it would
    # look into is opened once before.
    root, rest = _split_at_wildcard(path)
    if not root.is_dir():
        return root, []
    steps = rest.split('/')

    # From `**` on all of it is walked at once.
    deep = next((i for i, step in enumerate(steps) if step == '**'), None)
    for level in range(len(steps) if deep is None else deep + 1):  # the folders looked into
        for folder in root.glob('/'.join(steps[:level])) if level else [root]:
            if not folder.is_dir():
                continue
            if level == deep:
                _below(folder, left_out, hidden=False)
            else:
                os.scandir(folder).close()

    # `a/**` means all files below a, but to pathlib its folders
    return root, list(root.glob(f'{rest}/*' if rest.endswith('**') else rest))


def _split_at_wildcard(path: Any) -> tuple[Any, str]:
    """The part of a path before its first wildcard, and the rest."""
    steps = path.parts

    # Without any wildcard the last step is the rest: the file that is not there.
    wild = next((i for i, step in enumerate(steps) if re.search(r'[*?\[]', step)), len(steps) - 1)
    return type(path)(*steps[:wild]), '/'.join(steps[wild:])


def _below(root: Path, left_out: list[str], hidden: bool = True) -> list[Path]:
    """All files below a folder, without hidden ones and what stands behind links to folders.

    OSError for a folder that cannot be read. `hidden`: whether hidden files are worth a word.
    """

    def refuse(error: OSError) -> None:
        # os.walk passes over errors unless told otherwise
        raise error

    paths = []
    for folder, folders, files in os.walk(root, onerror=refuse):
        for name in folders:
            if os.path.islink(inner := os.path.join(folder, name)):
                left_out.append(f'{inner} (a link to a folder: give it too)')
        for name in files:
            path = Path(folder, name)
            if not name.startswith('.'):
                paths.append(path)
            elif hidden:
                left_out.append(f'{path} (hidden)')
    return paths


def _is_text(path: Any, part: str, left_out: list[str]) -> bool:
    """Whether what a pattern matches is a file. OSError for a link to nothing."""
    if path.is_file():
        return True

    # Below `**` its files match by themselves; elsewhere the user may have meant it.
    if path.is_dir():
        if '**' not in part:
            left_out.append(f'{path} (a folder: give it too)')
    elif path.is_symlink() and not path.exists():
        target = os.readlink(path)
        raise UserError(f'{path}: cannot be read (a link to {target}, which is not there)')
    else:
        left_out.append(f'{path} (no regular file)')
    return False


def compression_of(f: BinaryIO) -> Compression | None:
    """How an open file is compressed, by its first bytes; leaves it at its beginning."""
    # By content: a name says what somebody believed.
    head = f.read(max(map(len, _MAGIC)))
    f.seek(0)
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def chunks(f: BinaryIO, count: int | None = None, size: int = CHUNK) -> Iterator[bytes]:
    """The next `count` bytes of a file, or all, in chunks of at most `size`."""
    while chunk := f.read(size if count is None else min(size, count)):
        count = None if count is None else count - len(chunk)
        yield chunk


def decompressed(
    f: BinaryIO, compression: Compression | None, path: str, size: int = CHUNK
) -> Iterator[bytes]:
    """What a file holds, read `size` bytes at a time.

    Members that follow one another make one stream. A chunk is of bounded size, whatever the file
    says that it holds. Raises UserError, naming `path`, for a damaged or truncated file.
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
    """zlib's: what is left of the input stands beside the output."""
    while data and not member.eof:
        yield member.decompress(data, CHUNK)
        data = member.unconsumed_tail


def _from_buffer(member: Any, data: bytes) -> Iterator[bytes]:
    """bz2's and lzma's: what is left of the input stays inside."""
    # the output limit may leave input inside: it is asked for with nothing more to give
    yield member.decompress(data, CHUNK)
    while not member.eof and not member.needs_input:
        yield member.decompress(b'', CHUNK)


def _all(member: Any, data: bytes) -> Iterator[bytes]:
    """zstd's, which knows no limit."""
    yield member.decompress(data)
