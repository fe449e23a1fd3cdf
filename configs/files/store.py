"""Results in a folder, each made once from the same inputs, and gone on with after a stop.

Owns the note of a result: what it is made from, whether it is whole, what it took; and the lock
that one process at a time has. It must not know how a result is made. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object


def digest(inputs: Any) -> str:
    """Return a hash of JSON values, which does not depend on the order of names in them."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs that differ, in the order of `now`."""
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if digest(before.get(name)) != digest(now.get(name))]


def read_note(path: Path, mend: str = 'it is damaged, or another file') -> dict[str, Any] | None:
    """Return the note in a file; None where there is none.

    Raises:
      UserError: the file holds something else; the line ends with `mend`.
    """
    return read_object(path, mend) if path.exists() else None


def write_note(path: Path, note: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a note, whole or not at all: a result with half of one would be nobody's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(note, indent=indent) + '\n')


@contextlib.contextmanager
def take_lock(path: Path) -> Iterator[int | None]:
    """Take the lock `path`, and give its file descriptor, or None where another process has it.

    It is free when all processes that hold the descriptor have ended. That is why it is no
    filelock: that library keeps the descriptor from the commands that are started.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None
    else:
        yield descriptor
    finally:
        os.close(descriptor)


class Result(NamedTuple):
    """A result that is whole.

    key: the digest of its inputs, which is an input of what is made from it. seconds: what it took.
    """

    folder: Path
    key: str
    seconds: float


class Store:
    """A folder with a folder for each result, and the notes of them in stages/.

    Attributes:
      path: the folder of all.
      results: those that `make` has made or found, by name, in their order.
    """

    def __init__(self, folder: str | os.PathLike[str], say: Callable[[str], None] = print):
        self.path = Path(folder)
        self.results: dict[str, Result] = {}
        self._say = say

    def of(self, name: str) -> Path:
        """Return the folder of a result."""
        return self.path / name

    def note(self, name: str) -> Path:
        """Return the file of a result's note."""
        return self.path / 'stages' / f'{name}.json'

    def done(self, name: str) -> bool:
        """Tell whether a result is there and whole."""
        note = read_note(self.note(name))
        return note is not None and note['done'] and self.of(name).exists()

    def make(self, name: str, inputs: Mapping[str, Any], fill: Callable[[Path], None]) -> Result:
        """Call `fill(folder)`, unless the folder is whole and was made from equal inputs.

        A result whose making was interrupted goes on in its folder; one that was made from other
        inputs is made again from nothing. What `fill` refuses (UserError) leaves nothing behind.

        Args:
          name: the folder.
          inputs: what it is made from, as JSON values.
          fill: what makes it.

        Raises:
          UserError: the folder holds what was not made here.
        """
        folder, path, key = self.of(name), self.note(name), digest(inputs)
        before, earlier = read_note(path), 0.0
        if before is None and folder.exists():
            raise UserError(
                f'{folder} exists, and was not made by this command: use another --workdir'
            )

        # The folder may have been deleted by hand.
        if before and before['key'] == key:
            earlier = before['seconds']
            if self.done(name):
                self._say(f'{name}: reused, made from the same inputs in {earlier:.0f} s')
                self.results[name] = Result(folder, key, earlier)
                return self.results[name]
            self._say(f'{name}: goes on where it was interrupted')
        else:
            names = ', '.join(list_changes(before.get('inputs', {}), inputs)) if before else ''
            self._say(f'{name}: made again, its inputs have changed ({names})' if before else name)
            shutil.rmtree(folder, ignore_errors=True)

        # The note first, so that a folder that is there after a crash is known as ours.
        facts: dict[str, Any] = {'key': key, 'done': False, 'seconds': earlier, 'inputs': inputs}
        new_folders = [parent for parent in path.parents if not parent.exists()]
        write_note(path, facts, 2)
        start = time.perf_counter()
        try:
            fill(folder)
            facts['done'] = True
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            path.unlink()
            for parent in new_folders:
                parent.rmdir()
            raise
        finally:
            # The time counts after a crash or ^C too, and the next process goes on.
            if path.exists():
                facts['seconds'] = earlier + time.perf_counter() - start
                write_note(path, facts, 2)
        self._say(f'{name}: done in {facts["seconds"]:.0f} s')
        self.results[name] = Result(folder, key, facts['seconds'])
        return self.results[name]
