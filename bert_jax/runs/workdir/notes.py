"""What a run notes for whoever looks at it later: how it was started, and what guessing scores.

Owns starts.json and guessing.json in a workdir. No result, checkpoint or fingerprint depends on
them, so a disk that does not take them is a warning. It must not know what is trained.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, TypeVar

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import write_note
from bert_jax.runs.workdir.workdir import MEND, Workdir

# Whose versions may change a number.
PACKAGES = 'jax jaxlib flax optax orbax-checkpoint numpy'.split()


@dataclasses.dataclass(frozen=True)
class Start:
    """One process that began the run, or went on with it.

    step: the steps that were made before; time: UTC, as ISO 8601 has it; command: as a shell takes
    it, in `folder`; system, cpus, devices: what it ran on (cpus: those it was allowed to use);
    versions: by package, Python among them.
    """

    step: int
    time: str
    command: str
    folder: str
    system: str
    cpus: int
    devices: str
    versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Guess:
    """What answers that do not look at the input score, from step `step` of the run on.

    scores: by the names of metrics.jsonl; records: the folder of the records that they were counted
    on, '' where there is none.
    """

    step: int
    scores: dict[str, float]
    records: str = ''


Note = TypeVar('Note', bound=Start | Guess)


def note_start(workdir: Workdir, step: int) -> None:
    """Add this process to the starts of the run, which goes on from `step`."""
    import jax  # here, since to read the notes needs none

    start = Start(
        step,
        datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
        command_line(sys.argv),
        os.getcwd(),
        f'{platform.system()} {platform.machine()}',
        cpus(),
        f'{jax.device_count()} x {jax.devices()[0].device_kind}',
        {'python': platform.python_version()} | {name: metadata.version(name) for name in PACKAGES},
    )
    _add(workdir, start)


def cpus() -> int:
    """Return the CPUs that this process is allowed to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def note_guess(folder: str, guess: Guess) -> None:
    """Keep what guessing scores, in place of what was known from the same step on."""
    _add(Workdir(folder), guess)


def starts(workdir: Workdir) -> list[Start]:
    """Read which processes made the run, in order; none where an older version made it."""
    return _read(workdir, Start)


def guesses(workdir: Workdir) -> list[Guess]:
    """Return what guessing scores, in the order of the steps; none where nobody has noted it."""
    return sorted(_read(workdir, Guess), key=lambda guess: guess.step)


def verdict(result: Mapping[str, Any], guessed: Sequence[Guess]) -> str:
    """Say in a line how the score of a run compares with answers that do not look at the input."""
    metric, split = result['metric'], result['split']
    score = result['metrics'][metric]
    guess = next((g.scores[metric] for g in reversed(guessed) if metric in g.scores), None)
    if guess is None or math.isnan(guess):
        return f'{metric} {score:.3f} on {split}'
    figures = f'({split} {metric} {score:.3f}, guessing {guess:.3f})'
    # A score above guessing may be luck where the training set was not learnt.
    if result.get('failed'):
        return (
            f'hardly learnt its training set {figures}: train longer, or with another learning_rate'
            ' or seed'
        )
    if score > guess:
        return f'{score - guess:.3f} better than guessing {figures}'
    return (
        f'no better than guessing {figures}: train longer, with another learning_rate, or with more'
        ' examples'
    )


def command_line(argv: list[str]) -> str:
    """Return the command that a user would type for such `sys.argv`.

    A command of this program is `python -m bert_jax.launch.NAME` however it was begun: that also
    works where the console scripts are not on the path.
    """
    program = pathlib.Path(argv[0])
    commands = pathlib.Path(__file__).parents[2] / 'launch'
    is_ours = program.resolve().parent == commands.resolve()
    words = ['-m', f'bert_jax.launch.{program.stem}'] if is_ours else [argv[0]]
    return shlex.join(['python', *words, *argv[1:]])


def _file(workdir: Workdir, kind: type[Note]) -> epath.Path:
    return workdir.path / ('starts.json' if kind is Start else 'guessing.json')


def _read(workdir: Workdir, kind: type[Note]) -> list[Note]:
    """Read the notes of a kind, nothing where there is no file. UserError where it is damaged."""
    path = _file(workdir, kind)
    if not path.exists():
        return []
    try:
        return [kind(**entry) for entry in read_object(path, MEND)['entries']]
    except (KeyError, TypeError) as error:
        raise UserError(f'{os.fspath(path)}: damaged ({error}): {MEND}') from error


def _add(workdir: Workdir, note: Note) -> None:
    """Write the notes of a kind with one more; a guess takes the place of one from its step."""
    path, is_guess = _file(workdir, type(note)), isinstance(note, Guess)
    try:
        kept = [n for n in _read(workdir, type(note)) if not is_guess or n.step != note.step]
        write_note(path, {'entries': [dataclasses.asdict(each) for each in (*kept, note)]}, 2)
    # Damaged notes and a full disk alike: a run is worth more than what is noted of it.
    except (OSError, UserError) as error:
        logging.warning(f'{path}: not written ({error})')
