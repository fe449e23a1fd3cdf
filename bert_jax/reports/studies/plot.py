"""A study's picture: a panel for each column, with every seed a point.

Owns the layout of the panels; how spreads and curves are drawn is that of
bert_jax/runs/workdir/plots.py. Rows with several checkpoints are curves over the steps, others are
spreads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import logging

from bert_jax.configs.files.atomic import atomic_file
from bert_jax.reports.studies.plan import Plan, lines_of
from bert_jax.reports.studies.scores import Cell
from bert_jax.runs.workdir.plots import Chart, Curve, Spread, drawn_quietly


def draw(plan: Plan, found: dict[tuple[str, str], Cell], path: Path) -> None:
    """Writes the picture; what keeps it from being drawn is a warning."""
    drawings = [
        drawing
        for column in plan.study.columns
        if (drawing := panel(plan, found, column.name)) is not None
    ]
    if not drawings:
        return
    try:
        with drawn_quietly(path):
            _draw(drawings, len(plan.study.rows), path)
    except OSError as error:
        logging.warning('%s: not drawn (%s)', path, error)


def _draw(drawings: Sequence[Chart | Spread], rows: int, path: Path) -> None:
    """Writes a picture of a panel for each drawing, one below the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A line of a spread, or a curve's legend, needs a third of an inch.
    high = 1.6 + 0.35 * rows
    made = Figure(figsize=(7, high * len(drawings)), layout='constrained')
    FigureCanvasAgg(made)
    axes = made.subplots(len(drawings), squeeze=False)[:, 0]
    for one, drawing in zip(axes, drawings, strict=True):
        drawing.draw(one)
        one.set_title(drawing.title)
        one.grid(alpha=0.4)
        if isinstance(drawing, Chart):
            one.legend(frameon=False)
    with atomic_file(path, durable=False) as file:
        made.savefig(file, format='png', dpi=120)


def panel(plan: Plan, found: dict[tuple[str, str], Cell], column: str) -> Chart | Spread | None:
    """The drawing of a column; None where it has no score yet."""
    if any(len(row.checkpoints) > 1 for row in plan.study.rows):
        curves = []
        for colour, row in enumerate(plan.study.rows):
            points = [
                (line.checkpoint, mean)
                for line in lines_of(row)
                if line.checkpoint and (mean := found[line.name, column].mean) is not None
            ]
            if points:
                curves.append(Curve(row.name, points, 'main', colour))
        return Chart(column, 'score', curves) if curves else None
    groups = {
        line.name: list(values)
        for line in plan.lines()
        if (values := found[line.name, column].values.values())
    }
    return Spread(column, 'score', groups, None) if groups else None
