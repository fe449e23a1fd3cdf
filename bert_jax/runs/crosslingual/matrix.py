"""The matrix of transfer in words and as a picture: rows fine-tuned on, columns scored on.

Owns its table (markdown), its JSON and its plot of score over overlap. It is given the cells.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from bert_jax.configs.files.atomic import atomic_write
from bert_jax.runs.crosslingual.transfer import Cell
from bert_jax.runs.workdir import plots


def mean_of(cell: Cell) -> float:
    """The mean over seeds."""
    return statistics.fmean(cell.scores.values())


def sd_of(cell: Cell) -> float | None:
    """The sample standard deviation over seeds; None of one."""
    scores = list(cell.scores.values())
    return statistics.stdev(scores) if len(scores) > 1 else None


def write(folder: str, metric: str, cells: Sequence[Cell]) -> str:
    """Writes transfer.json, transfer.md and transfer.png; returns what the table says."""
    where, text = epath.Path(folder), table(metric, cells)
    report: dict[str, Any] = {
        'metric': metric,
        'cells': [{**cell._asdict(), 'mean': mean_of(cell), 'sd': sd_of(cell)} for cell in cells],
    }
    plots.save(where / 'transfer.png', picture(metric, cells))
    atomic_write(where / 'transfer.md', text + '\n')
    atomic_write(where / 'transfer.json', json.dumps(report, indent=2) + '\n')
    return text


def table(metric: str, cells: Sequence[Cell]) -> str:
    """Both tables as markdown: the scores, and the pieces that rows and columns have in common."""
    rows = list(dict.fromkeys(cell.trained_on for cell in cells))
    columns = list(dict.fromkeys(cell.language for cell in cells))
    by_place = {(cell.trained_on, cell.language): cell for cell in cells}

    def lines(write: Callable[[Cell], str]) -> list[str]:
        made = [f'| fine-tuned on | {" | ".join(columns)} |', f'|---{"|---:" * len(columns)}|']
        for row in rows:
            shown = (write(by_place[row, column]) for column in columns)
            made.append(f'| {" + ".join(row)} | {" | ".join(shown)} |')
        return made

    # What a row was trained on stands out: the others are what it has carried over.
    def score(cell: Cell) -> str:
        sd = sd_of(cell)
        text = f'{mean_of(cell):.4f}' + ('' if sd is None else f' ± {sd:.4f}')
        return f'**{text}**' if cell.language in cell.trained_on else text

    seeds = len(cells[0].scores)
    said = [f'{metric}, ' + (f'mean ± sd of {seeds} seeds' if seeds > 1 else 'one seed'), '']
    said += lines(score)
    guesses = [by_place[rows[0], column].guess for column in columns]
    if None not in guesses:
        said.append(f'| guessing | {" | ".join(f"{guess:.4f}" for guess in guesses)} |')
    for row in rows:
        cell = by_place[row, columns[0]]
        if cell.failed:
            said += ['', f'{" + ".join(row)}: {cell.failed} of {seeds} runs FAILED: see sweep.json']
    said += ['', 'word pieces in common, of those that either has', '']
    return '\n'.join(said + lines(lambda cell: f'{cell.overlap:.1%}'))


def picture(metric: str, cells: Sequence[Cell]) -> plots.Chart:
    """The score of each cell that was not trained on over its overlap."""
    curves = []
    for colour, row in enumerate(dict.fromkeys(cell.trained_on for cell in cells)):
        points = [
            (100 * cell.overlap, mean_of(cell))
            for cell in cells
            if cell.trained_on == row and cell.language not in row
        ]
        if points:
            curves.append(plots.Curve(f'from {" + ".join(row)}', sorted(points), 'points', colour))
    return plots.Chart('Transfer', metric, curves, '% of word pieces in common')
