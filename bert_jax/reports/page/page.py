"""Several runs on one HTML page that needs nothing but itself.

Owns what the page says of the runs, and how numbers are written. page.html has the parts of the
page and their order; what is in the folders is runs.py's to know.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from absl import logging
from etils import epath

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.input_pipeline.progress import clock
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.reports.page import charts
from bert_jax.reports.page.runs import Run, Sweep, find_guess, open_all
from bert_jax.reports.page.samples import Samples, fill_samples
from bert_jax.runs.finetuning import sweep as sweeps
from bert_jax.runs.pretraining import baselines
from bert_jax.runs.workdir import notes
from bert_jax.runs.workdir.plots import get_quantity

NONE = '–'


class Text(NamedTuple):
    """A text by itself; kind: 'headline', 'note' or 'report' (its lines are kept)."""

    text: str
    kind: str = 'note'


def write_report(
    workdirs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    sample_count: int = 6,
    filled: Mapping[str, Samples] | None = None,
    result: Sequence[Text] = (),
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
    pretraining = [entry for entry in opened if isinstance(entry, Run) and entry.pretraining]
    finetuning = [entry for entry in opened if not entry.pretraining]
    words, confusion = {}, {}
    if sample_count:
        for run in pretraining:
            words[run.name] = fill_in(run, sample_count, filled or {})
    for entry in finetuning:
        counted = count_confusion(entry.best)
        if entry.best and counted:
            name = f'{entry.best.name} (the best run)' if entry.swept else entry.best.name
            confusion[name] = counted
    if not result:
        result = []
        for entry in opened:
            result += describe(entry)

    text = _get_template().render(
        title=title,
        result=result,
        opened=opened,
        pretraining=pretraining,
        finetuning=finetuning,
        words=words,
        confusion=confusion,
    )
    target = epath.Path(output or epath.Path(workdirs[0]) / 'report.html')
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, text)
    return os.fspath(target)


def _get_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # so that no text of a user is read as markup
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(value=write_value, duration=write_duration, heading=write_heading)
    environment.globals.update(charts=charts, sweeps=sweeps)
    for function in (compare_settings, find_guess, list_commands, write_score):
        environment.globals[function.__name__] = function
    return environment.get_template('page.html')


def describe(entry: Run | Sweep) -> list[Text]:
    """Return a line that says what came out of a run or a sweep, and one that says of what."""
    run = entry.best
    if run is None:
        return [Text(f'{entry.name}: no run is done', 'headline')]
    outcome = f'{run.standing} steps'
    if run.result:
        outcome = notes.verdict(run.result, run.guesses)
    elif run.pretraining:
        line = {'step': run.step, 'mlm_loss': run.final('mlm_loss')}
        guess, loss = find_guess(run, 'mlm_loss'), line['mlm_loss']
        if guess is not None and loss is not None:
            line['nats_gained'] = guess - loss
        before = [each for each in run.lines if each['step'] < run.step]
        outcome = baselines.compare_with_guessing([*before, line]) or f'{outcome}, not compared'

    if isinstance(run.config, schema.PretrainConfig):
        c = run.config.model
        subject = (
            f'Model: {run.config.name}, {c.num_layers} layers, {c.hidden_size} wide,'
            f' {c.vocab_size:,} entries.'
        )
        if run.records:
            subject += f' Text: the records in {run.records}.'
    else:
        subject = f'Model: {run.data.get("init_from", "unknown")}. Task: {run.data["task"]}.'
    return [Text(f'{entry.name}: {outcome}', 'headline'), Text(subject)]


def compare_settings(
    opened: Sequence[Run | Sweep],
) -> tuple[list[str], dict[str, list[str]], dict[str, str]]:
    """Return the names of runs, the settings in which they differ, and what all have alike.

    Of a sweep a setting has all values that its runs have.
    """
    columns = []
    for entry in opened:
        values: dict[str, dict[str, None]] = {}
        for run in entry.runs:
            for name, value in run.settings.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                values.setdefault(name, {})[text] = None
        columns.append({name: ', '.join(texts) for name, texts in values.items()})
    differing, alike = {}, {}
    for name in dict.fromkeys(itertools.chain(*columns)):
        cells = [column.get(name, NONE) for column in columns]
        if len(set(cells)) > 1:
            differing[name] = cells
        else:
            alike[name] = cells[0]
    return [entry.name for entry in opened], differing, alike


def list_commands(entry: Run | Sweep) -> list[str]:
    """Return the commands that make a run, or all runs of a sweep, again."""
    starts = [start for run in entry.runs for start in run.starts]
    if not starts:  # of an older version: the same settings again, in a folder of their own
        run = entry.runs[0]
        command = 'pretrain' if run.pretraining else 'finetune'
        words = ['python', '-m', f'bert_jax.launch.{command}']
        words.append(f'--config={run.workdir.config_file}')
        if run.pretraining:
            words.append('--data=RECORDS')
        for name in ('task', 'data_dir', 'init_from'):
            if name in run.data:
                words.append(f'--{name}={run.data[name]}')
        return [shlex.join([*words, f'--workdir={run.workdir}-again'])]

    # The runs of a sweep have one command, and a run that was stopped the same several times.
    return list(dict.fromkeys(f'cd {shlex.quote(s.folder)}\n{s.command}' for s in starts))


def write_value(name: str, value: Any) -> str:
    """Return a value of metrics.jsonl as text: accuracies in per cent, other values as they are."""
    if value is None:
        return NONE
    if not isinstance(value, int | float):
        return str(value)
    _, unit, factor = get_quantity(name)
    if unit == '%':
        return f'{value * factor:.1f} %'
    is_count = value >= 100 and float(value).is_integer()
    if is_count or unit == 'tokens a second':
        return f'{value:,.0f}'
    return f'{value:.3g}' if name == 'learning_rate' else f'{value:.4f}'


def write_heading(name: str) -> str:
    """Return what a column of a metric is called."""
    return f'{get_quantity(name).title} ({name})'


def write_score(run: Run, name: str, value: float | None) -> str:
    """Return a score of a run with what guessing has, where that is known."""
    guess = find_guess(run, name)
    text = write_value(name, value)
    return text if guess is None else f'{text} ({write_value(name, guess)})'


def write_duration(seconds: float | None) -> str:
    """Return a time as 1:02:03, or as 45 s."""
    if seconds is None:
        return NONE
    return clock(seconds) if seconds >= 59.5 else f'{seconds:.0f} s'


def fill_in(run: Run, count: int, filled: Mapping[str, Samples]) -> Samples | str:
    """Return what the run fills into masked words, or why it does not."""
    try:
        return filled.get(run.workdir.name) or fill_samples(run, count)
    except UserError as error:
        logging.info('%s: no samples (%s)', run.name, error)
        return str(error)


def count_confusion(run: Run | None) -> tuple[str, dict[str, list[int]]] | str | None:
    """Count how often a run gave each answer to the examples of each label.

    Returns:
      What was counted, and by label how often each answer was given; or why nothing is counted; or
      None where no run is done or the task has no labels.
    """
    if run is None or run.result is None:
        return None
    split = run.result['split']
    file = run.workdir.predictions(split) / 'predictions.tsv'
    try:
        task = load_task(run.data['task'], run.data['data_dir'])
        if not task.has_classes:
            return None
        examples = task.examples(split)
        answers = task.read_predictions(str(file), examples).answers
    except UserError as error:
        return str(error)
    if {example.id for example in examples} != set(answers):
        return f'the {split} split of {run.data["task"]} holds other examples by now'
    counts = Counter((task.labels[each.label], answers[each.id]) for each in examples)
    rows = {}
    for label in task.labels:
        rows[label] = [counts[label, answer] for answer in task.labels]
    return f'{run.task} {split}: rows are the labels, columns what the run answered', rows
