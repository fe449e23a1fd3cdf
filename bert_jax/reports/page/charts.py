"""The charts of the page: every metric of several runs over each other, and sweeps over seeds.

Owns which metrics have a chart, in which order, and which runs share a colour. How a chart is drawn
is bert_jax/runs/workdir/plots.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_jax.input_pipeline.progress import split_in_words
from bert_jax.reports.page.runs import Run, Sweep
from bert_jax.runs.finetuning import sweep as sweeps
from bert_jax.runs.workdir.plots import (
    COLOURS,
    Chart,
    Measured,
    Spread,
    get_loss_unit,
    get_quantity,
    make_chart,
    select_guesses,
    select_points,
    write_svg,
)

# What a reader asks for first; further metrics of held-out data follow, and these two at the end.
_FIRST = ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'loss')
_LAST = ('learning_rate', 'tokens_per_s')
# Counts, and what another metric says already.
_NO_CHART = {
    'step', 'split', 'masked', 'examples', 'mlm_perplexity', 'nats_gained', 'phase',
    'nsp_accuracy_is_next', 'nsp_accuracy_random',
}  # fmt: skip


class Series(NamedTuple):
    """A run in the colour of its label; the seeds of a sweep's setting share both."""

    label: str
    colour: int
    run: Run


class Figure(NamedTuple):
    """A chart of the page.

    Attributes:
      name: of its metric.
      label: what no other figure of the page has.
      drawing: the chart.
      colours: the places in COLOURS of its runs, by their labels.
      numbers: (run, split, step, value as in metrics.jsonl) of its points.
    """

    name: str
    label: str
    drawing: Chart | Spread
    colours: dict[str, int]
    numbers: Sequence[tuple[str, str, float, float]] = ()

    @property
    def svg(self) -> str:
        """Return the picture."""
        return write_svg(self.drawing, self.label)

    @property
    def kinds(self) -> set[str]:
        """Return which kinds of curves there are."""
        if isinstance(self.drawing, Spread):
            return {'points'} if self.drawing.guess is None else {'points', 'guessing'}
        return {curve.kind for curve in self.drawing.curves}


def colour_runs(opened: Sequence[Run | Sweep]) -> list[Series]:
    """Return every run, with its label and its colour."""
    series: list[Series] = []
    colours: dict[str, int] = {}
    for entry in opened:
        labels = [entry.name]
        if isinstance(entry, Sweep):
            axis = sweeps.find_axis(entry.rows)
            lines = [sweeps.write_line(entry.differing[run.name], axis) for run in entry.runs]
            labels = [f'{entry.name}: {line}' for line in lines]
        # By name, as the picture in the folder of the sweep has them.
        for label in sorted(labels):
            colours.setdefault(label, len(colours) % len(COLOURS))
        series += [Series(label, colours[label], run) for label, run in zip(labels, entry.runs)]
    return series


def draw_metrics(series: Sequence[Series], of: str) -> list[Figure]:
    """Return a figure for each metric of these runs, whose baselines are alike.

    Args:
      series: the runs.
      of: what they are, for the names of the figures.
    """
    scored: dict[str, None] = {}
    for each in series:
        for line in each.run.lines:
            if line['split'] != 'train':
                scored |= dict.fromkeys(line)
    names = [name for name in _FIRST if name != 'loss' or 'mlm_loss' not in scored]
    names += [name for name in scored if name not in {*_FIRST, *_LAST, *_NO_CHART}]
    figures = []
    for name in (*names, *_LAST):
        figure = _draw_metric(name, series, of)
        if figure is not None:
            figures.append(figure)
    return figures


def _draw_metric(name: str, series: Sequence[Series], of: str) -> Figure | None:
    """Return one metric of all runs that have it; None where none has."""
    measured: list[Measured] = []
    colours: dict[str, int] = {}
    numbers: dict[bool, list[tuple[Any, ...]]] = {}
    for label, colour, run in series:
        guesses = select_guesses(run.guesses, name)
        for split in dict.fromkeys(line['split'] for line in run.lines):
            points = select_points(run.lines, split, name)
            if not points:
                continue
            colours[label], words = colour, split_in_words(split)
            in_training = split == 'train'
            measured.append(Measured(f'{label}, {words}', colour, points, guesses, in_training))
            rows = [(run.name, words, step, value) for step, value in points]
            numbers.setdefault(in_training, []).extend(rows)
    if not measured:
        return None
    title, unit, _ = get_quantity(name)
    if name == 'loss':
        unit = get_loss_unit(series[0].run.data)
    chart = make_chart(title, unit, measured)
    # Where there are numbers of other data, those in training are left out.
    shown = numbers.get(False) or numbers[True]
    return Figure(name, f'{title}, {of}', chart, colours, shown)


def draw_sweep(sweep: Sweep, series: Sequence[Series]) -> Figure:
    """Return the scores of a sweep by its settings, of which a run is done.

    Args:
      sweep: the sweep.
      series: those of the page, whose colours its lines have.
    """
    prefix, colours = f'{sweep.name}: ', {}
    for each in series:
        if each.label.startswith(prefix):
            colours[each.label.removeprefix(prefix)] = each.colour
    drawing = sweeps.chart_scores(sweep.rows, sweep.guesses, colours)
    # In a spread each row has its name beside it.
    keys = {} if isinstance(drawing, Spread) else colours
    return Figure(sweep.rows[0]['metric'], f'{prefix}{drawing.title}', drawing, keys)
