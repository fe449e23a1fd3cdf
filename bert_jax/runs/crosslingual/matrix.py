"""The matrix of transfer in words and as a picture: rows fine-tuned on, columns scored on.

Owns its table (markdown), its JSON and its plot of score over overlap. It is given the cells.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from etils import epath

from bert_jax.runs.workdir import plots


class Cell(NamedTuple):
    """What models that were fine-tuned on some languages score on one.

    Attributes:
      trained_on: those languages.
      language: the one.
      split: of it.
      examples: how many there are in the split.
      scores: of the task's metric, by seed.
      failed: how many of the models have learnt nothing of what they were trained on.
      overlap: the share of word pieces in common (`transfer.overlap`).
      guess: what a constant answer scores.
    """

    trained_on: tuple[str, ...]
    language: str
    split: str
    examples: int
    scores: dict[int, float]
    failed: int
    overlap: float
    guess: float | None

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return statistics.fmean(self.scores.values())

    @property
    def sd(self) -> float | None:
        """Return the sample standard deviation over seeds; None of one."""
        return statistics.stdev(self.scores.values()) if len(self.scores) > 1 else None


def write(folder: str, metric: str, cells: Sequence[Cell]) -> str:
    """Write transfer.json, transfer.md and transfer.png; return what the table says."""
    report = {
        'metric': metric,
        'cells': [{**cell._asdict(), 'mean': cell.mean, 'sd': cell.sd} for cell in cells],
    }
    target = epath.Path(folder) / 'transfer'
    return plots.save_report(target, report, table(metric, cells), picture(metric, cells))


def table(metric: str, cells: Sequence[Cell]) -> str:
    """Write both tables as markdown: the scores, and the pieces that rows and columns share."""
    rows = list(dict.fromkeys(cell.trained_on for cell in cells))
    columns = list(dict.fromkeys(cell.language for cell in cells))
    by_name = {(cell.trained_on, cell.language): cell for cell in cells}

    def lines(write: Callable[[Cell], str]) -> list[str]:
        made = [f'| fine-tuned on | {" | ".join(columns)} |', f'|---{"|---:" * len(columns)}|']
        for row in rows:
            shown = (write(by_name[row, column]) for column in columns)
            made.append(f'| {" + ".join(row)} | {" | ".join(shown)} |')
        return made

    # What a row was trained on is in bold: the others are what it has carried over.
    def score(cell: Cell) -> str:
        text = f'{cell.mean:.4f}' + ('' if cell.sd is None else f' ± {cell.sd:.4f}')
        return f'**{text}**' if cell.language in cell.trained_on else text

    seeds = len(cells[0].scores)
    text = [f'{metric}, ' + (f'mean ± sd of {seeds} seeds' if seeds > 1 else 'one seed'), '']
    text += lines(score)
    guesses = [by_name[rows[0], column].guess for column in columns]
    if None not in guesses:
        text.append(f'| guessing | {" | ".join(f"{guess:.4f}" for guess in guesses)} |')
    for row in rows:
        if failed := by_name[row, columns[0]].failed:
            text += ['', f'{" + ".join(row)}: {failed} of {seeds} runs FAILED: see sweep.json']
    text += ['', 'word pieces in common, of those that either has', '']
    return '\n'.join(text + lines(lambda cell: f'{cell.overlap:.1%}'))


def picture(metric: str, cells: Sequence[Cell]) -> plots.Chart:
    """Draw the score of each cell that was not trained on over its overlap."""
    curves = []
    for colour, row in enumerate(dict.fromkeys(cell.trained_on for cell in cells)):
        points = [
            (100 * cell.overlap, cell.mean)
            for cell in cells
            if cell.trained_on == row and cell.language not in row
        ]
        if points:
            curves.append(plots.Curve(f'from {" + ".join(row)}', sorted(points), 'points', colour))
    return plots.Chart('Transfer', metric, curves, '% of word pieces in common')
