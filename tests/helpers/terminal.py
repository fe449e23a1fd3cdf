"""A program on a pseudo-terminal, and its screen as a user sees it."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any


class Terminal:
    """A terminal of so many columns that a program runs on, stdout and stderr.

    Attributes:
      raw: all that came so far.
    """

    def __init__(self, command: Sequence[Any], columns: int):
        self._ours, theirs = os.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
        self._program = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, 'TERM': 'xterm'},
        )
        os.close(theirs)
        self.raw, self.signal = '', self._program.send_signal

    def read(self, until: Callable[[str], bool] = lambda raw: False, seconds: float = 120) -> str:
        """What comes until it is as wanted, or the program closes the terminal."""
        end, came = time.monotonic() + seconds, ''
        while not until(came) and time.monotonic() < end:
            try:
                came += os.read(self._ours, 1 << 16).decode()
            except OSError:  # closed
                break
        self.raw += came
        return came

    def end(self) -> int:
        """Reads the rest; the program's exit code."""
        self.read()
        os.close(self._ours)
        return self._program.wait(60)


def pictures(raw: str) -> list[str]:
    """All bars that were drawn: they begin in the first column and have no end of a line."""
    return [text.rstrip() for text in re.findall(r'\r([^\r\n]*\S[^\r\n]*)(?=\r(?!\n))', raw)]


def screen(raw: str) -> list[str]:
    """The lines on a screen that is wide and high enough."""
    lines, column = [''], 0
    for part in re.findall(r'\r|\n|\x1b\[J|[^\r\n\x1b]+|\x1b', raw):
        if part == '\r':
            column = 0
        elif part == '\n':
            lines.append('')
        elif part == '\x1b[J':
            lines[-1] = lines[-1][:column]
        else:
            assert part != '\x1b', 'a sequence that no bar needs'
            line = lines[-1].ljust(column)
            lines[-1] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]
