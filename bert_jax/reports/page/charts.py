"""The charts of the page: every metric of several runs over each other, and sweeps over seeds.

Owns which metrics have a chart, in which order, and which runs share a colour. How a chart is drawn
is bert_jax/runs/workdir/plots.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_jax.input_pipeline.progress import split_in_words
from bert_jax.reports.page.parts import Figure, Figures, Key, Part, Table, Text
from bert_jax.reports.page.runs import Run, Sweep, all_runs
from bert_jax.reports.page.svg import drawing
from bert_jax.reports.page.tables import NONE, shown
from bert_jax.runs.finetuning import sweep as sweeps
from bert_jax.runs.workdir.plots import (
    COLOURS,
    Chart,
    Curve,
    Growth,
    Points,
    in_unit,
    levels,
    loss_unit,
    points,
    quantity,
)

# What a reader asks for first; further metrics of held-out data follow, and these two at the end.
_FIRST = ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'loss')
_LAST = ('learning_rate', 'tokens_per_s')
# Counts, and what another metric says already.
_NO_CHART = {
    'step', 'split', 'masked', 'examples', 'mlm_perplexity', 'nats_gained', 'phase',
    'nsp_accuracy_is_next', 'nsp_accuracy_random',
}  # fmt: skip
_MOST_ROWS = 50
_GUESSING = Key('dotted: guessing', 'common', 'guess')


class Series(NamedTuple):
    """A run in the colour of its label; the seeds of a sweep's setting share both."""

    label: str
    colour: int
    run: Run

    def splits(self, name: str) -> dict[str, Points]:
        """Return the points of a metric by split, in its unit; splits without any are left out."""
        lines = self.run.lines
        return {
            split: in_unit(name, measured)
            for split in dict.fromkeys(line['split'] for line in lines)
            if (measured := points(lines, split, name))
        }


def series_of(opened: Sequence[Run | Sweep]) -> list[Series]:
    """Return every run, with its label and its colour."""
    series: list[Series] = []
    colours: dict[str, int] = {}
    for entry in opened:
        runs, labels = all_runs([entry]), [entry.name]
        if isinstance(entry, Sweep):
            axis = sweeps.axis_of(entry.rows())
            lines = [sweeps.line_of(entry.settings_of(run), axis) for run in runs]
            labels = [f'{entry.name}: {line}' for line in lines]
        # By name, as the picture in the folder of the sweep has them.
        for label in sorted(labels):
            colours.setdefault(label, len(colours))
        series += [Series(label, colours[label], run) for label, run in zip(labels, runs)]
    return series


def curves(series: Sequence[Series], of: str) -> Part:
    """Return a figure for each metric of these runs, whose baselines are alike.

    Args:
      series: the runs.
      of: what they are, for the names of the figures.
    """
    figures = [drawn for name in _metrics(series) if (drawn := _figure(name, series, of))]
    return Figures(figures) if figures else Text('No log line yet, so there is nothing to draw.')


def spread(sweep: Sweep, series: Sequence[Series]) -> list[Part]:
    """Return the scores of a sweep by its settings; nothing while no run of it is done.

    series: that of the page, whose colours its lines have.
    """
    rows = sweep.rows()
    if not rows:
        return []
    # What guessing scores is the same for all runs, and a run notes it when it begins.
    begun = max(sweep.runs, key=lambda run: len(run.guesses))
    colours = {
        each.label.removeprefix(f'{sweep.name}: '): each.colour
        for each in series
        if each.run in sweep.runs
    }
    picture = sweeps.spread(rows, begun.guesses, colours)
    label = f'{sweep.name}: {picture.title}'
    if isinstance(picture, Growth):
        keys = [_key(line, colours[line]) for line in picture.lines]
        drawn, note = drawing(picture, label), 'Bars are one sample standard deviation over seeds.'
    else:
        keys, drawn = [], drawing(picture, label, 1.0 + 0.42 * len(picture.groups))
        note = 'The bar beside the points is their mean and sample standard deviation.'
    keys += [_GUESSING] if picture.guess is not None else []
    return [
        Figures([Figure(picture.title, picture.unit, drawn, label, keys)]),
        Text(note),
        _scores(sweep, rows, begun.guess(rows[0]['metric'])),
    ]


def _scores(sweep: Sweep, rows: Sequence[dict[str, Any]], guess: float | None) -> Table:
    """Return the numbers of a sweep's picture, settings by settings."""
    metric, axis, entries = rows[0]['metric'], sweeps.axis_of(rows), sweeps.summarize(rows)
    if axis:
        entries.sort(key=lambda entry: entry['settings'][axis])
    lines = [
        [
            sweeps.in_words(entry['settings']),
            *(shown(metric, entry['metrics'][metric][name]) for name in ('mean', 'sd', 'max')),
            f'{entry["runs"]}',
            f'{entry["failed"] or NONE}',
        ]
        for entry in entries
    ]
    caption = [f'{metric} on {rows[0]["split"]}']
    if guess is not None:
        caption.append(f'guessing scores {shown(metric, guess)}')
    if len(rows) < len(sweep.runs):
        caption.append(f'{len(rows)} of {len(sweep.runs)} runs are done')
    head = ['settings', 'mean', 'sd', 'best', 'runs', 'failed']
    return Table('; '.join(caption), head, lines)


def _metrics(series: Sequence[Series]) -> list[str]:
    """Return the metrics that have a chart, in their order."""
    lines = [line for each in series for line in each.run.lines if line['split'] != 'train']
    scored = dict.fromkeys(name for line in lines for name in line)
    middle = [name for name in scored if name not in {*_FIRST, *_LAST, *_NO_CHART}]
    first = [name for name in _FIRST if name != 'loss' or 'mlm_loss' not in scored]
    return [*first, *middle, *_LAST]


def _figure(name: str, series: Sequence[Series], of: str) -> Figure | None:
    """Return one metric of all runs that have it; None where none has."""
    by_run = [(each, splits) for each in series if (splits := each.splits(name))]
    if not by_run:
        return None
    scored = any(split != 'train' for _, splits in by_run for split in splits)
    drawn, rows = [], []
    for each, splits in by_run:
        for split, measured in splits.items():
            # What is measured in training is drawn behind what is measured on other data.
            thin = scored and split == 'train'
            split = split_in_words(split)
            label = f'{each.label}, {split}' if scored else each.label
            drawn.append(Curve(label, measured, 'thin' if thin else 'main', each.colour))
            if not thin:
                rows += [(each.run.name, split, step, value) for step, value in measured]
    drawn.sort(key=lambda curve: curve.kind == 'main')  # and so is drawn first
    guessing = _guessing(name, by_run)

    named = quantity(name)
    if name == 'loss':
        named = named._replace(unit=loss_unit(by_run[0][0].run.data))
    labels = dict.fromkeys((each.label, each.colour) for each, _ in by_run)
    keys = [_key(label, colour) for label, colour in labels]
    if any(curve.kind == 'thin' for curve in drawn):
        keys.append(Key('thin: in training', 'common', 'thin'))
    if guessing:
        keys.append(_GUESSING)
    label = f'{named.title}, {of}'
    svg = drawing(Chart(named.title, named.unit, [*drawn, *guessing]), label)
    return Figure(named.title, named.unit, svg, label, keys, _numbers(name, named.unit, rows))


def _guessing(name: str, by_run: Sequence[tuple[Series, dict[str, Points]]]) -> list[Curve]:
    """Return the lines of what guessing scores.

    It is one line, in no run's colour, where the score is the same for all runs.
    """
    last = max(measured[-1][0] for _, splits in by_run for measured in splits.values())
    lines = {tuple(levels(name, each.run.guesses, last)): each for each, _ in reversed(by_run)}
    lines.pop((), None)
    return [
        Curve(f'{each.label}, guessing', line, 'guessing', each.colour if len(lines) > 1 else None)
        for line, each in lines.items()
    ]


def _key(label: str, colour: int) -> Key:
    return Key(label, f'run-{colour % len(COLOURS)}')


def _numbers(name: str, unit: str, rows: Sequence[tuple[str, str, float, float]]) -> Table:
    """Return the points of a chart as a table; of very many a part, which its summary says."""
    named = quantity(name)
    every = -(-len(rows) // _MOST_ROWS)
    cells = [
        (run, split, f'{step:,}', shown(name, value / named.factor))
        for run, split, step, value in rows[::-1][::every][::-1]  # the last is always there
    ]
    caption = named.title + (f' ({unit})' if unit else '')
    summary = 'Numbers' if every == 1 else f'Numbers (one of {every})'
    return Table(caption, ['run', 'split', 'step', name], cells, summary=summary)
