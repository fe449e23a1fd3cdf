"""The watchdog: ends a process in which no step is done any more.

Owns nothing but the time since the last heartbeat. A collective waits for ever when another process
is gone, so such an end is needed. It must not know what a step is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

from bert_jax.mesh.process_group import TRY_AGAIN, leave


@contextlib.contextmanager
def watchdog(minutes: float) -> Iterator[Callable[[], None]]:
    """Yield `heartbeat`, and end the process when it is not called for that many minutes.

    The stacks of all threads go to stderr first. Compiling counts as standing still: leave room
    for it.

    Args:
      minutes: 0 switches the watchdog off.
    """
    # One entry, which the training thread writes and the watching one reads: no lock is needed.
    last_beat, done = [time.monotonic()], threading.Event()

    def heartbeat() -> None:
        last_beat[0] = time.monotonic()

    def watch() -> None:
        # Looked at often enough to be at most a quarter late.
        while not done.wait(min(5.0, 60 * minutes / 4)):
            if time.monotonic() - last_beat[0] > 60 * minutes:
                logging.error(
                    f'no step was done for {minutes:g} minutes (runtime.stall_minutes): this'
                    ' process ends, to be started again'
                )
                faulthandler.dump_traceback(all_threads=True)
                leave(TRY_AGAIN)

    if minutes:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield heartbeat
    finally:
        done.set()
