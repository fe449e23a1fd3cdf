"""Files that appear whole or not at all.

Owns the temporary name and the renaming; it must not know what is written.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import IO, Literal

from etils import epath


@contextlib.contextmanager
def whole_file(path: epath.PathLike, mode: Literal['wb', 'w'] = 'wb', durable: bool = True) -> Iterator[IO]:
    """A file to write that gets its name when the block ends well. Text is UTF-8. `durable`: to outlast a loss of power."""
    path = epath.Path(path)
    temporary = path.parent / f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp'
    remote = '://' in os.fspath(path)
    how = {'encoding': 'utf-8', 'newline': '\n'} if mode == 'w' else {}
    try:
        with temporary.open(mode) if remote else open(temporary, mode, **how) as file:
            yield file
            file.flush()
            if durable and not remote:  # an object store has no such thing, nor needs it
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: epath.PathLike, text: str) -> None:
    """Writes a small text file."""
    with whole_file(path) as file:
        file.write(text.encode())
