"""The tables of the page: what runs came to, in what they differ, how they are made again.

Owns which numbers are shown together, and how they are written. It must not know charts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from bert_jax.reports.page.parts import Part, Table, Text
from bert_jax.reports.page.runs import Run, Sweep, all_runs
from bert_jax.runs.workdir.plots import quantity

NONE = '–'


def shown(name: str, value: Any) -> str:
    """Return a value of metrics.jsonl as text: accuracies in per cent, other values as they are."""
    if not isinstance(value, int | float):
        return NONE if value is None else str(value)
    _, unit, factor = quantity(name)
    if unit == '%':
        return f'{value * factor:.1f} %'
    is_count = value >= 100 and float(value).is_integer()
    if is_count or unit == 'tokens a second':
        return f'{value:,.0f}'
    return f'{value:.3g}' if name == 'learning_rate' else f'{value:.4f}'


def pretraining_results(runs: Sequence[Run]) -> Table:
    """Return each run's last scores on held-out records, with what guessing scores on them."""
    names = [
        name
        for name in ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'loss', 'accuracy')
        if any(run.final(name) is not None for run in runs)
    ]
    rows = []
    for run in runs:
        scores = [_with_guess(name, run.final(name), run) for name in names]
        rows.append([run.name, *scores, run.standing, duration(run.seconds)])
    return Table(
        'Last evaluation on held-out records; in brackets what guessing scores',
        ['run', *(f'{quantity(name).title} ({name})' for name in names), 'steps', 'time'],
        rows,
    )


def finetuning_results(runs: Sequence[Run], summary: str = '') -> Table:
    """Return the scores of each run on the split that it is judged by; folded under `summary`."""
    rows = []
    for run in runs:
        result = run.result
        if result is None:
            rows.append([run.name, NONE, NONE, NONE, run.standing, NONE, NONE, run.task])
            continue
        scores = ', '.join(
            f'{name} {_with_guess(name, value, run)}'
            for name, value in result['metrics'].items()
            if not name.endswith('total')
        )
        loss, chance = (shown('loss', result[name]) for name in ('train_loss', 'chance_loss'))
        failed, time = 'failed' if result['failed'] else 'no', duration(result['seconds'])
        row = [scores, f'{loss} ({chance})', failed, run.standing, time, result['split'], run.task]
        rows.append([run.name, *row])
    head = ['run', 'scores', 'training loss', 'failed', 'steps', 'time', 'split', 'task']
    caption = 'Scores; in brackets what the same answer to every example has'
    return Table(caption, head, rows, summary=summary)


def scored_afterwards(runs: Sequence[Run]) -> list[Part]:
    """Return what bert-evaluate has scored since, split by split; nothing where it has not run."""
    rows = [
        [run.name, split, f'{result["step"]:,}', name, shown(name, value)]
        for run in runs
        for split, result in run.results.items()
        if result is not run.result
        for name, value in result['metrics'].items()
    ]
    caption = 'Scored by bert-evaluate'
    head, summary = ['run', 'split', 'step', 'metric', 'value'], f'{caption} ({len(rows)} numbers)'
    return [Table(caption, head, rows, summary=summary)] if rows else []


def differences(opened: Sequence[Run | Sweep]) -> list[Part]:
    """Return the settings in which runs of a kind differ, then, folded, all others."""
    columns = [_values(entry) for entry in opened]
    names = list(dict.fromkeys(name for values in columns for name in values))
    cells = {name: [values.get(name, NONE) for values in columns] for name in names}
    differ = [name for name in names if len(set(cells[name])) > 1]
    parts: list[Part] = []
    if differ:
        head = ['setting', *(entry.name for entry in opened)]
        parts.append(Table('What differs', head, [[name, *cells[name]] for name in differ]))
    elif len(opened) > 1:
        parts.append(Text('They have the same settings, and read the same.'))
    same = [[name, cells[name][0]] for name in names if name not in differ]
    caption = 'All settings' if len(opened) == 1 else f'{len(same)} settings that all have alike'
    return [*parts, Table(caption, ['setting', 'value'], same, 'facts', caption)]


def reproduction(entry: Run | Sweep) -> list[Part]:
    """Return the commands that make a run, or all runs of a sweep, and what they were made on."""
    runs = all_runs([entry])
    starts = [start for run in runs for start in run.starts]
    heading = Text(entry.name, 'heading')
    if not starts:
        note = (
            'Made by a version that kept no commands: these are the same settings again, in a'
            ' folder of their own.'
        )
        return [heading, Text(note), Text(_from_settings(runs[0]), 'commands')]

    # The runs of a sweep have one command, and a run that was stopped the same several times.
    lines = dict.fromkeys(f'cd {shlex.quote(s.folder)}\n{s.command}' for s in starts)
    machines = dict.fromkeys(
        (s.devices, f'{s.cpus}', s.system, ', '.join(f'{k} {v}' for k, v in s.versions.items()))
        for s in starts
    )
    rows = [('begun', min(s.time for s in starts))]
    if resumed := [f'{s.step:,}' for s in starts if s.step]:
        rows.append(('gone on with, after step', ', '.join(resumed)))
    for machine in machines:
        rows += zip(('devices', 'CPUs', 'system', 'versions'), machine)
    commands = [Text(line, 'commands') for line in lines]
    return [heading, *commands, Table(f'What {entry.name} was made on', ['', ''], rows, 'facts')]


def duration(seconds: float | None) -> str:
    """Return a time as 1:02:03, or as 45 s."""
    if seconds is None:
        return NONE
    minutes, remaining = divmod(round(seconds), 60)
    if not minutes:
        return f'{remaining} s'
    return f'{minutes // 60}:{minutes % 60:02}:{remaining:02}'


def _with_guess(name: str, value: float | None, run: Run) -> str:
    guess = run.guess(name)
    return shown(name, value) + (f' ({shown(name, guess)})' if guess is not None else '')


def _values(entry: Run | Sweep) -> dict[str, str]:
    """Return every setting as text; of a sweep all values that its runs have."""
    values: dict[str, dict[str, None]] = {}
    for run in all_runs([entry]):
        for name, value in run.settings().items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            values.setdefault(name, {})[text] = None
    return {name: ', '.join(texts) for name, texts in values.items()}


def _from_settings(run: Run) -> str:
    """Return the command for a run whose own is not known."""
    command = 'pretrain' if run.pretraining else 'finetune'
    words = ['python', '-m', f'bert_jax.launch.{command}', f'--config={run.workdir.config_file}']
    words += ['--data=RECORDS'] if run.pretraining else []
    for name in ('task', 'data_dir', 'init_from'):
        words += [f'--{name}={run.data[name]}'] if name in run.data else []
    return shlex.join([*words, f'--workdir={run.workdir}-again'])
