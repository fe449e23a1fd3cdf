"""What lies in the folders that a page is made of: runs of any kind, and sweeps of them.

Owns how a folder is told to be which, what a run is called on the page, and what is known of it. It
must not know how any of that is shown.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any, ClassVar

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.json_object import read_object
from bert_jax.runs.finetuning import sweep as sweeps
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.changes import leaves
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.notes import Guess, Start
from bert_jax.runs.workdir.plots import select_points
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

    swept: ClassVar = False

    @property
    def runs(self) -> list[Run]:
        """Return the run alone, as a sweep has several."""
        return [self]

    @property
    def best(self) -> Run:
        """Return the run, which has no other beside it."""
        return self

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
        for result in self.results.values():
            if 'chance_loss' in result:
                return result
        return None

    @property
    def records(self) -> str:
        """Return the folder of its newest records, as far as it has noted that; else ''."""
        for guess in reversed(self.guesses):
            if guess.records:
                return guess.records
        return ''

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
        times = select_points(self.lines, 'train', 'seconds')
        return sum(seconds for _, seconds in times) if times else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return every setting, and what it reads, by dotted names."""
        return leaves(schema.to_dict(self.config)) | leaves({'data': self.data})

    @property
    def held_out(self) -> list[str]:
        """Return the usual metrics that it was scored by on held-out records."""
        names = ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'loss', 'accuracy')
        return [name for name in names if self.final(name) is not None]

    def final(self, name: str) -> float | None:
        """Return the last score on held-out records, of all of them where bert-evaluate has it."""
        later = self.results.get('eval', {})
        if later.get('step') == self.step and name in later.get('metrics', {}):
            return later['metrics'][name]
        scores = select_points(self.lines, 'eval', name)
        return scores[-1][1] if scores else None


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The runs of one sweep, done or not."""

    name: str
    runs: list[Run]

    swept: ClassVar = True
    pretraining: ClassVar = False

    @cached_property
    def differing(self) -> dict[str, dict[str, Any]]:
        """Return by the name of each run the settings in which runs differ, and its seed."""
        settings = {run.name: leaves(schema.to_dict(run.config)) for run in self.runs}
        names = []
        for name in dict.fromkeys(itertools.chain(*settings.values())):
            states = {(name in of_run, of_run.get(name)) for of_run in settings.values()}
            if name == 'seed' or len(states) > 1:
                names.append(name)
        differing = {}
        for run, of_run in settings.items():
            differing[run] = {name: of_run[name] for name in names if name in of_run}
        return differing

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return the results of runs that are done, with their settings, as sweep.json has them."""
        rows = []
        for run in self.runs:
            if run.result:
                settings = self.differing[run.name]
                rows.append({'name': run.name, 'settings': settings, **run.result})
        return rows

    @property
    def summary(self) -> list[dict[str, Any]]:
        """Return the scores over seeds, in the order of the setting that they are drawn over."""
        entries, axis = sweeps.summarize(self.rows), sweeps.find_axis(self.rows)
        if axis:
            entries.sort(key=lambda entry: entry['settings'][axis])
        return entries

    @property
    def guesses(self) -> list[Guess]:
        """Return what guessing scores, which is the same for all runs that have begun."""
        return max((run.guesses for run in self.runs), key=len)

    @property
    def best(self) -> Run | None:
        """Return the best run of those that are done."""
        if not self.rows:
            return None
        name = sweeps.find_best(self.rows)['name']
        return next(run for run in self.runs if run.name == name)


def find_guess(entry: Run | Sweep, name: str) -> float | None:
    """Return what guessing scores in a metric at the end of a run; None where nobody knows."""
    for guess in reversed(entry.guesses):
        if name in guess.scores:
            return guess.scores[name]
    return None


def open_all(folders: Sequence[str | os.PathLike[str]]) -> list[Run | Sweep]:
    """Return what is in the folders, each once, in their order.

    Raises:
      UserError: there is none, or one of them holds neither a run nor a sweep.
    """
    if not folders:
        raise UserError('name the folders of one or more runs: --workdir=DIR')
    once: dict[str, str] = {}
    for given in folders:
        folder = os.fspath(given)
        once[folder if '://' in folder else os.path.abspath(folder)] = folder

    # A name is as much of the end of each path as tells it from the others.
    paths, count = [PurePath(path).parts for path in once], 1
    while len({parts[-count:] for parts in paths}) < len(paths):
        count += 1
    opened: list[Run | Sweep] = []
    for folder, parts in zip(once.values(), paths):
        workdir, name = Workdir(folder), str(PurePath(*parts[-count:]))
        with reading(workdir):
            swept = [] if workdir.config_file.exists() else workdir.swept()
        if swept:
            runs = []
            for run in swept:
                runs.append(_open_run(Workdir(workdir.path / 'runs' / run), f'{name}: {run}'))
            opened.append(Sweep(name, runs))
        else:
            workdir.check('the folder of a run or of a sweep')
            opened.append(_open_run(workdir, name))
    return opened


def _open_run(workdir: Workdir, name: str) -> Run:
    lines = read_metrics(workdir.metrics_file) if workdir.metrics_file.exists() else []
    guesses = notes.guesses(workdir)
    if not guesses:
        # A run of an older version: its evaluations tell how far they are below the unigram loss.
        for line in lines:
            if line.get('nats_gained') is not None:
                guesses = [Guess(0, {'mlm_loss': line['nats_gained'] + line['mlm_loss']})]
                break
    results = {file.stem: read_object(file) for file in sorted(workdir.path.glob('eval/*.json'))}
    data = workdir.data() if workdir.data_file.exists() else {}
    starts = notes.starts(workdir)
    return Run(name, workdir, workdir.config(), data, lines, results, starts, guesses)
