"""A command that is started again until it is done.

Owns when a restart makes sense, and how signals reach the command. It must not know what the
command does, and imports nothing heavy.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.runs.supervision.handlers import stopping

USER_ERROR = 2
NOT_STARTED = 127


@dataclass(frozen=True)
class RestartOptions:
    """When and how often the command is started again.

    Attributes:
      max_restarts: give up after so many restarts.
      pause_s: seconds before the first restart; doubled after each short run, up to max_pause_s.
      max_pause_s: longest pause before a restart, in seconds.
      long_run_s: after a run of so many seconds the pause starts small again.
    """

    max_restarts: int = option(1000, bounds=(0, None))
    pause_s: float = option(5.0, bounds=(0.0, None))
    max_pause_s: float = option(300.0, bounds=(0.0, None))
    long_run_s: float = option(600.0, bounds=(0.0, None))


class Supervisor:
    """One command, restarted until it is done. Its `run` returns the exit code to end with."""

    def __init__(self, command: Sequence[str]):
        self._command = list(command)
        self._child: subprocess.Popen | None = None

        # SIGTERM from a scheduler, SIGINT from the keyboard: all mean "save and end".
        self._stopped: int | None = None
        for number in stopping():
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: Any) -> None:
        """Send a signal to stop on to the command, which is not started again."""
        # Noted before it is passed on: the command may end at once, and must not be started again.
        del frame
        if number == signal.SIGHUP:  # SIGTERM is what any program takes to save
            number = signal.SIGTERM
        self._stopped = number
        if self._child and self._child.poll() is None:
            self._child.send_signal(number)

    def _run_once(self, is_restart: bool) -> int:
        """Run the command; return its exit code, or 128 + the signal that killed it.

        Returns:
          NOT_STARTED where a restart cannot be started: the disk or memory may be away for a while.

        Raises:
          UserError: it cannot be started the first time.
        """
        try:
            # A group of its own, so that Ctrl-C on the terminal reaches the command once: through
            # _pass_on.
            child = self._child = subprocess.Popen(self._command, start_new_session=True)
        except OSError as error:
            if is_restart:
                logging.warning(f'{self._command[0]}: cannot be started ({error.strerror})')
                return NOT_STARTED
            raise UserError(
                f'{self._command[0]!r}: cannot be started ({error.strerror}): name a program'
                ' after --'
            ) from error
        if self._stopped is not None:  # the signal came while it was started
            child.send_signal(self._stopped)

        # Popen tells death by signal N as -N; the shell's form is 128 + N.
        code = child.wait()
        return 128 - code if code < 0 else code

    def run(self, options: RestartOptions) -> int:
        """Run and restart the command; return 0 when it is done, else its last exit code."""
        # The first start counts as no restart, so there is one more round than restarts.
        pause = options.pause_s
        for restarts in range(options.max_restarts + 1):
            started = time.monotonic()
            code = self._run_once(is_restart=restarts > 0)
            seconds = time.monotonic() - started

            # Three reasons to end: done, a mistake that stays one, or a signal to us.
            if code in (0, USER_ERROR) or self._stopped is not None:
                end = 'done' if code == 0 else 'stopped'
                logging.info(f'{end} after {restarts} restarts (exit code {code})')
                return code
            if restarts == options.max_restarts:
                break

            # A run that lived long has made progress: its end is a new trouble, tried again soon.
            if seconds >= options.long_run_s:
                pause = options.pause_s
            else:
                pause = min(pause, options.max_pause_s)
            logging.warning(
                f'exit code {code} after {seconds:.0f} s; restart {restarts + 1} of at most'
                f' {options.max_restarts} in {pause:.0f} s'
            )
            self._sleep(pause)
            pause = 2 * pause
            if self._stopped is not None:
                return 128 + self._stopped
        logging.error(f'exit code {code} after {options.max_restarts} restarts: given up')
        return code

    def _sleep(self, seconds: float) -> None:
        """Wait, and no longer once a signal has come."""
        # In short naps, for a signal does not end a sleep: its handler returns, and sleep goes on.
        until = time.monotonic() + seconds
        while self._stopped is None and time.monotonic() < until:
            time.sleep(min(0.2, max(0.0, until - time.monotonic())))
