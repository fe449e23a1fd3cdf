"""Runs a command again until it is done: after a crash, a preemption or a lost host.

  bert-supervise [--max_restarts=1000] -- bert-pretrain ... --workdir=DIR

A run of bert-pretrain goes on from its newest checkpoint, so that to restart is to resume. Exit
code 0 of the command means done, 2 a mistake in its flags or data, which no restart mends: both are
passed on. Anything else, death by a signal included, is tried again after a pause, which doubles
while runs keep dying soon. SIGTERM and SIGINT to the supervisor go to the command, which saves; it
is not started again. So does the end of the terminal (SIGHUP), as SIGTERM, unless nohup keeps it
away. Of several processes each has its own supervisor: when one dies the others end too, and all
start again.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags as absl_flags
from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option


@dataclass(frozen=True)
class Options:
    """When and how often the command is started again."""

    max_restarts: int = option(1000, 'give up after so many restarts', bounds=(0, None))
    pause_s: float = option(
        5.0,
        'seconds before the first restart; doubled after each short run, up to max_pause_s',
        bounds=(0.0, None),
    )
    max_pause_s: float = option(
        300.0, 'longest pause before a restart, in seconds', bounds=(0.0, None)
    )
    long_run_s: float = option(
        600.0, 'after a run of so many seconds the pause starts small again', bounds=(0.0, None)
    )


flags.define(Options)

USER_ERROR = 2
NOT_STARTED = 127


class Supervisor:
    """One command, restarted until it is done. Its `run` returns the exit code to end with."""

    def __init__(self, command: Sequence[str]):
        self._command = list(command)
        self._child: subprocess.Popen | None = None

        # SIGTERM from a scheduler, SIGINT from the keyboard: both mean "save and end".
        self._stopped: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, self._pass_on)

    def _pass_on(self, number: int, frame: Any) -> None:
        """A signal to stop: the command gets it, and is not started again."""
        # Noted before it is passed on: the command may end at once, and must not be started again.
        del frame
        number = signal.SIGTERM if number == signal.SIGHUP else number  # which nobody takes to save
        self._stopped = number
        if self._child and self._child.poll() is None:
            self._child.send_signal(number)

    def _once(self, again: bool) -> int:
        """Runs the command; -> its exit code, 128 + the signal that killed it, 127 if not started.

        UserError where it cannot be started the first time; `again` the disk or memory may be away
        for a while.
        """
        try:
            # A group of its own, so that Ctrl-C on the terminal reaches the command once: through
            # _pass_on.
            child = self._child = subprocess.Popen(self._command, start_new_session=True)
        except OSError as error:
            if again:
                logging.warning('%s: cannot be started (%s)', self._command[0], error.strerror)
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

    def run(self, options: Options) -> int:
        """Runs and restarts; -> 0 when done, else the last exit code of the command."""
        # The first start counts as no restart, so there is one more round than restarts.
        pause = options.pause_s
        for restarts in range(options.max_restarts + 1):
            started = time.monotonic()
            code = self._once(again=restarts > 0)
            lived = time.monotonic() - started

            # Three reasons to end: done, a mistake that stays one, or a signal to us.
            if code in (0, USER_ERROR) or self._stopped is not None:
                logging.info(
                    '%s after %d restarts (exit code %d)',
                    'done' if code == 0 else 'stopped',
                    restarts,
                    code,
                )
                return code

            # A run that lived long has made progress: its end is a new trouble, tried again soon.
            if restarts < options.max_restarts:
                pause = (
                    options.pause_s
                    if lived >= options.long_run_s
                    else min(pause, options.max_pause_s)
                )
                logging.warning(
                    'exit code %d after %.0f s; restart %d of at most %d in %.0f s',
                    code,
                    lived,
                    restarts + 1,
                    options.max_restarts,
                    pause,
                )
                self._sleep(pause)
                pause = 2 * pause
            if self._stopped is not None:
                return 128 + self._stopped
        logging.error('exit code %d after %d restarts: given up', code, options.max_restarts)
        return code

    def _sleep(self, seconds: float) -> None:
        """Waits, and no longer once a signal has come."""
        # In short naps, for a signal does not end a sleep: its handler returns, and sleep goes on.
        until = time.monotonic() + seconds
        while self._stopped is None and time.monotonic() < until:
            time.sleep(min(0.2, max(0.0, until - time.monotonic())))


def main(argv: Sequence[str]) -> int:
    """Supervises the command after `--`."""
    # Everything after -- is the command's, flags too (see below).
    command = list(argv[1:])
    if not command:
        raise UserError(
            'there is no command: write it after --, as in: bert-supervise -- bert-pretrain ...'
        )
    return Supervisor(command).run(flags.read(Options))


if __name__ == '__main__':
    absl_flags.FLAGS.set_gnu_getopt(False)  # the flags of a command are its own, with or without --
    app.run(main, '-- COMMAND')
