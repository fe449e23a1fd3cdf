"""The tables of the page: what runs came to, in what they differ, how they are made again.

Owns which numbers stand beside which, and how they are written. It must not know charts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from bert_jax.reports.page.markup import Child, Element, element, folded, table
from bert_jax.reports.page.runs import Run, Sweep, all_runs
from bert_jax.runs.workdir.plots import quantity

NONE = '–'


def shown(name: str, value: Any) -> str:
    """A value of metrics.jsonl as the page has it: accuracies in per cent, the rest as it is."""
    if not isinstance(value, int | float):
        return NONE if value is None else str(value)
    about = quantity(name)
    match about.unit:
        case '%':
            return f'{value * about.factor:.1f} %'
        case 'tokens a second':
            return f'{value:,.0f}'
    return f'{value:.3g}' if name == 'learning_rate' else f'{value:.4f}'


def pretraining_results(runs: Sequence[Run]) -> Element:
    """The last evaluation on held-out records of each run, beside what guessing scores on them."""
    names = [
        name
        for name in ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'loss', 'accuracy')
        if any(run.last('eval', name) is not None for run in runs)
    ]
    head = ['run', 'steps', *(f'{quantity(name).title} ({name})' for name in names), 'time']
    rows = [
        [
            run.name,
            run.standing,
            *(_beside_guess(name, run.last('eval', name), run.guess(name)) for name in names),
            duration(run.seconds),
        ]
        for run in runs
    ]
    return table(
        head, rows, 'Last evaluation on held-out records; in brackets what guessing scores'
    )


def finetuning_results(runs: Sequence[Run]) -> Element:
    """The scores of each run on the split that it is judged by."""
    rows: list[list[Child]] = []
    for run in runs:
        result = run.result
        if result is None:
            rows.append([run.name, run.task, NONE, run.standing, NONE, NONE, NONE, NONE])
            continue
        scores = ', '.join(
            f'{name} {_beside_guess(name, value, run.guess(name))}'
            for name, value in result['metrics'].items()
            if not name.endswith('total')
        )
        loss = f'{shown("loss", result["train_loss"])} ({shown("loss", result["chance_loss"])})'
        rows.append(
            [
                run.name,
                run.task,
                result['split'],
                run.standing,
                scores,
                loss,
                'failed' if result['failed'] else 'no',
                duration(result['seconds']),
            ]
        )
    head = ['run', 'task', 'split', 'steps', 'scores', 'training loss', 'failed', 'time']
    return table(head, rows, 'Scores; in brackets what the same answer to every example has')


def scored_afterwards(runs: Sequence[Run]) -> Element | None:
    """What bert-evaluate has found since, split by split; None where it has not been run."""
    rows = [
        [run.name, split, f'{result["step"]:,}', name, shown(name, value)]
        for run in runs
        for split, result in run.results.items()
        if result is not run.result
        for name, value in result['metrics'].items()
    ]
    if not rows:
        return None
    made = table(['run', 'split', 'step', 'metric', 'value'], rows, 'Scored by bert-evaluate')
    return folded(f'Scored by bert-evaluate ({len(rows)} numbers)', made)


def differences(opened: Sequence[Run | Sweep]) -> list[Element]:
    """The settings in which runs of a kind differ, then, folded, all others."""
    found = [_values(one) for one in opened]
    names = list(dict.fromkeys(name for values in found for name in values))
    columns = [dict.fromkeys(names, NONE) | values for values in found]
    cells = {name: [column[name] for column in columns] for name in names}
    differ = [name for name in names if len(set(cells[name])) > 1]
    made: list[Element] = []
    if differ:
        head = ['setting', *(one.name for one in opened)]
        made.append(table(head, [[name, *cells[name]] for name in differ], 'What differs'))
    elif len(opened) > 1:
        made.append(element('p', 'They have the same settings, and read the same.', class_='note'))
    same = [[name, cells[name][0]] for name in names if name not in differ]
    said = 'All settings' if len(opened) == 1 else f'{len(same)} settings that all have alike'
    made.append(folded(said, table(['setting', 'value'], same, said)))
    return made


def reproduction(one: Run | Sweep) -> list[Element]:
    """The commands that make a run, or all runs of a sweep, and what they were made on."""
    runs = all_runs([one])
    starts = [start for run in runs for start in run.starts]
    if not starts:
        note = (
            'Made by a version that kept no commands: these are the same settings again, in a'
            ' folder of their own.'
        )
        made = [element('p', note, class_='note')]
        return [*made, *(element('pre', _from_settings(run)) for run in runs[:1])]

    # The runs of a sweep have one command, and a run that was stopped the same several times.
    commands = dict.fromkeys(f'cd {shlex.quote(s.folder)}\n{s.command}' for s in starts)
    machines = dict.fromkeys(
        (s.devices, f'{s.cpus}', s.system, *(f'{k} {v}' for k, v in s.versions.items()))
        for s in starts
    )
    resumed = [f'{s.step:,}' for s in starts if s.step]
    rows = [
        ['begun', min(s.time for s in starts)],
        *([['gone on with, after step', ', '.join(resumed)]] if resumed else []),
    ]
    for devices, cpus, system, *versions in machines:
        rows += [
            ['devices', devices],
            ['CPUs', cpus],
            ['system', system],
            ['versions', ', '.join(versions)],
        ]
    return [
        *(element('pre', command) for command in commands),
        table(['', ''], rows, f'What {one.name} was made on'),
    ]


def duration(seconds: float | None) -> str:
    """1:02:03, or 45 s."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f'{seconds:.0f} s'
    return f'{minutes // 60}:{minutes % 60:02}:{rest:02}'


def _beside_guess(name: str, value: float | None, guess: float | None) -> str:
    return shown(name, value) + (f' ({shown(name, guess)})' if guess is not None else '')


def _values(one: Run | Sweep) -> dict[str, str]:
    """Every setting as text; of a sweep all values that its runs have."""
    found: dict[str, dict[str, None]] = {}
    for run in all_runs([one]):
        for name, value in run.settings().items():
            found.setdefault(name, {})[_plain(value)] = None
    return {name: ', '.join(values) for name, values in found.items()}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _from_settings(run: Run) -> str:
    """The command for a run whose own is not known."""
    folder, config = str(run.workdir), f'--config={run.workdir.config_file}'
    if run.pretraining:
        init = [f'--init_from={run.data["init_from"]}'] if 'init_from' in run.data else []
        words = ['bert_jax.launch.pretrain', config, '--data=RECORDS', *init]
    else:
        data = run.data
        options = [f'--{name}={data[name]}' for name in ('task', 'data_dir', 'init_from')]
        words = ['bert_jax.launch.finetune', config, *options]
    return shlex.join(['python', '-m', *words, f'--workdir={folder}-again'])
