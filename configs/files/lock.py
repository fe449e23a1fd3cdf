"""Locks that one process at a time has, and that end with it, however that ends.

Owns the file .lock of a folder, the note of its owner there, and the line for whoever comes second.
It must not know what the folder is for. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_jax.configs.errors import UserError

LOCK = '.lock'


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


@contextlib.contextmanager
def lock_folder(
    folder: str, flag: str, is_result: Callable[[Path], bool] = _has_content
) -> Iterator[None]:
    """Keep a second process out of a folder, which is made where there is none.

    A folder that was made here and of which nothing came, because what followed was refused, is
    taken away again. An object store (gs://) has no locks: a lock there would outlive a crash.

    Args:
      folder: the folder.
      flag: the option that named it, as --workdir.
      is_result: tells whether a file or folder in it is more than what was prepared.

    Raises:
      UserError: another process has the lock, or nothing can be written there.
    """
    if not folder:
        raise UserError(f'{flag}= is empty: name a folder')
    if '://' in folder:
        yield
        return

    # Which of the folders are ours is noted before they are made: only those may go again.
    path = Path(folder)
    with contextlib.ExitStack() as stack:
        try:
            ours = [each for each in (path, *path.parents) if not each.exists()]
            path.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(take_lock(path / LOCK))
            if lock is not None:
                # A process that was killed left its own number there.
                os.ftruncate(lock, 0)
                os.write(lock, f'pid {os.getpid()}'.encode())
        except OSError as error:
            why = 'it is a file' if isinstance(error, FileExistsError) else error.strerror
            raise UserError(
                f'{flag}={folder}: nothing can be written there ({why}): make room, or name another'
                ' folder'
            ) from error
        if lock is None:
            raise UserError(
                f'{flag}={folder}: another process ({_read_owner(path)}) is writing in it: stop'
                ' that one, or use another folder'
            )

        # BaseException: also where ^C or sys.exit ends the work before anything was written.
        try:
            yield
        except BaseException as error:
            _remove_empty(ours, isinstance(error, UserError), is_result)
            raise
        finally:
            # Before the lock ends: after it, the file may be another's.
            (path / LOCK).unlink(missing_ok=True)


def _remove_empty(folders: list[Path], is_refused: bool, is_result: Callable[[Path], bool]) -> None:
    """Remove folders that were made here, innermost first, where nothing came of them.

    No result is there, and either a mistake was refused or nothing but the lock was written: what a
    crash leaves is for whoever looks into it.
    """
    if not folders:
        return
    files = [each for each in folders[0].rglob('*') if each.name != LOCK]
    if (is_refused or not files) and not any(map(is_result, files)):
        shutil.rmtree(folders[0])
        for above in folders[1:]:
            with contextlib.suppress(OSError):  # another's, by now
                above.rmdir()


def _read_owner(folder: Path) -> str:
    """Return who has the lock of a folder, by its note, which may be gone by now."""
    owner = ''
    with contextlib.suppress(OSError):
        owner = (folder / LOCK).read_text().strip()
    return owner or 'unknown'


@contextlib.contextmanager
def take_lock(path: Path) -> Iterator[int | None]:
    """Take the lock of a file or a folder; None where another process has it.

    It is free when all processes that hold the descriptor, which is given, have ended. That is why
    it is no filelock: that library keeps the descriptor from the commands that are started.

    Args:
      path: a folder that is there, or a file, which is made with the folders above it.

    Raises:
      OSError: the file system knows no locks, or takes no file.
    """
    try:
        descriptor = _acquire(path)
    except BlockingIOError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(path: Path) -> int:
    flags = os.O_RDONLY
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT
    while True:
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        # Its last owner may have removed the file since it was opened: then there is another.
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
