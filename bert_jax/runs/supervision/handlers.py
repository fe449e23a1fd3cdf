"""The handlers of signals of the program that a run is a part of.

Owns which signals stop a run, and that they are given back. Imports no jax.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from bert_jax.cli import app


def stopping() -> list[signal.Signals]:
    """Return the signals that ask to save and stop: SIGTERM, SIGINT and the end of the terminal.

    The last one, SIGHUP, is none where it is ignored, as nohup does.
    """
    ended = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *ended]


def in_main_thread() -> bool:
    """Tell whether this is the main thread, the only one that may set a handler."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def handlers_restored() -> Iterator[None]:
    """Give the handlers of `stopping` back to the program or notebook that the run was a part of.

    A command keeps its handlers to its end: a signal that comes twice is one request.
    """
    before = {number: signal.getsignal(number) for number in stopping()}
    try:
        yield
    finally:
        restored = before if in_main_thread() and not app.in_command() else {}
        for number, handler in restored.items():
            signal.signal(number, handler)
