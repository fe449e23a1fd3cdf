"""A sweep carried out: the runs of all its points, one after the other, and their rows.

Owns the layout of a sweep's folder: runs/NAME/ for each point, sweep.json with all rows. Which
points there are is bert_jax/configs/sweep.py's. It must not know how a run is carried out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from absl import logging
from etils import epath

from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.configs.sweep import Point
from bert_jax.runs.finetuning import results
from bert_jax.runs.workdir import notes, plots
from bert_jax.runs.workdir.workdir import Workdir

C = TypeVar('C', bound=FinetuneConfig, contravariant=True)


class Runner(Protocol[C]):
    """What carries out runs of configurations C: a finetuner.FineTuner."""

    def check(self, config: C) -> None:
        """Raise UserError where there can be no run of `config`."""

    def run(self, config: C, folder: str) -> tuple[dict[str, Any], bool]:
        """Return a run's result, and whether it was there already."""


def run_sweep(runs: Sequence[tuple[Runner[Any], Point]], folder: str) -> list[dict[str, Any]]:
    """Run every point that is not done, and write and return the rows of all.

    Args:
      runs: the points of the sweep, each with what carries it out.
      folder: the sweep's.
    """
    # All points before the first is run: a mistake in the last should not cost a night.
    for runner, point in runs:
        runner.check(point.config)
    Workdir(folder).check_takes_sweep()
    rows, reused = [], 0
    for number, (runner, point) in enumerate(runs, start=1):
        # Runs are named by their settings, so a larger sweep finds those of a smaller one.
        result, done_before = runner.run(point.config, os.path.join(folder, 'runs', point.name))
        reused += done_before
        rows.append({'name': point.name, 'settings': point.settings, **result})
        logging.info(
            'run %d of %d, %s: %s',
            number,
            len(runs),
            point.name,
            results.describe(result, done_before),
        )
    if reused:
        logging.info('%d of %d runs were done before and are reused', reused, len(runs))

    # sweep.json comes last: it is there only when all runs are.
    best = results.best_of(rows)
    report = {
        'task': best['task'],
        'metric': best['metric'],
        'best': best['name'],
        'summary': results.summarize(rows),
        'runs': rows,
    }
    atomic_write(epath.Path(folder) / 'sweep.json', json.dumps(report, indent=2) + '\n')
    guessed = notes.guesses(Workdir(os.path.join(folder, 'runs', best['name'])))
    plots.save(Workdir(folder).plots / 'spread.png', results.spread(rows, guessed))
    return rows
