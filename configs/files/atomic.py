"""Files and folders that appear whole or not at all.

Owns the temporary name and the renaming; it must not know what is written. A path is pathlib's or,
on storage that is not local (gs://), of a kind with the same methods (etils.epath).
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, TypeVar, cast

from bert_jax.configs.errors import UserError, is_disk_full
from bert_jax.configs.files.lock import take_lock

Folder = TypeVar('Folder', bound=os.PathLike[str])


@contextlib.contextmanager
def atomic_file(
    path: os.PathLike[str], mode: Literal['wb', 'w'] = 'wb', durable: bool = True
) -> Iterator[IO]:
    """Return a file to write that gets its name when the block ends well.

    Text is UTF-8. `durable`: to outlast a loss of power. A full disk is an OSError that names
    `path`.
    """
    target = cast(Path, path)
    temporary = _beside(target)
    try:
        # The new file is in the folder of the old one, so that renaming it is one step of the file
        # system: a reader sees the old content or the new one.
        with temporary.open(mode) if _remote(path) else _open(temporary, mode) as file:
            yield file
            file.flush()
            if durable and not _remote(path):  # an object store has no such thing, nor needs it
                os.fsync(file.fileno())
        # Only now it has its name; whatever fails before leaves the old file as it was.
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and is_disk_full(error) and error.filename is None:
            error.filename = os.fspath(path)  # a failing write names no file
        raise


def atomic_write(path: os.PathLike[str], content: str | bytes, durable: bool = True) -> None:
    """Write a small file, unless it holds that content: no full disk stops a resumed run."""
    content = content.encode() if isinstance(content, str) else content

    # The same content is not written again: a resumed run writes its config.json and tokenizer too,
    # and the disk may be full by now.
    target = cast(Path, path)
    if target.exists() and target.read_bytes() == content:
        return
    with atomic_file(path, durable=durable) as file:
        file.write(content)


@contextlib.contextmanager
def atomic_folder(path: Folder) -> Iterator[Folder]:
    """Return a new folder to fill that takes the name `path` when the block ends well.

    It is gone when the block does not. At `path` may be nothing before, or an empty folder.
    What a killed process has left of the same folder goes, too.
    """
    target = cast(Path, path)
    temporary = _beside(target)
    with contextlib.ExitStack() as stack:
        if not _remote(path):
            _remove_abandoned(target)
        temporary.mkdir(parents=True)
        if not _remote(path):
            with contextlib.suppress(OSError):  # a file system that knows no locks
                stack.enter_context(take_lock(Path(temporary)))
        try:
            yield cast(Folder, temporary)
            if not _remote(path):  # to outlast a loss of power, before the name says it is whole
                for file in Path(temporary).rglob('*'):
                    if file.is_file():
                        with file.open('rb') as written:
                            os.fsync(written.fileno())
            # rename replaces an empty folder on some systems and not on others: it goes first.
            if target.is_dir():
                target.rmdir()
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def new_folder(path: Folder, flag: str = '--output') -> Iterator[Folder]:
    """Return a folder to fill, as `atomic_folder`, whose name is free.

    Raises:
      UserError: something is there; the line names `flag`.
    """
    # An empty folder is taken: some tools make one beforehand.
    target = cast(Path, path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f'{flag}={path} is there and not empty: name another folder')
    with atomic_folder(path) as folder:
        yield folder


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary folders of `target` that no process fills any more."""
    for left in Path(target.parent).glob(f'.{glob.escape(target.name)}.*.tmp'):
        has_our_name = re.fullmatch('[0-9a-f]{12}', left.name.split('.')[-2])
        if has_our_name and left.is_dir():
            with contextlib.suppress(OSError), take_lock(left) as lock:
                if lock is not None:
                    shutil.rmtree(left, ignore_errors=True)


def _remote(path: os.PathLike[str]) -> bool:
    return '://' in os.fspath(path)


def _beside(path: Path) -> Path:
    """Return the hidden temporary name in the same folder, which no other process has."""
    return path.parent / f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp'


def _open(path: Path, mode: Literal['wb', 'w']) -> IO:
    # Newlines stay as they are on every system: the bytes of a file are part of a contract.
    encoding, newline = ('utf-8', '\n') if mode == 'w' else (None, None)
    return open(path, mode, encoding=encoding, newline=newline)
