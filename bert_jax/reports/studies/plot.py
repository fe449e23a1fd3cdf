"""A study's picture: a panel for each column, with every seed a point.

How spreads and curves are drawn is that of bert_jax/runs/workdir/plots.py. Rows with several
checkpoints are curves over the steps, others are spreads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from etils import epath

from bert_jax.reports.studies.plan import Plan, lines_of
from bert_jax.reports.studies.scores import Cell
from bert_jax.runs.workdir.plots import Chart, Curve, Drawing, Spread, save


def draw(plan: Plan, cells: Mapping[tuple[str, str], Cell], path: Path) -> None:
    """Write the picture; what keeps it from being drawn is a warning."""
    columns = [column.name for column in plan.study.columns]
    panels = [panel for name in columns if (panel := _panel(plan, cells, name)) is not None]
    if panels:
        # A line of a spread, or a curve's legend, needs a third of an inch.
        save(epath.Path(path), *panels, height=1.6 + 0.35 * len(plan.study.rows))


def _panel(plan: Plan, cells: Mapping[tuple[str, str], Cell], column: str) -> Drawing | None:
    """Return the drawing of a column; None where it has no score yet."""
    if any(len(row.checkpoints) > 1 for row in plan.study.rows):
        curves = []
        for colour, row in enumerate(plan.study.rows):
            means = [(line.checkpoint, cells[line.name, column].mean) for line in lines_of(row)]
            points = [(step, mean) for step, mean in means if step and mean is not None]
            if points:
                curves.append(Curve(row.name, points, 'main', colour))
        return Chart(column, 'score', curves) if curves else None
    groups = {line.name: list(cells[line.name, column].values.values()) for line in plan.lines()}
    groups = {name: values for name, values in groups.items() if values}
    return Spread(column, 'score', groups, None) if groups else None
