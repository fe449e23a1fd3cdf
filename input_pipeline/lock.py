"""One process at a time in a folder.

Owns the file .lock of the folder, the note of its owner there, and the line for whoever comes
second. The lock ends with its process, however that ends. It must not know what the folder is for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from bert_jax.configs.errors import UserError

LOCK = '.lock'


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str], flag: str) -> Iterator[None]:
    """Keep a second process out of an existing folder; an object store (gs://) has no locks.

    The file goes with the lock; a process that was killed leaves it, and it keeps nobody out then.

    Raises:
      UserError: it names `flag`; another process has the lock, or no file can be written there.
    """
    # Object stores: nothing there ends with the process, so a "lock" would outlive a crash for
    # ever.
    if '://' in os.fspath(folder):
        yield
        return
    path = Path(folder) / LOCK

    # A second attempt may not wait, and may not touch what the owner has noted.
    lock = filelock.FileLock(path, blocking=False, on_acquired=_note_owner)

    # Who has it is read from the owner's note, which may be gone by now: then it is "unknown".
    try:
        lock.acquire()
    except filelock.Timeout:
        owner = ''
        with contextlib.suppress(OSError):
            owner = path.read_text().strip()
        raise UserError(
            f'{flag}={folder}: another process ({owner or "unknown"}) is writing in it: stop that'
            ' one, or use another folder'
        ) from None
    except OSError as error:
        raise UserError(
            f'{flag}={folder}: nothing can be written there ({error.strerror}): make room, or name'
            ' another folder'
        ) from error

    # The work of the caller.
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release: after it, it may be another's
        lock.release()


def _note_owner(file: int) -> None:
    # A process that was killed left its own number there.
    os.ftruncate(file, 0)
    os.write(file, f'pid {os.getpid()}'.encode())
