"""What runs come to: their training loss, and a sweep's table (mean, sd, max) and best run.

It must not know how a run is carried out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.costs import memory
from bert_jax.input_pipeline.tasks.metrics.constant_baseline import LEARNT
from bert_jax.runs.workdir import metrics, notes, plots
from bert_jax.runs.workdir.workdir import Workdir

# What a run notes of its costs: the heading in a sweep's table, and how a value is written there.
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    'trained_parameters': ('trained', lambda count: f'{count:,.0f}'),
    'checkpoint_bytes': ('checkpoint', memory.size),
    'step_memory_bytes': ('memory', memory.size),
    'step_ms': ('ms a step', lambda time: f'{time:.1f}'),
}


def training_loss(folder: str) -> float | None:
    """The mean over the log lines of a run that end in the last tenth of it.

    The last line alone may be a single batch. None where all their steps were discarded.
    """
    # Late lines are chosen by step: a run that was resumed may have lines of unequal length.
    lines = [
        line
        for line in metrics.read_metrics(Workdir(folder).metrics_file)
        if line['split'] == 'train'
    ]
    late = [line for line in lines if line['step'] > 0.9 * lines[-1]['step'] and 'loss' in line]
    if not late:
        return None

    # Each line is a mean over its own steps, so it counts by those that were not discarded.
    weights = [line['steps'] - line['discarded_steps'] for line in late]
    losses = zip((line['loss'] for line in late), weights, strict=True)
    return sum(loss * weight for loss, weight in losses) / sum(weights)


def step_ms(workdir: Workdir) -> float | None:
    """The median time of a step over the log lines of a run, each a mean of its steps.

    Compiling, scoring and saving are left out. None where no line has a time.
    """
    lines = metrics.read_metrics(workdir.metrics_file)
    times = [line['step_ms'] for line in lines if line['split'] == 'train' and 'step_ms' in line]
    return statistics.median(times) if times else None


def best_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The highest dev score of the runs that have learnt something; of all where none has."""
    # First by "has not failed", then by score: False sorts before True, and NaN before all.
    score = lambda result: result['metrics'][result['metric']]
    return max(
        results,
        key=lambda one: (not one.get('failed'), not math.isnan(score(one)), score(one)),
    )


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each combination of settings but the seed: runs, failures; mean, sd and max of metrics.

    Failed runs, whose training loss stays at what a constant answer has, count in all of them.
    sd is the sample standard deviation, none for a single run.
    """
    # Seeds of the same settings are one group: they are what the spread is taken over.
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        settings = tuple((k, v) for k, v in row['settings'].items() if k != 'seed')
        groups.setdefault(settings, []).append(row)
    summary = []

    # Failed runs are counted and kept in the mean: to leave them out would flatter the settings.
    for settings, members in groups.items():
        failed = sum(member.get('failed', False) for member in members)
        entry: dict[str, Any] = {
            'settings': dict(settings),
            'runs': len(members),
            'failed': failed,
            'metrics': {},
        }

        # Every run of a task has the same metrics.
        for name in members[0]['metrics']:
            values = [member['metrics'][name] for member in members]
            sd = statistics.stdev(values) if len(values) > 1 else None
            entry['metrics'][name] = {
                'mean': statistics.fmean(values),
                'sd': sd,
                'max': max(values),
            }
        entry['costs'] = _costs(members)
        summary.append(entry)
    return summary


def _costs(members: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """What runs of the same settings took: the largest, and of times the median; None: not known.

    Runs of older versions did not note it.
    """
    noted = [member['costs'] for member in members if 'costs' in member]
    costs: dict[str, float | None] = {}
    for name in COSTS:
        values = [cost[name] for cost in noted if cost[name] is not None]
        over = statistics.median if name == 'step_ms' else max
        costs[name] = over(values) if values else None
    return costs


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings but for the seed, as 'peak_lr=3e-05, epochs=4'."""
    words = [f'{k.rpartition(".")[2]}={v}' for k, v in settings.items() if k != 'seed']
    return ', '.join(words) or 'all runs'


def spread(rows: Sequence[dict[str, Any]], guessed: Sequence[notes.Guess]) -> plots.Spread:
    """The picture of a sweep: every seed a point, by its other settings; `guessed`: of a run."""
    metric, split = rows[0]['metric'], rows[0]['split']
    about = plots.quantity(metric)
    groups: dict[str, list[float]] = {}
    for row in rows:
        values = groups.setdefault(in_words(row['settings']), [])
        values.append(row['metrics'][metric] * about.factor)
    levels = [guess.scores[metric] * about.factor for guess in guessed if metric in guess.scores]
    title = f'{metric} on {split}, every run a point'
    return plots.Spread(title, about.unit, groups, levels[-1] if levels else None)


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Rows of cells as lines for the terminal: columns two spaces apart, numbers to the right.

    `left`: the places of columns that begin at the left, as words do.
    """
    # Columns as wide as their longest cell.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append('  '.join(cells).rstrip())
    return lines


def table(rows: Sequence[dict[str, Any]], metric: str) -> str:
    """The summary of a sweep as text, and its best run by the selecting dev metric.

    Where a setting of tuning was swept, what each takes stands beside its score.
    """
    entries = summarize(rows)
    names = list(entries[0]['settings'])
    costs = COSTS if any(name.startswith('tuning.') for name in names) else {}

    # Settings that were swept first, then the counts, then the selecting metric.
    lines = [[*names, 'runs', 'failed', f'{metric} mean', 'sd', 'max']]
    lines[0] += [heading for heading, _ in costs.values()]
    for entry in entries:
        scores = entry['metrics'][metric]
        sd = '-' if scores['sd'] is None else f'{scores["sd"]:.4f}'
        counts = [str(entry['runs']), str(entry['failed'] or '-')]
        lines.append(
            [
                *(str(entry['settings'][name]) for name in names),
                *counts,
                f'{scores["mean"]:.4f}',
                sd,
                f'{scores["max"]:.4f}',
                *(
                    '-' if (value := entry['costs'][name]) is None else write(value)
                    for name, (_, write) in costs.items()
                ),
            ]
        )
    best = best_of(rows)

    # What failed is named: the mean above is not to be read without it.
    failed = [row['name'] for row in rows if row.get('failed')]
    text = '\n'.join(aligned(lines))
    if costs:
        text += (
            '\ntrained: weights, with the head; checkpoint: of the run that has ended, on disk;'
            ' memory: of the compiled train step on one device, as the compiler counts it; time:'
            ' median over the lines of the log'
        )
    if failed:
        why = f'training loss not below {LEARNT:.0%} of what a constant answer has'
        text += f'\nfailed ({why}): {"; ".join(failed)}'
    score = f'{metric} {best["metrics"][metric]:.4f}'
    return f'{text}\nbest on {best["split"]}: {best["name"]} ({score}){_caveat(rows, best)}'


def _caveat(rows: Sequence[dict[str, Any]], best: dict[str, Any]) -> str:
    """What must be said of the best run where runs have failed; '' where nothing must."""
    if best.get('failed'):
        return '; it has FAILED, as all runs have'
    score = lambda row: row['metrics'][best['metric']]

    # A failed run may score highest by luck (all one class): said, but not chosen.
    highest = max(rows, key=score)
    if score(highest) <= score(best):
        return ''
    return f'; {highest["name"]} has {score(highest):.4f} but has failed'


def describe(result: dict[str, Any], done_before: bool = False) -> str:
    """A result in one line."""
    # 'total' is a count and no score.
    shown = [
        f'{name} {value:.4f}'
        for name, value in result['metrics'].items()
        if not name.endswith('total')
    ]
    scores = ', '.join(shown) or 'no labels, predictions only'
    note = f'; FAILED: {_failure(result)}' if result.get('failed') else ''
    note += ' (done before, reused)' if done_before else ''

    # With select=best the weights are of an earlier step than the last.
    step = result.get('selected_step', result['step'])
    return (
        f'{result["task"]} {result["split"]}: {scores} on {result["examples"]} examples at step'
        f' {step}{note}'
    )


def _failure(result: dict[str, Any]) -> str:
    """Why a run counts as failed."""
    if result['train_loss'] is None:
        return 'no training loss that is finite'

    # Both numbers, so that the user sees how near it was.
    chance = result['chance_loss']
    return (
        f'training loss {result["train_loss"]:.4f} is not below {LEARNT:.0%} of what a constant '
        f'answer has ({LEARNT * chance:.4f} of {chance:.4f})'
    )
