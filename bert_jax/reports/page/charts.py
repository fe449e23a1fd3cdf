"""The charts of the page: every metric of several runs over each other, and sweeps over seeds.

Owns which metrics have a chart, in which order, and which runs share a colour. How a chart is drawn
is bert_jax/runs/workdir/plots.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_jax.reports.page.markup import Child, Element, element, folded, table
from bert_jax.reports.page.runs import Run, Sweep
from bert_jax.reports.page.svg import drawing
from bert_jax.reports.page.tables import NONE, shown
from bert_jax.runs.finetuning import sweep as sweeps
from bert_jax.runs.workdir.plots import (
    COLOURS,
    Chart,
    Curve,
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


class Series(NamedTuple):
    """A run in the colour of its label; the seeds of a sweep's setting share both."""

    label: str
    colour: int
    run: Run


def series_of(opened: Sequence[Run | Sweep]) -> list[Series]:
    """Every run, with its label and its colour."""
    made: list[Series] = []
    for one in opened:
        if isinstance(one, Run):
            labelled = [(one.name, one)]
        else:
            labelled = [
                (f'{one.name}: {sweeps.in_words(one.settings_of(run))}', run) for run in one.runs
            ]
        for label, run in labelled:
            known = {series.label: series.colour for series in made}
            colour = known[label] if label in known else len(known)
            made.append(Series(label, colour, run))
    return made


def curves(series: Sequence[Series], kind: str) -> Element:
    """A figure for each metric of these runs, whose baselines are alike; kind: what they are, for
    the names of the figures.
    """
    names = [name for name in _metrics(series) if any(_splits(s.run, name) for s in series)]
    if not names:
        return element('p', 'No log line yet, so there is nothing to draw.', class_='note')
    return element('div', *(_figure(name, series, kind) for name in names), class_='charts')


def spread(sweep: Sweep) -> Element | None:
    """Every seed of a sweep as a point, by settings; None while no run of it is done."""
    rows = sweep.rows()
    if not rows:
        return None
    # What guessing scores is the same for all runs, and a run notes it when it begins.
    begun = max(sweep.runs, key=lambda run: len(run.guesses))
    picture = sweeps.spread(rows, begun.guesses)
    height = 1.0 + 0.42 * len(picture.groups)
    svg = drawing(picture, f'{sweep.name}: {picture.title}', height)

    # The numbers of the picture, group by group.
    metric, lines = rows[0]['metric'], []
    for number, entry in enumerate(sweeps.summarize(rows), 1):
        scores, settings = entry['metrics'][metric], sweeps.in_words(entry['settings'])
        seeds = [
            f'{shown(metric, row["metrics"][metric])} ({row["settings"]["seed"]})'
            for row in rows
            if sweeps.in_words(row['settings']) == settings
        ]
        statistics = [shown(metric, scores[name]) for name in ('mean', 'sd', 'max')]
        counts = [f'{entry["runs"]}', f'{entry["failed"] or NONE}']
        lines.append([f'{number}. {settings}', *counts, *statistics, ', '.join(seeds)])
    guess = begun.guess(metric)
    said = [f'{metric} on {rows[0]["split"]}']
    if guess is not None:
        said.append(f'guessing scores {shown(metric, guess)}')
    if len(rows) < len(sweep.runs):
        said.append(f'{len(rows)} of {len(sweep.runs)} runs are done')
    head = ['settings', 'runs', 'failed', 'mean', 'sd', 'best', 'every run (its seed)']
    note = 'The bar beside the points is their mean and sample standard deviation.'
    if guess is not None:
        note += ' The dotted line is what guessing scores.'
    return element(
        'div',
        element('div', _captioned(picture.title, picture.unit, svg), class_='charts'),
        element('p', note, class_='note'),
        table(head, lines, '; '.join(said)),
    )


def _metrics(series: Sequence[Series]) -> list[str]:
    """The metrics that have a chart, in their order."""
    scored = dict.fromkeys(
        name
        for one in series
        for line in one.run.lines
        if line['split'] != 'train'
        for name in line
        if name not in _NO_CHART
    )
    middle = [name for name in scored if name not in (*_FIRST, *_LAST)]
    first = [name for name in _FIRST if name != 'loss' or 'mlm_loss' not in scored]
    return [*first, *middle, *_LAST]


def _splits(run: Run, name: str) -> dict[str, Points]:
    """The points of a metric by split, in its unit; splits without any are left out."""
    found = {line['split']: None for line in run.lines}
    by_split = {split: in_unit(name, points(run.lines, split, name)) for split in found}
    return {split: there for split, there in by_split.items() if there}


def _figure(name: str, series: Sequence[Series], kind: str) -> Element:
    """One metric of all runs that have it."""
    by_run = [(one, splits) for one in series if (splits := _splits(one.run, name))]
    scored = any(split != 'train' for _, splits in by_run for split in splits)
    drawn, rows = [], []
    for one, splits in by_run:
        for split, found in splits.items():
            # What is measured in training stands behind what is measured on other data.
            thin = scored and split == 'train'
            label = f'{one.label}, {split}' if scored else one.label
            drawn.append(Curve(label, found, 'thin' if thin else 'main', one.colour))
            if not thin:
                rows += [(one.run.name, split, step, value) for step, value in found]
    drawn.sort(key=lambda curve: curve.kind == 'main')  # and so is drawn first
    guessing = _guessing(name, by_run)

    about = quantity(name)
    if name == 'loss':
        about = about._replace(unit=loss_unit(by_run[0][0].run.data))
    chart = Chart(about.title, about.unit, [*drawn, *guessing])
    keys = [
        _key(label, colour)
        for label, colour in dict.fromkeys((one.label, one.colour) for one, _ in by_run)
    ]
    if any(curve.kind == 'thin' for curve in drawn):
        keys.append(_key('thin: in training', None, 'thin'))
    if guessing:
        keys.append(_key('dotted: guessing', None, 'guess'))
    legend = element('ul', *keys, class_='legend')
    return _captioned(
        about.title,
        about.unit,
        drawing(chart, f'{about.title}, {kind}'),
        legend if len(keys) <= len(COLOURS) else folded(f'{len(keys)} colours', legend),
        _numbers(name, about.unit, rows),
    )


def _guessing(name: str, by_run: Sequence[tuple[Series, dict[str, Points]]]) -> list[Curve]:
    """The lines of what guessing scores: one, where it is the same for all runs, in no run's
    colour.
    """
    last = max(found[-1][0] for _, splits in by_run for found in splits.values())
    lines = {tuple(levels(name, one.run.guesses, last)): one for one, _ in reversed(by_run)}
    lines.pop((), None)
    return [
        Curve(f'{one.label}, guessing', line, 'guessing', one.colour if len(lines) > 1 else None)
        for line, one in lines.items()
    ]


def _numbers(name: str, unit: str, rows: Sequence[tuple[str, str, float, float]]) -> Element:
    """The points of a chart as a table; of very many a part, which its summary says."""
    factor = quantity(name).factor
    every = -(-len(rows) // _MOST_ROWS)
    chosen = [row for place, row in enumerate(rows) if (len(rows) - 1 - place) % every == 0]
    said = 'Numbers' if every == 1 else f'Numbers (one of {every})'
    cells: Iterator[Sequence[Child]] = (
        (run, split, f'{step:,}', shown(name, value / factor)) for run, split, step, value in chosen
    )
    caption = quantity(name).title + (f' ({unit})' if unit else '')
    return folded(said, table(['run', 'split', 'step', name], cells, caption))


def _captioned(title: str, unit: str, *parts: Element) -> Element:
    caption = element('figcaption', f'{title} ')
    if unit:
        caption.append(element('small', f'({unit})'))
    return element('figure', caption, *parts)


def _key(label: str, colour: int | None, kind: str = '') -> Element:
    """An entry of a legend."""
    name = 'common' if colour is None else f'run-{colour % len(COLOURS)}'
    mark = element('span', class_=f'key {kind}', style=f'color: var(--{name})', aria_hidden='true')
    return element('li', mark, label)
