"""Files from elsewhere are files: no pipe that nobody writes to, and no device without an end.

Owns that check. It must not know what is in a file. Standard library only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bert_jax.configs.errors import UserError

# What a shell puts in the place of a file: `<(...)` and `-`.
_OF_THE_SHELL = ('/dev/fd/', '/dev/stdin', '/proc/self/fd/')


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise UserError where there is something that is neither a file nor a folder, nor a link.

    A link counts as what it leads to. What a shell passes as a file, and what is remote, is taken.
    """
    name = os.fspath(path)
    if '://' in name or name.startswith(_OF_THE_SHELL):
        return
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):  # absent, or a name that cannot be: whoever reads it says so
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f'{name}: is no file but a pipe, a socket or a device: copy it again')


def check_regular_files(folder: str | os.PathLike[str]) -> None:
    """Raise UserError where something in a folder is no regular file, folder or link to one."""
    name = os.fspath(folder)
    if '://' not in name and os.path.isdir(name):
        for path in Path(name).iterdir():
            check_regular(path)
