"""Progress of long work: what, how much, how fast, how long still.

On a terminal one line that rewrites itself; elsewhere (a log, a pipe) a plain line now and
then. It must not know what the work is.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

_TERMINAL_SECONDS, _LOG_SECONDS = 0.2, 10.0  # at least between two lines


class Progress:
    """Shows `what: done/total unit, rate, time left`.

    `done` and `total` are in `unit`s times `scale`: bytes, with scale 1e6, are shown as MB.
    """

    def __init__(
        self, what: str, total: float, unit: str, scale: float = 1.0, stream: TextIO | None = None
    ):
        self._what, self._total, self._unit, self._scale = what, total, unit, scale
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()

        # A clock that nobody sets back, so that a rate is never negative.
        self._start = self._shown = time.monotonic()
        self._skipped = 0.0

    def skip(self, done: float) -> None:
        """So much was done before: it counts to what is done and not to the rate."""
        self._skipped = done

    def update(self, done: float) -> None:
        """Shows `done`, unless the last line is recent."""
        # The last one is left to `done`, which says how long all of it took.
        now = time.monotonic()
        pause = _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS
        if now - self._shown >= pause and done < self._total:
            self._shown = now
            seconds = now - self._start
            fresh = done - self._skipped
            remaining = seconds * (self._total - done) / fresh if fresh > 0 else None
            time_left = '' if remaining is None else f', {clock(remaining)} left'
            self._line(self._amounts(done, seconds) + time_left)

    def done(self, total: float | None = None) -> None:
        """The last line, with the whole time."""
        seconds = time.monotonic() - self._start
        self._line(
            f'{self._amounts(self._total if total is None else total, seconds)} in'
            f' {clock(seconds)}',
            end='\n',
        )

    def _amounts(self, done: float, seconds: float) -> str:
        # What was skipped was not done in this time.
        rate = max(0.0, done - self._skipped) / self._scale / seconds if seconds > 0 else 0.0

        # Below 100 units a whole number would stand still for long.
        digits = 0 if self._total >= 100 * self._scale else 1
        total = f'{self._total / self._scale:,.{digits}f}'
        return (
            f'{self._what}: {done / self._scale:,.{digits}f}/{total} {self._unit}, {rate:,.1f}'
            f' {self._unit}/s'
        )

    def _line(self, text: str, end: str = '') -> None:
        # Back to the start of the line, which is cleared: the next line may be a shorter one.
        if self._terminal:
            self._stream.write(f'\r\x1b[K{text}{end}')
        else:
            self._stream.write(f'{text}\n')
        self._stream.flush()


def clock(seconds: float) -> str:
    """Seconds as people read them: 7.1 s, 2:05 min, 1:02:05 h."""
    if seconds < 60:
        return f'{seconds:.1f} s'
    if seconds == float('inf'):
        return 'unknown time'

    # Rounded before it is split, or 119.7 s would be 1:60 min.
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{rest:02} h' if hours else f'{minutes}:{rest:02} min'
