"""The steps of a study, each one or two commands in a folder of its own, done once.

Owns the order in which steps are made, by one process or by several that share the folder, and what
is kept of one that failed. A step's folder has the name of what it is made from, so that rows, and
studies, that need the same thing share it. It must not know what the commands do: a command that
was interrupted goes on by itself when it is started again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.cli.app import script_name
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.mesh.process_group import TRY_AGAIN
from bert_jax.reports.quickstart.stages import Stages, command, say

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


def name_of(kind: str, inputs: Mapping[str, Any]) -> str:
    """The folder of a step: KIND/DIGEST of what it is made from."""
    text = json.dumps(inputs, sort_keys=True)
    return f'{kind}/{hashlib.sha256(text.encode()).hexdigest()[:12]}'


class Folder:
    """The folder of a study, and what of its steps is there."""

    def __init__(self, workdir: str):
        self.path = Path(workdir)

    def of(self, step: str) -> Path:
        """A step's own folder."""
        return self.path / step

    def done(self, step: str) -> bool:
        """Whether a step is done."""
        record = self.path / 'stages' / f'{step}.json'
        return record.exists() and read_object(record)['done'] and self.of(step).exists()

    def log(self, step: str) -> Path:
        """What the step's commands have printed."""
        return self.path / 'logs' / f'{step}.log'

    def failure(self, step: str) -> str | None:
        """Why a step failed when it was last tried; None where it did not."""
        file = self._failure(step)
        return str(read_object(file)['why']) if file.exists() and not self.done(step) else None

    def note_failure(self, step: str, why: str) -> None:
        """Marks a step as failed."""
        self._failure(step).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self._failure(step), json.dumps({'why': why}) + '\n')

    def forget_failure(self, step: str) -> None:
        """Takes the mark away."""
        self._failure(step).unlink(missing_ok=True)

    def _failure(self, step: str) -> Path:
        return self.path / 'failures' / f'{step}.json'


class _Failed(Exception):
    """A command has failed, and why."""


def make(folder: Folder, steps: Sequence[Step]) -> None:
    """Makes all steps that are not done, those first whose needs stand before them.

    A step that fails is marked and what needs it is left out; the others are made. Another process
    may make steps of the same folder: what it has taken is waited for only when nothing else is
    left. Exits with 128 + the signal that asks this program, or a command, to stop.
    """
    # Tried again each time the study is started: the cause may be gone.
    left = {step.name: step for step in steps if not folder.done(step.name)}
    lost: dict[str, str] = {}  # name: why it cannot be made in this run
    total, waiting = len(steps), False
    while left:
        progressed = False
        for name, step in list(left.items()):
            if folder.done(name):  # by another process
                del left[name]
                progressed = True
            elif missing := [need for need in step.needs if need in lost]:
                lost[name] = lost[missing[0]]
                folder.note_failure(name, lost[name])
                del left[name]
                progressed = True
            elif not any(need in left for need in step.needs):
                with taken(folder.path / 'locks' / f'{name}.lock') as lock:
                    if lock is None or folder.done(name):
                        continue
                    say(f'step {total - len(left) + 1} of {total}: {step.about} ({name})')
                    if why := _make(folder, step, lock):
                        lost[name] = why
                        say(f'FAILED: {step.about}: {why}; see {folder.log(name)}')
                    del left[name]
                    progressed, waiting = True, False
        if left and not progressed:
            if not waiting:
                say(f'{len(left)} steps are left, which another process is making or must first')
            waiting = True
            time.sleep(_POLL_S)


def _make(folder: Folder, step: Step, lock: int) -> str | None:
    """Makes one step; why it failed, or None."""

    def fill(target: Path) -> None:
        try:
            commands = list(step.commands(target))
        except UserError as error:
            raise _Failed(str(error)) from error
        for name, arguments in commands:
            _run(name, arguments, folder.log(step.name), lock)

    # The record of a step is the quickstart's: a key of what made it, whether it is done, and how
    # long it took.
    try:
        Stages(str(folder.path)).run(step.name, dict(step.inputs), fill)
    except _Failed as error:
        folder.note_failure(step.name, str(error))
        return str(error)
    folder.forget_failure(step.name)
    return None


def _run(name: str, arguments: list[str], log: Path, lock: int) -> None:
    """Runs a command, its output added to `log`; _Failed, with its last line, where it fails.

    One that ends with TRY_AGAIN goes on from its last checkpoint when it is started again.
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
    """Runs a command to its end; its exit code. Ends this program where it was asked to stop.

    The command holds `lock` too: it may outlive this program, which may be killed, and nobody may
    take its step until it has ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, 'ab') as output, _passing_on() as child:
        output.write(f'$ {shlex.join(line)}\n'.encode())
        output.flush()
        child.process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(lock,)
        )
        if child.asked:  # a signal that came before there was a command
            child.process.send_signal(signal.SIGTERM)
        code = child.process.wait()
    if child.asked or code in _STOPPED:
        number = child.asked or _STOPPED[code]
        say(f'stopped by signal {number}; the same command goes on from here')
        sys.exit(128 + number)
    return code


# Exit codes of a command that saved and stopped because it was asked to.
_STOPPED = {
    code: number for number in (signal.SIGINT, signal.SIGTERM) for code in (128 + number, -number)
}


class _Child:
    """A command under way, and the signal that this program was asked to stop by."""

    process: subprocess.Popen[bytes] | None = None
    asked: int = 0

    def handle(self, number: int, frame: Any) -> None:
        """Asks the command to save and stop; this program ends when it has."""
        del frame
        self.asked = number
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def _passing_on() -> Iterator[_Child]:
    """SIGTERM and SIGINT go to the command that is under way."""
    child = _Child()
    before = {n: signal.signal(n, child.handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def taken(path: Path) -> Iterator[int | None]:
    """Takes the lock `path`: its file descriptor, or None where another process has it.

    It is free when all processes that hold the descriptor have ended, which is why it is no
    filelock: that library keeps the descriptor from the commands that are started.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)
