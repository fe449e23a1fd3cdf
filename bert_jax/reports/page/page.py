"""Several runs on one HTML page that needs nothing but itself.

Owns which parts the page has, and in which order. What is in the folders is runs.py's to know; each
part is made in a file of its own, and page.html draws it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.reports.page import charts, tables
from bert_jax.reports.page.confusion import confusion
from bert_jax.reports.page.headline import headline
from bert_jax.reports.page.parts import Answers, Part, Table, Text, render
from bert_jax.reports.page.runs import Run, Sweep, all_runs, open_all
from bert_jax.reports.page.samples import Samples, samples


def write_report(
    workdirs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    sample_count: int = 6,
    filled: Mapping[str, Samples] | None = None,
    result: Sequence[Part] = (),
    title: str = '',
) -> str:
    """Write the page of runs and sweeps, and return its path.

    What a part of the page lacks (records that have moved, a task whose files are gone) is said on
    the page.

    Args:
      workdirs: folders of runs of any kind and of sweeps, mixed as one likes; runs may be going on.
      output: the page, which appears whole or not at all; None: report.html in the first folder.
      sample_count: how many masked words of held-out text each pre-training run fills in, for which
        its model is loaded twice; 0: none.
      filled: what runs fill in, by their folders, where the caller has it: no model is loaded then.
      result: what the page opens with, where the caller has more to say than the runs.
      title: of the page; '' for the names of the runs.

    Raises:
      UserError: a folder holds no run, or one is damaged.
    """
    opened = open_all(workdirs)
    names = [entry.name for entry in opened]
    title = title or ', '.join(names[:4]) + (f' and {len(names) - 4} more' if names[4:] else '')
    pretraining = [entry for entry in opened if isinstance(entry, Run) and entry.pretraining]
    finetuning = [entry for entry in opened if entry not in pretraining]
    shown = pretraining if sample_count else []
    kinds = [kind for kind in (pretraining, finetuning) if kind]
    all_of = itertools.chain.from_iterable
    sections: dict[str, Iterable[Part]] = {
        'Result': result or headline(opened),
        'Pre-training': _pretraining(pretraining),
        'Masked words': all_of(_words(run, sample_count, filled or {}) for run in shown),
        'Fine-tuning': _finetuning(finetuning),
        'Confusion': all_of(map(_matrix, finetuning)),
        'Settings': all_of(map(tables.differences, kinds)),
        'Commands and machines': all_of(map(tables.reproduction, opened)),
    }
    listed = [(heading, list(parts)) for heading, parts in sections.items()]
    text = render(title, [(heading, parts) for heading, parts in listed if parts])
    target = epath.Path(output or epath.Path(workdirs[0]) / 'report.html')
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, text)
    return os.fspath(target)


def _pretraining(runs: Sequence[Run]) -> list[Part]:
    if not runs:
        return []
    note = (
        'Guessing gives each masked token its frequency in the training records (unigram), and'
        ' always the more frequent label of next sentence prediction.'
    )
    return [
        tables.pretraining_results(runs),
        *tables.scored_afterwards(runs),
        Text(note),
        charts.curves(charts.series_of(runs), 'pre-training'),
    ]


def _finetuning(opened: Sequence[Run | Sweep]) -> list[Part]:
    if not opened:
        return []
    runs, series = all_runs(opened), charts.series_of(opened)
    alone = [entry for entry in opened if isinstance(entry, Run)]
    parts: list[Part] = [tables.finetuning_results(alone)] if alone else []
    # Of a sweep its picture first: every run by itself is for who looks for one.
    for sweep in (entry for entry in opened if isinstance(entry, Sweep)):
        parts += [
            Text(sweep.name, 'heading'),
            *charts.spread(sweep, series),
            tables.finetuning_results(sweep.runs, f'All {len(sweep.runs)} runs'),
        ]
    parts += tables.scored_afterwards(runs)

    # Tasks have metrics and baselines of their own, so each has charts of its own.
    for task in dict.fromkeys(run.data['task'] for run in runs):
        of_task = [each for each in series if each.run.data['task'] == task]
        parts += [Text(of_task[0].run.task, 'heading'), charts.curves(of_task, task)]
    return parts


def _words(run: Run, count: int, filled: Mapping[str, Samples]) -> list[Part]:
    """Return masked words of held-out text, and what the run fills in for them."""
    heading = Text(run.name, 'heading')
    try:
        texts = filled.get(run.workdir.name) or samples(run, count)
    except UserError as error:
        logging.info('%s: no samples (%s)', run.name, error)
        return [heading, Text(f'No samples: {error}.')]
    rows = [
        [text.hidden, Answers(text.first, text.hidden.word), Answers(text.now, text.hidden.word)]
        for text in texts.samples
    ]
    head = ['held-out text, the hidden word marked', 'before', f'at step {texts.step:,}']
    caption = f'Before: {texts.began}. The words are the longest hidden ones of held-out records.'
    return [heading, Table(caption, head, rows, 'words')]


def _matrix(entry: Run | Sweep) -> list[Part]:
    """Return the confusion of a run, or of a sweep's best."""
    from bert_jax.runs.finetuning.sweep import best_of

    done = {run.name: run for run in all_runs([entry]) if run.result}
    if not done:
        return []
    best = best_of([{**run.result, 'name': name} for name, run in done.items() if run.result])
    run = done[best['name']]
    try:
        matrix = confusion(run)
    except UserError as error:
        return [Text(run.name, 'heading'), Text(f'Not counted: {error}.')]
    note = ' (the best run)' if isinstance(entry, Sweep) else ''
    return [Text(f'{run.name}{note}', 'heading'), matrix] if matrix else []
