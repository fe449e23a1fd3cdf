"""What a call comes to, for the program that made it: scores, paths, and its history as columns.

Owns what the results of all calls have in common. What the scores are is the call's to say.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from absl import logging
from etils import epath

from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir

_SHOWN = 5  # scores in the repr of a result


@dataclass(frozen=True, repr=False)
class Result:
    """What is in a workdir after a call.

    Attributes:
      workdir: the folder of the run.
    """

    workdir: str

    @property
    def scores(self) -> dict[str, float]:
        """Return the numbers that count, by their names."""
        return {}

    @property
    def history(self) -> dict[str, dict[str, list[Any]]]:
        """Return metrics.jsonl as {'train' or 'eval': {'step' or a metric: its column}}.

        The columns of a split are equally long, as `pandas.DataFrame` wants them; nan stands for
        what a line does not have. There is none before the first log line.
        """
        file = Workdir(self.workdir).metrics_file
        lines = read_metrics(file) if self.workdir and file.exists() else []
        splits: dict[str, list[Any]] = {}
        for line in lines:
            splits.setdefault(line.get('split', 'train'), []).append(line)
        return {split: _columns(of_split) for split, of_split in splits.items()}

    @property
    def paths(self) -> dict[str, epath.Path]:
        """Return what there is of the run's files, by what they hold."""
        folder = Workdir(self.workdir)
        paths = {
            'workdir': folder.path,
            'config': folder.config_file,
            'tokenizer': folder.tokenizer_folder,
            'metrics': folder.metrics_file,
            'plots': folder.plots,
        }
        there = {name: path for name, path in paths.items() if self.workdir and path.exists()}
        results = sorted((folder.path / 'eval').glob('*.json')) if there else []
        return there | {f'eval/{path.stem}': path for path in results}

    def __repr__(self) -> str:
        """Return the class, the folder and the scores, in a line."""
        # A line is read at a glance: `scores` has all of them.
        figures = [f'{name}={value:.4g}' for name, value in self.scores.items()]
        figures = [*figures[:_SHOWN], '...'] if len(figures) > _SHOWN else figures
        return f'{type(self).__name__}({", ".join([repr(self.workdir), *figures])})'


@dataclass(frozen=True, repr=False)
class EvaluateResult(Result):
    """What an evaluation measured; `workdir` is '' where it was of no run.

    Attributes:
      report: all of it, as the command prints it.
      text: what is for people: scores of each class, or the table of scores with typos.
    """

    report: dict[str, Any] = dataclasses.field(default_factory=dict)
    text: str = ''

    @property
    def scores(self) -> dict[str, float]:
        """Return the scores by their names."""
        return numbers(self.report.get('metrics', self.report))

    def show(self) -> int:
        """Print the scores as one JSON object, or the table that is there in its place."""
        # Of scores the text is beside the result, which programs read.
        if self.text:
            print(self.text, file=sys.stderr if self.report else sys.stdout)
        if self.report:
            print(json.dumps(self.report, indent=2))
        return 0


@dataclass(frozen=True, repr=False)
class RunResult(Result):
    """How a training ended.

    Attributes:
      signal: the number of the signal that asked it to save and stop, or None; the same call goes
        on.
    """

    signal: int | None = dataclasses.field(default=None, kw_only=True)

    @property
    def folder(self) -> Workdir:
        """Return the folder of the run."""
        return Workdir(self.workdir)

    def show(self) -> int:
        """Print what the command prints, and return its exit code, by which a supervisor goes."""
        return self.exit_code()

    def exit_code(self) -> int:
        """Return the exit code of the command, and log how a run that is done turned out."""
        if self.signal is not None:
            return 128 + self.signal
        for line in self.summary():
            logging.info(line)
        return 0

    def summary(self) -> list[str]:
        """Return lines for the user of a run that is done: its verdict, its pictures, what next."""
        folder, verdict = self.folder, self.verdict()
        lines = [verdict] if verdict else []
        lines += [f'curves: {folder.plots}'] if folder.plots.exists() else []
        return lines + following(self.uses(shlex.quote(str(folder))))

    def verdict(self) -> str | None:
        """Say how the run compares with guessing; None where it was not compared."""
        return None

    def uses(self, folder: str) -> dict[str, str]:
        """Return commands for what is in `folder`, a word of the shell, and what they do."""
        return {}


def following(commands: Mapping[str, str]) -> list[str]:
    """Return lines that name commands to run next, {command: what it does}.

    What is in capitals in them is the user's to fill in. A shell takes the rest of a line as a
    comment, so that a line can be pasted whole.
    """
    return [f'next: {command}  # {does}' for command, does in commands.items()]


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the values that are numbers."""
    kinds = int | float
    return {k: v for k, v in values.items() if isinstance(v, kinds) and not isinstance(v, bool)}


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for line in lines for name in line if name != 'split')
    filled = lambda value: math.nan if value is None else value
    return {name: [filled(line.get(name)) for line in lines] for name in names}
