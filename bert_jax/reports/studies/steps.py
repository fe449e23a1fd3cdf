"""The steps of a study, each one or two commands in a folder of its own, done once.

Owns the order in which steps are made, by one process or by several that share the folder, and what
is kept of one that failed. A step's folder has the name of what it is made from, so that rows, and
studies, that need the same thing share it. It must not know what the commands do: a command that
was interrupted goes on by itself when it is started again.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.cli.commands import script_name
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.store import Store, read_note, taken, write_note
from bert_jax.mesh.process_group import TRY_AGAIN
from bert_jax.reports.quickstart.commands import command, say
from bert_jax.runs.supervision.handlers import stopping

_POLL_S = 2.0  # between looks at what another process is making
_RESTARTS = 3  # of a command that ends with TRY_AGAIN

# (name of a command, its arguments)
Command = tuple[str, list[str]]


@dataclass(frozen=True)
class Step:
    """What makes one folder.

    Attributes:
      name: the folder below the study's, KIND/DIGEST.
      about: what it is, in words.
      inputs: what it is made from, as JSON values.
      commands: folder -> the commands that fill it; called when all `needs` are done. UserError
        where what they made does not fit.
      needs: names of the steps whose folders it reads.
    """

    name: str
    about: str
    inputs: Mapping[str, Any]
    commands: Callable[[Path], Iterable[Command]] = field(compare=False)
    needs: tuple[str, ...] = ()


class Folder(Store):
    """The folder of a study: a store of its steps, with their logs and the marks of failed ones."""

    def __init__(self, workdir: str):
        super().__init__(workdir, lambda message: say(message))

    def log(self, step: str) -> Path:
        """Return the file of what the step's commands have printed."""
        return self.path / 'logs' / f'{step}.log'

    def failure(self, step: str) -> str | None:
        """Return why a step failed when it was last tried; None where it did not."""
        note = read_note(self._failure(step))
        return str(note['why']) if note and not self.done(step) else None

    def note_failure(self, step: str, why: str | None) -> None:
        """Mark a step as failed, or take the mark away."""
        if why is None:
            self._failure(step).unlink(missing_ok=True)
        else:
            write_note(self._failure(step), {'why': why})

    def _failure(self, step: str) -> Path:
        return self.path / 'failures' / f'{step}.json'


class _Failed(Exception):
    """A command has failed, and why."""


def make(folder: Folder, steps: Sequence[Step]) -> None:
    """Make all steps that are not done, each after those that it needs.

    A step that fails is marked and what needs it is left out; the others are made. Another process
    may make steps of the same folder: what it has taken is waited for only when nothing else is
    left. Ends the program with 128 + the signal that asks it, or a command, to stop.
    """
    # Tried again each time the study is started: the cause may be gone.
    left = {step.name: step for step in steps if not folder.done(step.name)}
    lost: dict[str, str] = {}  # name: why it cannot be made in this run
    waiting = False
    while left:
        before = len(left)
        for name, step in list(left.items()):
            missing = [need for need in step.needs if need in lost]
            if missing:
                lost[name] = lost[missing[0]]
                folder.note_failure(name, lost[name])
            elif any(need in left for need in step.needs):
                continue
            elif not folder.done(name):
                with taken(folder.path / 'locks' / f'{name}.lock') as lock:
                    if lock is None:
                        continue
                    # Another process may have made it between both looks.
                    if not folder.done(name):
                        number = len(steps) - len(left) + 1
                        say(f'step {number} of {len(steps)}: {step.about} ({name})')
                        if why := _make(folder, step, lock):
                            lost[name] = why
                            say(f'FAILED: {step.about}: {why}; see {folder.log(name)}')
                        waiting = False
            del left[name]
        if len(left) == before:
            if not waiting:
                say(f'{len(left)} steps are left, which another process is making or must first')
            waiting = True
            time.sleep(_POLL_S)


def _make(folder: Folder, step: Step, lock: int) -> str | None:
    """Make one step, and return why it failed, or None."""

    def fill(target: Path) -> None:
        try:
            commands = list(step.commands(target))
        except UserError as error:
            raise _Failed(str(error)) from error
        for name, arguments in commands:
            _run(name, arguments, folder.log(step.name), lock)

    why = None
    try:
        folder.make(step.name, step.inputs, fill)
    except _Failed as error:
        why = str(error)
    folder.note_failure(step.name, why)
    return why


def _run(name: str, arguments: list[str], log: Path, lock: int) -> None:
    """Run a command, its output added to `log`.

    One that ends with TRY_AGAIN goes on from its last checkpoint when it is started again.

    Raises:
      _Failed: the command has failed; with its last line.
    """
    line = command(name, *arguments)
    for restarts_left in reversed(range(_RESTARTS + 1)):
        code = _run_once(line, log, lock)
        if code != TRY_AGAIN or not restarts_left:
            break
        say(f'{script_name(name)} ended with exit code {code} and is started again; see {log}')
    if code:
        last = log.read_bytes().decode(errors='replace').strip().splitlines()[-1]
        raise _Failed(f'{script_name(name)} ended with exit code {code}: {last}')


def _run_once(line: list[str], log: Path, lock: int) -> int:
    """Run a command to its end, and return its exit code, or end this program if asked to stop.

    The command holds `lock` too: it may outlive this program, which may be killed, and nobody may
    take its step until it has ended.
    """
    asked: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: Any) -> None:
        """Ask the command to save and stop; this program ends when it has."""
        del frame
        asked.append(number)
        if process is not None:
            process.send_signal(signal.SIGTERM)

    before = {n: signal.signal(n, pass_on) for n in stopping()}
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(log, 'ab') as output:
            output.write(f'$ {shlex.join(line)}\n'.encode())
            output.flush()
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(lock,)
            )
        if asked:  # a signal that came before there was a command
            process.send_signal(signal.SIGTERM)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked or code in _STOPPED:
        by = asked[0] if asked else _STOPPED[code]
        say(f'stopped by signal {by}; the same command goes on from here')
        sys.exit(128 + by)
    return code


# Exit codes of a command that saved and stopped because it was asked to.
_STOPPED = {
    code: number
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for code in (128 + number, -number)
}
