"""What lies in the folders that a page is made of: runs of any kind, and sweeps of them.

Owns how a folder is told to be which, what a run is called on the page, and what is known of it. It
must not know how any of that is shown.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.json_object import read_object
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.changes import leaves
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.notes import Guess, Start
from bert_jax.runs.workdir.plots import points
from bert_jax.runs.workdir.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, as its workdir has it now: it may be done, be going on, or have been stopped.

    lines: of metrics.jsonl, none before the first; results: by split, of eval/SPLIT.json.
    """

    name: str
    workdir: Workdir
    config: schema.Config
    data: dict[str, Any]
    lines: list[dict[str, Any]]
    results: dict[str, dict[str, Any]]
    starts: list[Start]
    guesses: list[Guess]

    @property
    def pretraining(self) -> bool:
        """Tell whether it is of bert-pretrain, or of a program around the same loop."""
        return isinstance(self.config, schema.PretrainConfig)

    @property
    def task(self) -> str:
        """Return the name of a fine-tuning run's task, without the folder of a task file."""
        return PurePath(self.data['task']).stem

    @property
    def result(self) -> dict[str, Any] | None:
        """Return what a fine-tuning run is judged by, which is there when it is done."""
        return next((r for r in self.results.values() if 'chance_loss' in r), None)

    @cached_property
    def step(self) -> int:
        """Return the steps that it has done, as far as its folder tells."""
        logged = self.lines[-1]['step'] if self.lines else 0
        return max(logged, self.workdir.newest_step())

    @property
    def standing(self) -> str:
        """Return how far it is, in words."""
        if isinstance(self.config, schema.PretrainConfig):
            total = self.config.total_steps
            return f'{self.step:,}' if self.step >= total else f'{self.step:,} of {total:,}'
        return f'{self.step:,}' if self.result else f'{self.step:,}, not done'

    @property
    def seconds(self) -> float | None:
        """Return what its steps took, by its log lines; None before the first that tells."""
        times = [line['seconds'] for line in self.lines if line.get('seconds') is not None]
        return sum(times) if times else None

    def guess(self, name: str) -> float | None:
        """Return what guessing scores in a metric at the run's end; None where nobody knows."""
        latest_first = reversed(self.guesses)
        return next((guess.scores[name] for guess in latest_first if name in guess.scores), None)

    def last(self, split: str, name: str) -> float | None:
        """Return the last finite value of a metric; None without any."""
        measured = points(self.lines, split, name)
        return measured[-1][1] if measured else None

    def final(self, name: str) -> float | None:
        """Return the last score on held-out records, of all of them where bert-evaluate has it."""
        later = self.results.get('eval', {})
        if later.get('step') == self.step and name in later.get('metrics', {}):
            return later['metrics'][name]
        return self.last('eval', name)

    def settings(self) -> dict[str, Any]:
        """Return every setting, and what it reads, by dotted names."""
        return leaves(schema.to_dict(self.config)) | leaves({'data': self.data})


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs of one sweep, done or not."""

    name: str
    runs: list[Run]

    @cached_property
    def varied(self) -> list[str]:
        """Return the names of the settings, the seed aside, in which its runs differ."""
        settings = [leaves(schema.to_dict(run.config)) for run in self.runs]
        names = dict.fromkeys(name for of_run in settings for name in of_run)
        states = lambda name: {(name in of_run, of_run.get(name)) for of_run in settings}
        return [name for name in names if name != 'seed' and len(states(name)) > 1]

    def settings_of(self, run: Run) -> dict[str, Any]:
        """Return what makes a run of the sweep another than the others, with its seed."""
        settings = leaves(schema.to_dict(run.config))
        return {name: settings[name] for name in (*self.varied, 'seed') if name in settings}

    def rows(self) -> list[dict[str, Any]]:
        """Return the results of runs that are done, with their settings, as sweep.json has them."""
        return [
            {'name': run.name, 'settings': self.settings_of(run), **run.result}
            for run in self.runs
            if run.result
        ]


def open_all(folders: Sequence[str | os.PathLike[str]]) -> list[Run | Sweep]:
    """Return what is in the folders, each once, in their order.

    Raises:
      UserError: there is none, or one of them holds neither a run nor a sweep.
    """
    if not folders:
        raise UserError('name the folders of one or more runs: --workdir=DIR')
    once: dict[str, str] = {}
    for folder in (os.fspath(each) for each in folders):
        once[folder if '://' in folder else os.path.abspath(folder)] = folder
    return [_open(folder, name) for folder, name in zip(once.values(), _short_names(list(once)))]


def all_runs(opened: Sequence[Run | Sweep]) -> list[Run]:
    """Return every single run, those of sweeps too."""
    runs = (entry.runs if isinstance(entry, Sweep) else (entry,) for entry in opened)
    return [run for members in runs for run in members]


def _open(folder: str, name: str) -> Run | Sweep:
    workdir = Workdir(folder)
    with reading(workdir):
        swept = [] if workdir.config_file.exists() else workdir.swept()
    if not swept:
        workdir.check('the folder of a run or of a sweep')
        return _run(workdir, name)
    return Sweep(
        name, [_run(Workdir(workdir.path / 'runs' / run), f'{name}: {run}') for run in swept]
    )


def _run(workdir: Workdir, name: str) -> Run:
    lines = read_metrics(workdir.metrics_file) if workdir.metrics_file.exists() else []
    guessed = notes.guesses(workdir)
    if not guessed:
        # A run of an older version: its evaluations tell how far they are below the unigram loss.
        gained = [line for line in lines if line.get('nats_gained') is not None]
        guessed = [
            Guess(0, {'mlm_loss': line['nats_gained'] + line['mlm_loss']}) for line in gained[:1]
        ]
    results = {file.stem: read_object(file) for file in sorted(workdir.path.glob('eval/*.json'))}
    data = workdir.data() if workdir.data_file.exists() else {}
    return Run(
        name, workdir, workdir.config(), data, lines, results, notes.starts(workdir), guessed
    )


def _short_names(folders: Sequence[str]) -> list[str]:
    """Return as much of the end of each path as tells it from the others."""
    names = []
    for folder in folders:
        parts = PurePath(folder).parts
        for count in range(1, len(parts) + 1):
            same = [other for other in folders if PurePath(other).parts[-count:] == parts[-count:]]
            if len(same) == 1:
                break
        names.append('/'.join(parts[-count:]).lstrip('/') or folder)
    return names
