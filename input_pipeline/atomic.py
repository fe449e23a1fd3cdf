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

from configs.errors import no_room


@contextlib.contextmanager
def atomic_file(
    path: epath.PathLike, mode: Literal['wb', 'w'] = 'wb', durable: bool = True
) -> Iterator[IO]:
    """A file to write that gets its name when the block ends well. Text is UTF-8. `durable`: to
    outlast a loss of power.
    """
    path = epath.Path(path)
    temporary = path.parent / f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp'
    remote = '://' in os.fspath(path)
    encoding, newline = ('utf-8', '\n') if mode == 'w' else (None, None)
    try:
        with (
            temporary.open(mode)
            if remote
            else open(temporary, mode, encoding=encoding, newline=newline)
        ) as file:
            yield file
            file.flush()
            if durable and not remote:  # an object store has no such thing, nor needs it
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and no_room(error) and error.filename is None:
            error.filename = os.fspath(path)  # a failing write names no file
        raise


def atomic_write(path: epath.PathLike, text: str, durable: bool = True) -> None:
    """Writes a small text file, unless it holds that text: no full disk stops a resumed run."""
    content, path = text.encode(), epath.Path(path)
    if path.exists() and path.read_bytes() == content:
        return
    with atomic_file(path, durable=durable) as file:
        file.write(content)
