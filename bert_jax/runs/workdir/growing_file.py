"""A file of a run that grows while it goes on, and waits where the disk is full."""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO

from absl import logging
from etils import epath

from bert_jax.configs.errors import is_disk_full


class GrowingFile:
    """A file that grows by whole pieces, also on a full disk.

    There pieces wait until there is room, unless they are `required`.
    """

    def __init__(self, path: epath.Path, required: bool):
        self._path, self._required = path, required

        # Opened with the first piece, and again after a failure.
        self._file: BinaryIO | None = None
        self._waiting: list[bytes] = []
        # Bytes of whole pieces: what a failed write is cut back to.
        self._size = path.stat().length if path.exists() else 0

    def append(self, piece: bytes) -> None:
        """Write what waits, and `piece`."""
        # Pieces that failed before go first, so their order stays.
        self._waiting.append(piece)
        try:
            file = self._file = self._file or self._path.open('ab')
            file.write(b''.join(self._waiting))
            file.flush()
        except OSError as error:
            self._cut()
            if self._required or not is_disk_full(error):  # a failing write names no file
                raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
            if len(self._waiting) == 1:  # said once, not with each line
                logging.warning(f'{self._path}: {error}; lines are kept until there is room')
        else:
            self._size += sum(map(len, self._waiting))
            self._waiting.clear()

    def _cut(self) -> None:
        """Drop the part of a piece that was still written, and what the file's buffer holds."""
        # Closed before it is cut: a buffer that is flushed later would write behind the cut.
        file, self._file = self._file, None
        # A failure here is reported below, with what it means: lines are lost.
        with contextlib.suppress(OSError):
            if file:
                file.close()  # which tries once more to write
        if '://' not in os.fspath(self._path) and self._path.exists():
            os.truncate(self._path, self._size)

    def close(self) -> None:
        """Write what waits for room, or say that it cannot be written."""
        with contextlib.suppress(OSError):
            if self._waiting:
                self.append(b'')
        if self._waiting:
            logging.warning(f'{self._path}: its last lines are lost (the disk is full)')
        if self._file:
            self._file.close()
