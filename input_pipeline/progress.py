"""Progress of long work, alike in every command: what, how much of it, how fast, how long still.

On a terminal tqdm's bar in the last line, above which the log goes on; elsewhere (a file, a pipe,
TERM=dumb) plain lines of the log now and then. Owns how amounts and times are worded, and where
there is a bar. It must not know what the work is. A bar has no colours.
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
    """How far work is, in words.

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

    def line(self) -> str:
        """Return all of it, what matters most first: a narrow terminal cuts off the end."""
        words = [self.amount, *self.figures[:1]]
        if self.rate:
            words.append(self.rate)
        if self.eta is not None:
            words.append(eta(self.eta))
        return '  '.join([*words, f'{self.fraction:.0%}', *self.figures[1:]])


def split_in_words(split: str) -> str:
    """Return what a split of records is called: what files and flags call eval is held out."""
    return 'held out' if split == 'eval' else split


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
    """The last line of a terminal: a text, and a bar beside it where there is room."""

    monitor_interval = 0  # no thread that draws by itself

    @property
    def format_dict(self) -> dict[str, Any]:
        """Return tqdm's, with columns where a terminal has no window; the last stays free."""
        values = super().format_dict
        columns = max(values['ncols'] or 0, 0)
        return values | {'ncols': (columns or 80) - 1}

    def __str__(self) -> str:
        return super().__str__() if self.desc else ''


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
        self._put_back = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # Of two threads one shows its bar; a bar within a bar is the same thread's.
        self.shown = self.shown and _SHOWING.acquire(blocking=False)
        if not self.shown:
            return self
        self._put_back.callback(_SHOWING.release)
        bar = _LastLine(
            total=1.0,
            file=self._stream,
            leave=False,
            dynamic_ncols=True,
            ascii='.#',
            bar_format='{desc}  [{bar:20}]',
        )
        self._bar = self._put_back.enter_context(bar)
        self._end_clean_at_sigterm()

        # From now on the log and what is printed go above the bar, all in the order that it comes.
        above: Any = _Above(self._stream)
        self._put_back.callback(above.end)
        handler = logging.get_absl_handler().python_handler
        if handler.stream is sys.stderr:  # else the log goes to a file
            handler.setStream(above)
            self._put_back.callback(handler.setStream, sys.stderr)
        self._put_back.enter_context(contextlib.redirect_stderr(above))
        if sys.stdout is not None and sys.stdout.isatty():
            self._put_back.enter_context(contextlib.redirect_stdout(above))
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back.close()

    def due(self) -> bool:
        """Tell whether it is time for another picture; to be asked before a status is made."""
        return self.shown and time.monotonic() - self._drawn_at >= _BAR_SECONDS

    def show(self, status: Status) -> None:
        """Show this from now on."""
        self._drawn_at = time.monotonic()
        self._bar.n = min(status.fraction, 1.0)
        self._bar.set_description_str(status.line())

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
    """A stream whose whole lines go above a bar; otherwise the stream itself."""

    def __init__(self, stream: TextIO):
        self._stream, self._piece = stream, ''

    def write(self, text: str) -> int:
        # print writes a line in pieces, and its end last: the terminal waits for that.
        lines, newline, self._piece = (self._piece + text).rpartition('\n')
        if newline:
            _LastLine.write(lines, file=self._stream)
            self._stream.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write(''.join(lines))

    def end(self) -> None:
        """Write what is no whole line as one."""
        if self._piece:
            self.write('\n')

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
            logging.info('%s  %s  in %s', status.amount, status.rate, clock(seconds))

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
            rate=rate(a_second, self._unit),
            eta=seconds * (self.total - done) / fresh if fresh else None,
        )
