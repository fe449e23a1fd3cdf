"""A sweep: many runs of one command, their table (mean, sd, max) and the best of them.

Owns the layout of a sweep's folder: runs/NAME/ for each point, sweep.json with all rows; and how a
result is put into words. It must not know how a run is carried out.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bert_jax.configs.files.store import write_note
from bert_jax.configs.overrides import Point
from bert_jax.costs.step_costs import format_bytes
from bert_jax.input_pipeline.tasks.task_metrics import LEARNT
from bert_jax.runs.finetuning.finetuner import FineTuner
from bert_jax.runs.workdir import notes, plots
from bert_jax.runs.workdir.workdir import Workdir

# What eval/SPLIT.json says of a run; in a sweep with its name and settings.
Row = dict[str, Any]
# What a run notes of its costs: the heading in a sweep's table, and how a value is written there.
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    'trained_parameters': ('trained', lambda count: f'{count:,.0f}'),
    'checkpoint_bytes': ('checkpoint', format_bytes),
    'step_memory_bytes': ('memory', format_bytes),
    'step_ms': ('ms a step', lambda time: f'{time:.1f}'),
}

# How the two starts of a sweep over `init` are called in pictures.
_STARTS = {'init=source': 'pre-trained', 'init=random': 'random weights'}


def run_sweep(runs: Sequence[tuple[FineTuner, Point[Any]]], folder: str) -> list[Row]:
    """Have every point run, or take it as it is where it is done; write and return the rows.

    `runs` are the points of the sweep, each with what carries it out.
    """
    # All points before the first is run: a mistake in the last should not cost a night.
    for runner, point in runs:
        runner.resolve(point.config)
    Workdir(folder).check_takes_sweep()
    rows, reused = [], 0
    for number, (runner, point) in enumerate(runs, start=1):
        # Runs are named by their settings, so a larger sweep finds those of a smaller one.
        result, done_before = runner.run(point.config, os.path.join(folder, 'runs', point.name))
        reused += done_before
        rows.append({'name': point.name, 'settings': point.settings, **result})
        text = describe(result, done_before)
        logging.info(f'run {number} of {len(runs)}, {point.name}: {text}')
    if reused:
        logging.info(f'{reused} of {len(runs)} runs were done before and are reused')

    # sweep.json comes last: it is there only when all runs are.
    best = find_best(rows)
    report = {
        'task': best['task'],
        'metric': best['metric'],
        'best': best['name'],
        'summary': summarize(rows),
        'runs': rows,
    }
    write_note(epath.Path(folder) / 'sweep.json', report, 2)
    guessed = notes.guesses(Workdir(os.path.join(folder, 'runs', best['name'])))
    plots.save(Workdir(folder).plots / 'spread.png', chart_scores(rows, guessed))
    return rows


def find_best(results: Sequence[Row]) -> Row:
    """Return the run with the highest dev score of those that have learnt something, or of all."""

    # First by "has not failed", then by score: False sorts before True, and NaN before all.
    def rank(result: Row) -> tuple[bool, bool, float]:
        score = result['metrics'][result['metric']]
        return not result.get('failed'), not math.isnan(score), score

    return max(results, key=rank)


def summarize(rows: Sequence[Row]) -> list[Row]:
    """Return, for settings that differ in the seed alone: runs, failures; mean, sd, max of metrics.

    Failed runs, whose training loss stays at what a constant answer has, count in all of them.
    sd is the sample standard deviation, None for a single run.
    """
    # Seeds of the same settings are one group: they are what the spread is taken over.
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        settings = tuple((k, v) for k, v in row['settings'].items() if k != 'seed')
        groups.setdefault(settings, []).append(row)

    # Failed runs are counted and kept in the mean: to leave them out would flatter the settings.
    summary = []
    for settings, members in groups.items():
        measures = {}
        for name in members[0]['metrics']:  # every run of a task has the same
            values = [member['metrics'][name] for member in members]
            sd = None
            if len(values) > 1:
                sd = statistics.stdev(values)
            measures[name] = {'mean': statistics.fmean(values), 'sd': sd, 'max': max(values)}
        summary.append(
            {
                'settings': dict(settings),
                'runs': len(members),
                'failed': sum(member.get('failed', False) for member in members),
                'metrics': measures,
                'costs': _costs(members),
            }
        )
    return summary


def _costs(members: Sequence[Row]) -> dict[str, float | None]:
    """Return what runs of the same settings took: the largest, of times the median; None: unknown.

    Runs of older versions did not note it.
    """
    costs: dict[str, float | None] = {}
    for name in COSTS:
        noted = [member['costs'][name] for member in members if 'costs' in member]
        values = [value for value in noted if value is not None]
        if not values:
            costs[name] = None
        elif name == 'step_ms':
            costs[name] = statistics.median(values)
        else:
            costs[name] = max(values)
    return costs


def write_settings(settings: Mapping[str, Any]) -> str:
    """Write settings but for the seed, as 'peak_lr=3e-05, epochs=4'."""
    words = [f'{k.rpartition(".")[2]}={v}' for k, v in settings.items() if k != 'seed']
    return ', '.join(words) or 'all runs'


def find_axis(rows: Sequence[Row]) -> str | None:
    """Return the setting that scores are drawn over: that alone has three numbers or more."""
    values: dict[str, set[Any]] = {}
    for row in rows:
        for name, value in row['settings'].items():
            if type(value) not in (int, float):
                value = None
            values.setdefault(name, set()).add(value)
    axes = []
    for name, seen in values.items():
        if name != 'seed' and len(seen) > 2 and None not in seen:
            axes.append(name)
    if len(axes) == 1:
        return axes[0]
    return None


def write_line(settings: Mapping[str, Any], axis: str | None) -> str:
    """Write the settings of a run but for the seed and the axis of its picture."""
    words = write_settings({name: value for name, value in settings.items() if name != axis})
    return _STARTS.get(words, words)


def chart_scores(
    rows: Sequence[Row],
    guessed: Sequence[notes.Guess],
    colours: Mapping[str, int] | None = None,
) -> plots.Chart | plots.Spread:
    """Return the picture of a sweep: means over the setting of `find_axis`, or every seed a point.

    Args:
      rows: the results of its runs.
      guessed: what guessing scores, of a run.
      colours: of the lines, by what `write_line` calls them; None: in the order of these names.
    """
    metric, axis = rows[0]['metric'], find_axis(rows)
    title, quantity = f'{metric} on {rows[0]["split"]}', plots.get_quantity(metric)
    level = None
    for guess in guessed:
        if metric in guess.scores:
            level = guess.scores[metric] * quantity.factor
    if axis is None:
        groups: dict[str, list[float]] = {}
        for row in rows:
            score = row['metrics'][metric] * quantity.factor
            groups.setdefault(write_settings(row['settings']), []).append(score)
        return plots.Spread(f'{title}, every run a point', quantity.unit, groups, level)

    points: dict[str, list[tuple[float, float]]] = {}
    deviations: dict[str, list[float]] = {}
    for entry in sorted(summarize(rows), key=lambda entry: entry['settings'][axis]):
        line, score = write_line(entry['settings'], axis), entry['metrics'][metric]
        point = (entry['settings'][axis], score['mean'] * quantity.factor)
        points.setdefault(line, []).append(point)
        deviations.setdefault(line, []).append((score['sd'] or 0.0) * quantity.factor)
    if not colours:
        colours = {line: number for number, line in enumerate(sorted(points))}
    curves = []
    for line in points:
        curves.append(plots.Curve(line, points[line], 'main', colours[line], deviations[line]))
    tried = sorted({row['settings'][axis] for row in rows})
    if level is not None:
        ends = [(tried[0], level), (tried[-1], level)]
        curves.append(plots.Curve('guessing', ends, 'guessing', None))
    across = axis.rpartition('.')[2].replace('_', ' ')
    unit = quantity.unit or 'score'
    return plots.Chart(f'{title} over {across}', unit, curves, across, tried)


def align(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Write rows of cells as lines: columns two spaces apart, numbers to the right.

    `left`: the indices of columns that begin at the left, as words do.
    """
    # Columns as wide as their longest cell.
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths)):
            cells.append(cell.ljust(width) if column in left else cell.rjust(width))
        lines.append('  '.join(cells).rstrip())
    return lines


def format_table(rows: Sequence[Row], metric: str) -> str:
    """Write the summary of a sweep as text, and its best run by the selecting dev metric.

    Where a setting of tuning was swept, what each takes has columns after its score.
    """
    entries = summarize(rows)
    names = list(entries[0]['settings'])
    costs: dict[str, tuple[str, Callable[[float], str]]] = {}
    if any(name.startswith('tuning.') for name in names):
        costs = COSTS

    # Settings that were swept first, then the counts, then the selecting metric.
    lines = [[*names, 'runs', 'failed', f'{metric} mean', 'sd', 'max']]
    lines[0] += [heading for heading, _ in costs.values()]
    for entry in entries:
        scores = entry['metrics'][metric]
        cells = [str(entry['settings'][name]) for name in names]
        cells += [str(entry['runs']), str(entry['failed'] or '-')]
        for name in ('mean', 'sd', 'max'):
            cells.append(_write_number(scores[name], '{:.4f}'.format))
        for name, (_, write) in costs.items():
            cells.append(_write_number(entry['costs'][name], write))
        lines.append(cells)
    text = '\n'.join(align(lines))
    if costs:
        text += (
            '\ntrained: weights, with the head; checkpoint: of the run that has ended, on disk;'
            ' memory: of the compiled train step on one device, as the compiler counts it; time:'
            ' median over the lines of the log'
        )

    # What failed is named: the mean above is not to be read without it.
    failed = [row['name'] for row in rows if row.get('failed')]
    if failed:
        why = f'training loss not below {LEARNT:.0%} of what a constant answer has'
        text += f'\nfailed ({why}): {"; ".join(failed)}'
    best = find_best(rows)
    score = f'{metric} {best["metrics"][metric]:.4f}'
    return f'{text}\nbest on {best["split"]}: {best["name"]} ({score}){_caveat(rows, best)}'


def _write_number(value: float | None, write: Callable[[float], str]) -> str:
    if value is None:
        return '-'
    return write(value)


def _caveat(rows: Sequence[Row], best: Row) -> str:
    """Say what must be said of the best run where runs have failed; '' where nothing must."""
    if best.get('failed'):
        return '; it has FAILED, as all runs have'

    # A failed run may score highest by luck (all one class): named, but not chosen.
    metric = best['metric']
    highest = max(rows, key=lambda row: row['metrics'][metric])
    score = highest['metrics'][metric]
    if score <= best['metrics'][metric]:
        return ''
    return f'; {highest["name"]} has {score:.4f} but has failed'


def describe(result: Row, done_before: bool = False) -> str:
    """Write a result in one line."""
    shown, note = [], ''
    for name, value in result['metrics'].items():
        if not name.endswith('total'):  # which is a count and no score
            shown.append(f'{name} {value:.4f}')
    scores = ', '.join(shown) or 'no labels, predictions only'
    if result.get('failed'):
        # Both numbers, so that the user sees how near it was.
        loss, chance = result['train_loss'], result['chance_loss']
        least = result.get('least_loss', 0.0)
        limit = least + LEARNT * (chance - least)
        note = '; FAILED: no training loss that is finite'
        if loss is not None:
            note = (
                f'; FAILED: training loss {loss:.4f} is not below {LEARNT:.0%} of what a constant '
                f'answer has ({limit:.4f} of {chance:.4f})'
            )
    if done_before:
        note += ' (done before, reused)'

    # With select=best the weights are of an earlier step than the last.
    step = result.get('selected_step', result['step'])
    return (
        f'{result["task"]} {result["split"]}: {scores} on {result["examples"]} examples at step'
        f' {step}{note}'
    )
