"""A folder that one process at a time writes in.

It is made for that process, and taken away where nothing came of it. Owns what counts as nothing.
Must not know what is written there, but for the files that claim a workdir
(bert_jax/runs/workdir/workdir.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_folder
from bert_jax.input_pipeline.lock import LOCK, locked


@contextlib.contextmanager
def new_folder(output: str, flag: str = '--output') -> Iterator[epath.Path]:
    """Return a folder to fill, which takes the name `output` when all is done.

    It is gone when anything fails. UserError, naming `flag`, where the name is taken.
    """
    # An empty folder is taken: some tools make one beforehand.
    target = epath.Path(output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f'{flag}={output} is there and not empty: name another folder')

    # Under another name until all is there, so that a half-written folder is never found.
    with atomic_folder(target) as folder:
        yield folder


@contextlib.contextmanager
def lock(folder: str, flag: str = '--workdir') -> Iterator[None]:
    """Keep a second process out of a folder, which is made where there is none.

    A folder that was made here and of which nothing came, because what followed was refused, is
    taken away again. UserError, naming `flag`, where it is taken or cannot be written in.
    """
    if not folder:
        raise UserError(f'{flag}= is empty: name a folder')
    if '://' in folder:  # an object store has no locks, nor folders to take away
        _reach(folder, flag)
        yield
        return

    # Which of the folders are ours is noted before they are made: only those may go again.
    path = Path(folder)
    try:
        ours = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = 'it is a file' if isinstance(error, FileExistsError) else error.strerror
        raise UserError(
            f'{flag}={folder}: nothing can be written there ({why}): name another folder'
        ) from error

    # BaseException: also where ^C or sys.exit ends the run before it wrote anything.
    with locked(folder, flag):
        try:
            yield
        except BaseException as error:
            # Taken away only where we made it, no result is there, and either a mistake was refused
            # or nothing but the lock was written: a crash leaves its config.json for whoever looks
            # into it.
            nothing = ours and not any(map(_is_result, path.rglob('*')))
            if nothing and (isinstance(error, UserError) or os.listdir(path) == [LOCK]):
                shutil.rmtree(path)
                for above in ours[1:]:
                    with contextlib.suppress(OSError):  # another's, by now
                        above.rmdir()
            raise


def _is_result(path: Path) -> bool:
    """Tell whether `path` is more than what a run writes before its first log line."""
    # Written by every run as it starts; event files have a header before their first number.
    claim = (LOCK, 'config.json', 'data.json', 'starts.json', 'guessing.json')
    return (
        path.is_file()
        and path.name not in claim
        and path.parent.name != 'tokenizer'
        and not path.name.startswith('events.out.tfevents')
        and path.stat().st_size > 0
    )


def _reach(folder: str, flag: str) -> None:
    """Raise UserError where a folder that is no local one cannot be asked for."""
    try:
        epath.Path(folder).exists()
    except Exception as error:
        # each store has errors of its own, and a name like xx:// is a KeyError
        why = 'no such kind of path is known'
        if not isinstance(error, KeyError):
            why = (str(error).strip().splitlines() or [''])[0][:200]
        raise UserError(
            f'{flag}={folder}: cannot be reached ({why}): a local folder, or gs:// with a network'
        ) from error
