"""A job of several stages in one folder, each done once for the same inputs.

Owns the record of a stage (stages/NAME.json: a hash of its inputs, whether it is done, how
long it took), and so what a second run reuses. It must not know what the stages do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object


@dataclasses.dataclass(frozen=True)
class Done:
    """A finished stage.

    key: the hash of its inputs, which is an input of the stages after it. seconds: what it took.
    """

    folder: Path
    key: str
    seconds: float


class Stage(NamedTuple):
    """What `Stages.run` takes.

    inputs: what it is made from, as JSON values. make: fills its folder.
    """

    name: str
    inputs: dict[str, Any]
    make: Callable[[Path], None]


class Stages:
    """The stages of the job in `workdir`.

    Attributes:
      workdir: the folder of everything.
      done: the stages that `run` has finished or found finished, by name, in their order.
    """

    def __init__(self, workdir: str):
        self.workdir = Path(workdir)
        self.done: dict[str, Done] = {}

    def run(self, name: str, inputs: dict[str, Any], make: Callable[[Path], None]) -> Done:
        """Calls `make(folder)`, unless the folder was made from equal `inputs` (JSON values)
        before.

        A stage that was interrupted goes on in its folder; one made from other inputs is made
        again from nothing. Raises UserError where the folder holds what no stage has made.
        """
        # Inputs as sorted JSON, so that the key does not depend on the order of the code.
        folder, record = self.workdir / name, self.workdir / 'stages' / f'{name}.json'
        key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        before = read_object(record) if record.exists() else None
        if before is None and folder.exists():
            raise UserError(
                f'{folder} exists, and was not made by this command: use another --workdir'
            )

        # Made before from the same: nothing to do. The folder may have been deleted by hand.
        if before and before['key'] == key and before['done'] and folder.exists():
            say(f'{name}: reused, made from the same inputs in {before["seconds"]:.0f} s')
            self.done[name] = Done(folder, key, before['seconds'])
            return self.done[name]
        # From here on it is made: anew, or on from where it was.
        earlier = 0.0
        if before and before['key'] == key:
            say(f'{name}: goes on where it was interrupted')
            earlier = before['seconds']
        else:
            say(f'{name}: made again, its inputs have changed' if before else name)
            shutil.rmtree(folder, ignore_errors=True)
        # The record first, so that a folder that is there after a crash is known as ours.
        state: dict[str, Any] = {'key': key, 'done': False, 'seconds': earlier, 'inputs': inputs}
        new_folders = [path for path in (record.parent, *record.parents[1:]) if not path.exists()]
        _write(record, state)

        # Also after a crash or ^C the time counts, and `done` stays False: the next run goes on.
        start = time.perf_counter()
        try:
            make(folder)
            state['done'] = True
        except UserError:  # a refusal is not gone on with, and leaves nothing
            shutil.rmtree(folder, ignore_errors=True)
            record.unlink()
            for path in new_folders:
                path.rmdir()
            raise
        finally:
            if record.exists():
                state['seconds'] = earlier + time.perf_counter() - start
                _write(record, state)
        say(f'{name}: done in {state["seconds"]:.0f} s')
        self.done[name] = Done(folder, key, state['seconds'])
        return self.done[name]


def command(name: str, *arguments: str) -> list[str]:
    """Returns the command NAME with its arguments, as it runs from the current folder.

    It is the script for who has called `bert-quickstart`, else the module. Either is of the
    environment that this program runs in, which need not be active: plain `python` may be another.
    """
    # What Python was started with: sys.argv names the command's file, whichever way it was called.
    called = Path(sys.orig_argv[1]) if sys.orig_argv[1:] else Path()
    if called.name.startswith('bert-'):
        # Beside the script that was called; by its name alone where a shell would find the same.
        script = called.absolute().with_name(app.script_name(name))
        typed = script.name if shutil.which(script.name) == str(script) else _short(script)
        return [typed, *arguments]

    # A package of the user's in the current folder may have our name: -P passes it.
    passing_over = [] if Path.cwd() == Path(__file__).parents[3] else ['-P']
    return [
        _short(Path(sys.executable)),
        *passing_over,
        '-m',
        f'bert_jax.launch.{name}',
        *arguments,
    ]


def _short(path: Path) -> str:
    """The path from the current folder where it lies below it: it is read by people."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def binary(name: str, *arguments: str) -> None:
    """Runs the command NAME, its output going to the terminal.

    Ends this program where it fails.
    """
    # Printed as a user would type it.
    line = command(name, *arguments)
    say('$ ' + shlex.join(line))
    code = subprocess.run(line, check=False).returncode
    if code:
        say(
            f'{app.script_name(name)} failed (exit code {code}), see above; the same command goes'
            ' on from here'
        )
        sys.exit(code if code > 0 else 128 - code)


def say(message: str) -> None:
    """A line of progress."""
    print(f'[{time.strftime("%H:%M:%S")}] {message}', flush=True)


def fingerprint(files: Sequence[Path]) -> list[list[Any]]:
    """Names, sizes and times of change of a user's files, which tell whether they are as before."""
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _write(path: Path, data: dict[str, Any]) -> None:
    # Whole or not at all: a record cut in half would be nobody's folder.
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(data, indent=2) + '\n')
