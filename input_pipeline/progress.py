"""Progress of long work, alike in every command: what, how much of it, how fast, how long still.

On a terminal a bar in the last line, above which the log goes on; elsewhere (a file, a pipe,
TERM=dumb) plain lines of the log now and then. Owns how amounts and times are worded, and what of
them a bar shows; tqdm draws it. It must not know what the work is. A bar has no colours.
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
from tqdm import tqdm

_BAR_SECONDS, _LOG_SECONDS = 0.1, 10.0  # at least, between two pictures of a bar, and two lines


class Status(NamedTuple):
    """How far work is, in words, which have this order in a bar and in a line.

    Attributes:
      amount: what, and how much of it ('step 12/300').
      fraction: the same from 0 to 1.
      figures: what else is known, the most important first.
      rate: with its unit.
      eta: seconds still to go.
    """

    amount: str
    fraction: float
    figures: Sequence[str] = ()
    rate: str = ''
    eta: float | None = None

    def words(self) -> list[tuple[int, str]]:
        """Return (rank, text) of each part; those of the highest rank are left out first."""
        # The first figure (a loss) is missed more than the eta and the rate, the second (an
        # accuracy) less; all others less than the share that is done.
        ranks = [1, 4, *range(6, 6 + len(self.figures))]
        parts = [(0, self.amount), (5, f'{self.fraction:.0%}'), *zip(ranks, self.figures)]
        parts += [(3, self.rate)] if self.rate else []
        return parts + ([(2, eta(self.eta))] if self.eta is not None else [])

    def line(self) -> str:
        """Return all of it."""
        return _joined(text for _, text in self.words())

    def picture(self, width: int) -> str:
        """Return what fits into `width` columns, with a drawn bar where there is room for it."""
        kept = words = self.words()
        while len(kept) > 1 and len(_joined(text for _, text in kept)) > width:
            kept = [word for word in kept if word is not max(kept)]
        text = _joined(text for _, text in kept)[:width]

        # From 5 cells to 20, with two brackets and a space. Not in the place of a word.
        cells = min(20, width - len(text) - 3)
        if cells < 5 or len(kept) < len(words):
            return text
        full = int(cells * min(self.fraction, 1.0))
        return f'[{"#" * full}{"." * (cells - full)}] {text}'


def split_in_words(split: str) -> str:
    """Return what a split of records is called: what files and flags call eval is held out."""
    return 'held out' if split == 'eval' else split


def _joined(words: Iterable[str]) -> str:
    return '  '.join(words)


def eta(seconds: float) -> str:
    """Word the time that is left: 'eta 1:02:05'."""
    return f'eta {clock(seconds)}'


def rate(a_second: float, unit: str) -> str:
    """Word a number of units in a second: '1,234.5 MB/s', '0.25 steps/s'."""
    return f'{a_second:,.{1 if a_second >= 10 else 2}f} {unit}/s'


def clock(seconds: float) -> str:
    """Word a time in hours, minutes and seconds: 1:02:05."""
    minutes, remainder = divmod(round(seconds), 60)
    return f'{minutes // 60}:{minutes % 60:02}:{remainder:02}'


class _LastLine(tqdm):
    """The last line of a terminal, which shows a status."""

    monitor_interval = 0  # no thread that draws by itself
    status: Status | None = None

    def __str__(self) -> str:
        # A terminal without a window has 0 columns. The last one stays free for the cursor.
        columns = self.format_dict['ncols'] or 80
        return self.status.picture(columns - 1) if self.status else ''


_LastLine.set_lock(threading.RLock())  # tqdm's own would be one of several processes
_SHOWING = threading.RLock()  # held by the thread whose bar is shown: there is one last line


def _in_notebook() -> bool:
    """Tell whether a notebook shows what is printed: its stream is no terminal, but takes a bar."""
    ipython = sys.modules.get('IPython')
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and 'IPKernelApp' in shell.config


class Bar:
    """The last line of a terminal or notebook on stderr for as long as the context; else nothing.

    What is logged or printed meanwhile is above it. It is gone at the end, after an error and at
    SIGTERM. It is as wide as the window at each moment.

    Attributes:
      shown: whether there is one: it is `wanted`, the terminal is not dumb, the log tells more
        than warnings, and no other thread has one.
    """

    def __init__(self, wanted: bool = True) -> None:
        stream = self._stream = sys.stderr
        terminal = stream is not None and stream.isatty() and os.environ.get('TERM') != 'dumb'
        self.shown = wanted and (terminal or _in_notebook()) and logging.level_info()
        self._drawn_at = float('-inf')
        self._pieces: list[tuple[TextIO, str]] = []  # of a line that is printed in pieces
        self._put_back = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # Of two threads one shows its bar; a bar within a bar is the same thread's.
        self.shown = self.shown and _SHOWING.acquire(blocking=False)
        if not self.shown:
            return self
        self._put_back.callback(_SHOWING.release)
        bar = _LastLine(file=self._stream, leave=False, dynamic_ncols=True)
        self._bar = self._put_back.enter_context(bar)
        self._end_clean_at_sigterm()

        # From now on the log and what is printed go by way of `_write`.
        above: Any = _Above(self, sys.stderr)
        handler = logging.get_absl_handler().python_handler
        if handler.stream is sys.stderr:  # else the log goes to a file
            handler.setStream(above)
            self._put_back.callback(handler.setStream, sys.stderr)
        self._put_back.enter_context(contextlib.redirect_stderr(above))
        if sys.stdout is not None and sys.stdout.isatty():
            printed: Any = _Above(self, sys.stdout)
            self._put_back.enter_context(contextlib.redirect_stdout(printed))
        self._put_back.callback(self._flush)
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back.close()

    def due(self) -> bool:
        """Tell whether it is time for another picture; to be asked before a status is made."""
        return self.shown and time.monotonic() - self._drawn_at >= _BAR_SECONDS

    def show(self, status: Status) -> None:
        """Show this from now on."""
        self._bar.status, self._drawn_at = status, time.monotonic()
        self._bar.refresh()

    def write(self, stream: TextIO, text: str) -> None:
        """Write whole lines above the bar, to a stream that goes to the same terminal."""
        with _LastLine.get_lock():
            # print writes a line in pieces, and its end last: the terminal waits for that.
            self._pieces.append((stream, text))
            if text.endswith('\n'):
                self._flush()

    def _flush(self) -> None:
        with _LastLine.external_write_mode(self._stream):
            for stream, text in self._pieces:
                stream.write(text)
                stream.flush()
            self._pieces.clear()

    def _end_clean_at_sigterm(self) -> None:
        """Clear the bar before SIGTERM ends the program; a handler of the program's own stays."""
        if (
            threading.current_thread() is not threading.main_thread()
            or not self._stream.isatty()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return

        # Past Python's buffers, in whose middle the signal may have come. Back to the first column;
        # all from there to the end of the screen is cleared.
        def end(number: int, frame: Any) -> None:
            del frame
            os.write(self._stream.fileno(), b'\r\x1b[J')
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

        signal.signal(signal.SIGTERM, end)
        self._put_back.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)


class _Above:
    """A stream whose lines go above a bar; otherwise the stream itself."""

    def __init__(self, bar: Bar, stream: TextIO):
        self._bar, self._stream = bar, stream

    def write(self, text: str) -> int:
        self._bar.write(self._stream, text)
        return len(text)

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
        self.total = total
        self._what, self._unit, self._scale = what, unit, scale
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
            status, seconds = self._status(self.total), time.monotonic() - self._start
            logging.info('%s', _joined([status.amount, status.rate, f'in {clock(seconds)}']))

    def skip(self, done: float) -> None:
        """Count what was done before to what is done, and not to the rate."""
        self._skipped = done
        self.update(done)

    def update(self, done: float) -> None:
        """Show `done`, unless what was shown last is recent."""
        if self._bar.due():
            self._bar.show(self._status(done))

        # A plain line at the end would come twice: the last one says how long it took.
        elif not self._bar.shown and time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            if done < self.total:
                logging.info('%s', self._status(done).line())

    def _status(self, done: float) -> Status:
        # What was skipped was not done in this time.
        seconds, fresh = time.monotonic() - self._start, max(0.0, done - self._skipped)
        a_second = fresh / self._scale / seconds if seconds > 0 else 0.0

        # Below 100 units a whole number would stay the same for long.
        digits = 0 if self.total >= 100 * self._scale else 1
        total = f'{self.total / self._scale:,.{digits}f}'
        return Status(
            f'{self._what} {done / self._scale:,.{digits}f}/{total} {self._unit}',
            done / self.total if self.total else 1.0,
            (),
            rate(a_second, self._unit),
            seconds * (self.total - done) / fresh if fresh else None,
        )
