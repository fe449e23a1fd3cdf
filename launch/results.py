"""A sweep's runs in order, and its results as a table: mean, sd and max over seeds.

Owns the layout of a sweep's folder: runs/NAME/ for each point, sweep.json with all rows. It must
not know how a run is carried out.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from typing import Any

from absl import logging
from etils import epath

from configs.sweep import Point
from input_pipeline.whole_file import write_whole


def run_sweep(tuner: Any, points: Sequence[Point], folder: str) -> list[dict[str, Any]]:
    """Runs every point, or takes it as it is where it is done; writes sweep.json; returns its rows."""
    for point in points:
        tuner.check(point.config)
    rows, reused = [], 0
    for number, point in enumerate(points, start=1):
        result, done_before = tuner.run(point.config, os.path.join(folder, 'runs', point.name))
        reused += done_before
        rows.append({'name': point.name, 'settings': point.settings, **result})
        logging.info('run %d of %d, %s: %s', number, len(points), point.name, describe(result, done_before))
    if reused:
        logging.info('%d of %d runs were done before and are reused', reused, len(points))
    best = max(rows, key=lambda row: row['metrics'][row['metric']])
    report = {'task': best['task'], 'metric': best['metric'], 'best': best['name'], 'summary': summarize(rows), 'runs': rows}
    write_whole(epath.Path(folder) / 'sweep.json', json.dumps(report, indent=2) + '\n')
    return rows


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each combination of settings but the seed: runs, how many failed, and mean, sd and max of every metric.

    Failed runs (training loss not below chance) count in all of them. sd is the sample standard deviation, none for a single run.
    """
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple((k, v) for k, v in row['settings'].items() if k != 'seed'), []).append(row)
    summary = []
    for settings, members in groups.items():
        failed = sum(member.get('failed', False) for member in members)
        entry: dict[str, Any] = {'settings': dict(settings), 'runs': len(members), 'failed': failed, 'metrics': {}}
        for name in members[0]['metrics']:
            values = [member['metrics'][name] for member in members]
            sd = statistics.stdev(values) if len(values) > 1 else None
            entry['metrics'][name] = {'mean': statistics.fmean(values), 'sd': sd, 'max': max(values)}
        summary.append(entry)
    return summary


def table(rows: Sequence[dict[str, Any]], metric: str) -> str:
    """The summary of a sweep as text, and its best run by the selecting dev metric."""
    entries = summarize(rows)
    names = list(entries[0]['settings'])
    lines = [[*names, 'runs', 'failed', f'{metric} mean', 'sd', 'max']]
    for entry in entries:
        found = entry['metrics'][metric]
        sd = '-' if found['sd'] is None else f'{found["sd"]:.4f}'
        counts = [str(entry['runs']), str(entry['failed'] or '-')]
        lines.append([*(str(entry['settings'][name]) for name in names), *counts, f'{found["mean"]:.4f}', sd, f'{found["max"]:.4f}'])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    best = max(rows, key=lambda row: row['metrics'][metric])
    failed = [row['name'] for row in rows if row.get('failed')]
    text = '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    if failed:
        text += f'\nfailed (training loss not below chance): {"; ".join(failed)}'
    return f'{text}\nbest on {best["split"]}: {best["name"]} ({metric} {best["metrics"][metric]:.4f})'


def describe(result: dict[str, Any], done_before: bool = False) -> str:
    """A result in one line."""
    shown = [f'{name} {value:.4f}' for name, value in result['metrics'].items() if not name.endswith('total')]
    scores = ', '.join(shown) or 'no labels, predictions only'
    note = f'; FAILED: {_failure(result)}' if result.get('failed') else ''
    note += ' (done before, reused)' if done_before else ''
    step = result.get('selected_step', result['step'])
    return f'{result["task"]} {result["split"]}: {scores} on {result["examples"]} examples at step {step}{note}'


def _failure(result: dict[str, Any]) -> str:
    """Why a run counts as failed."""
    if result['train_loss'] is None:
        return 'no training loss that is finite'
    return f'training loss {result["train_loss"]:.4f} is not below chance, {result["chance_loss"]:.4f}'
