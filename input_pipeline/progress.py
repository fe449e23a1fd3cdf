"""Progress of long work, alike in every command: what, how much of it, how fast, how long still.

On a terminal a bar in the last line, above which the log goes on; elsewhere (a file, a pipe,
TERM=dumb) plain lines of the log now and then. Owns the bar, and how amounts and times are worded.
It must not know what the work is. A bar has no colours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self, TextIO

from absl import logging

_BAR_SECONDS, _LOG_SECONDS = 0.1, 10.0  # at least, between two pictures of a bar, and two lines

# Back to the first column; all from there to the end of the screen is cleared.
_CLEAR = '\r\x1b[J'


class Status(NamedTuple):
    """How far work is, in words, which stand in this order in a bar and in a line.

    amount: what, and how much of it ('step 12/300'); fraction: the same from 0 to 1; figures: what
    else is known, the most important first; rate: with its unit; eta: seconds still to go.
    """

    amount: str
    fraction: float
    figures: Sequence[str] = ()
    rate: str = ''
    eta: float | None = None

    def words(self) -> list[tuple[int, str]]:
        """(rank, text) of each part; those of the highest rank are the first to be left out."""
        # The first figure (a loss) is missed more than the eta and the rate, the second (an
        # accuracy) less; all others less than the share that is done.
        ranks = [1, 4, *range(6, 6 + len(self.figures))]
        parts = [(0, self.amount), (5, f'{self.fraction:.0%}')]
        parts += list(zip(ranks, self.figures))
        parts += [(3, self.rate)] if self.rate else []
        return parts + ([(2, eta(self.eta))] if self.eta is not None else [])

    def line(self) -> str:
        """All of it."""
        return _joined(text for _, text in self.words())

    def picture(self, width: int) -> str:
        """What of it fits into `width` columns, and a drawn bar where they have room for it."""
        kept = words = self.words()
        while len(kept) > 1 and len(_joined(text for _, text in kept)) > width:
            last = max(kept)
            kept = [word for word in kept if word is not last]
        text = _joined(text for _, text in kept)[:width]

        # From 5 cells to 20, beside two brackets and a space. Not in the place of a word.
        cells = min(20, width - len(text) - 3)
        if cells < 5 or len(kept) < len(words):
            return text
        full = int(cells * min(self.fraction, 1.0))
        return f'[{"#" * full}{"." * (cells - full)}] {text}'


def _joined(words: Iterable[str]) -> str:
    return '  '.join(words)


def eta(seconds: float) -> str:
    """The time that is left: 'eta 1:02:05'."""
    return f'eta {clock(seconds)}'


def rate(a_second: float, unit: str) -> str:
    """So many of a unit in a second: '1,234.5 MB/s', '0.25 steps/s'."""
    return f'{a_second:,.{1 if a_second >= 10 else 2}f} {unit}/s'


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes // 60}:{minutes % 60:02}:{rest:02}'


class Bar:
    """The last line of the terminal on stderr for as long as the context; elsewhere nothing.

    What is logged or printed meanwhile stands above it. It is gone at the end, after an error and
    at SIGTERM. It is as wide as the window at each moment.

    Attributes:
      shown: whether there is one: it is `wanted`, the terminal is not dumb, and the log tells more
      than warnings.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._stream = sys.stderr
        self.shown = (
            wanted
            and self._stream is not None
            and self._stream.isatty()
            and os.environ.get('TERM') != 'dumb'
            and logging.level_info()
        )
        self._lock = threading.RLock()
        self._drawn_at = float('-inf')
        # What the bar shows; whether it is on the screen; whether half a line stands in its place.
        self._status: Status | None = None
        self._on_screen = self._half_line = False
        self._put_back = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.shown:
            self._write_above_from_now_on()
            self._end_clean_at_sigterm()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._clear()
            self._status = None  # a thread that still writes through us draws no bar
        self._put_back.close()

    def due(self) -> bool:
        """Whether it is time for another picture; to be asked before a status is made."""
        return self.shown and time.monotonic() - self._drawn_at >= _BAR_SECONDS

    def show(self, status: Status) -> None:
        """Shows this from now on."""
        with self._lock:
            self._status = status
            self._draw()

    def write(self, stream: TextIO, text: str) -> int:
        """Writes above the bar, to a stream that goes to the same terminal."""
        with self._lock:
            self._clear()
            written = stream.write(text)
            # print writes a line in pieces, and its end last: the bar waits for that.
            self._half_line = not text.endswith('\n') if text else self._half_line
            stream.flush()
            self._draw()
            return written

    def _draw(self) -> None:
        if not self.shown or self._status is None or self._half_line:
            return

        # Asked anew each time, for windows are resized. A terminal without a window says 0.
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
            # The cursor goes back to the first column: where a window that was made narrower has
            # broken the line in two, clearing from there takes both.
            self._stream.write(f'{_CLEAR}{self._status.picture(columns - 1)}\r')
            self._stream.flush()
        self._on_screen, self._drawn_at = True, time.monotonic()

    def _clear(self) -> None:
        if self._on_screen:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._on_screen = False

    def _write_above_from_now_on(self) -> None:
        """Sends the log and what is printed by way of `write`."""
        above = _Above(self, sys.stderr)
        handler = logging.get_absl_handler().python_handler
        if handler.stream is sys.stderr:  # else the log goes to a file
            handler.setStream(above)
            self._put_back.callback(handler.setStream, sys.stderr)
        self._put_back.enter_context(contextlib.redirect_stderr(above))
        if sys.stdout is not None and sys.stdout.isatty():
            self._put_back.enter_context(contextlib.redirect_stdout(_Above(self, sys.stdout)))

    def _end_clean_at_sigterm(self) -> None:
        """Clears the bar before SIGTERM ends the program; a handler of the program's own stays."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return

        # Past Python's buffers, in whose middle the signal may have come.
        def end(number: int, frame: Any) -> None:
            del frame
            os.write(self._stream.fileno(), _CLEAR.encode())
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

        signal.signal(signal.SIGTERM, end)
        self._put_back.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)


class _Above:
    """A stream whose lines go above a bar; otherwise the stream itself."""

    def __init__(self, bar: Bar, stream: TextIO):
        self._bar, self._stream = bar, stream

    def write(self, text: str) -> int:
        return self._bar.write(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write(''.join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """Work of a known size; a context around it.

    `done` and `total` are in `unit`s times `scale`: bytes, with scale 1e6, are shown as MB. At the
    end the log says how long all of it took; after an error it does not.
    """

    def __init__(self, what: str, total: float, unit: str, scale: float = 1.0):
        self._what, self._total, self._unit, self._scale = what, total, unit, scale
        self._bar = Bar()

        # A clock that nobody sets back, so that a rate is never negative.
        self._start = self._logged = time.monotonic()
        self._skipped = 0.0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.__exit__()
        if kind is None:
            status, seconds = self._status(self._total), time.monotonic() - self._start
            logging.info('%s', _joined([status.amount, status.rate, f'in {clock(seconds)}']))

    def skip(self, done: float) -> None:
        """So much was done before: it counts to what is done and not to the rate."""
        self._skipped = done
        self.update(done)

    def update(self, done: float) -> None:
        """Shows `done`, unless what was shown last is recent."""
        if self._bar.due():
            self._bar.show(self._status(done))

        # A plain line at the end would come twice: the last one says how long it took.
        elif not self._bar.shown and time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            if done < self._total:
                logging.info('%s', self._status(done).line())

    def _status(self, done: float) -> Status:
        # What was skipped was not done in this time.
        seconds, fresh = time.monotonic() - self._start, max(0.0, done - self._skipped)
        a_second = fresh / self._scale / seconds if seconds > 0 else 0.0

        # Below 100 units a whole number would stand still for long.
        digits = 0 if self._total >= 100 * self._scale else 1
        total = f'{self._total / self._scale:,.{digits}f}'
        return Status(
            f'{self._what} {done / self._scale:,.{digits}f}/{total} {self._unit}',
            done / self._total if self._total else 1.0,
            (),
            rate(a_second, self._unit),
            seconds * (self._total - done) / fresh if fresh else None,
        )
