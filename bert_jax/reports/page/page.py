"""Several runs on one HTML page that needs nothing but itself.

Owns which parts the page has, and in which order. What lies in the folders is runs.py's to know,
each part is made in a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.reports.page import charts, tables
from bert_jax.reports.page.confusion import confusion
from bert_jax.reports.page.markup import Child, Element, element, table, text_of
from bert_jax.reports.page.runs import Run, Sweep, all_runs, open_all
from bert_jax.reports.page.samples import Samples, samples
from bert_jax.reports.page.style import SHEET

# Nothing may be loaded, from anywhere: the browser holds the page to it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(
    workdirs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    sample_count: int = 6,
    known: Mapping[str, Samples] | None = None,
) -> str:
    """Writes the page of runs and sweeps; returns its path.

    Args:
      workdirs: folders of runs of any kind and of sweeps, mixed as one likes; runs may be going on.
      output: the page, which appears whole or not at all; None: report.html in the first folder.
      sample_count: how many masked words of held-out text each pre-training run fills in, for which
      its model is loaded twice; 0: none.
      known: what runs fill in, by their folders, where the caller has it: no model is loaded then.

    UserError where a folder holds no run, or one is damaged. What a part of the page lacks (records
    that have moved, a task whose files are gone) is said on the page.
    """
    opened = open_all(workdirs)
    target = epath.Path(output or epath.Path(workdirs[0]) / 'report.html')
    text = text_of(_page(opened, sample_count, known or {}))
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, text)
    return os.fspath(target)


def _page(
    opened: Sequence[Run | Sweep], sample_count: int, known: Mapping[str, Samples]
) -> Element:
    """The whole document."""
    pretraining = [one for one in opened if isinstance(one, Run) and one.pretraining]
    finetuning = [one for one in opened if one not in pretraining]
    parts: list[tuple[str, list[Element]]] = []
    if pretraining:
        parts.append(('Pre-training', _pretraining(pretraining)))
        if sample_count:
            parts.append(('Masked words', _samples(pretraining, sample_count, known)))
    if finetuning:
        parts.append(('Fine-tuning', _finetuning(finetuning)))
        if matrices := _matrices(finetuning):
            parts.append(('Confusion', matrices))
    parts += [
        ('Settings', _settings(pretraining, finetuning)),
        ('Commands and machines', [part for one in opened for part in _reproduction(one)]),
    ]

    names = [one.name for one in opened]
    title = ', '.join(names[:4]) + (f' and {len(names) - 4} more' if names[4:] else '')
    links = [element('li', element('a', name, href=f'#{_anchor(name)}')) for name, _ in parts]
    sections = [
        element('section', element('h2', name), *content, id=_anchor(name))
        for name, content in parts
    ]
    head = element(
        'head',
        element('meta', charset='utf-8'),
        element('meta', name='viewport', content='width=device-width, initial-scale=1'),
        element('meta', **{'http-equiv': 'Content-Security-Policy', 'content': _POLICY}),
        element('title', f'{title} – bert_jax'),
        element('style', SHEET),
    )
    body = element(
        'body',
        element('h1', title),
        element('nav', element('ul', *links), aria_label='Parts of this page'),
        element('main', *sections),
    )
    return element('html', head, body, lang='en')


def _pretraining(runs: Sequence[Run]) -> list[Element]:
    made = [tables.pretraining_results(runs)]
    if scored := tables.scored_afterwards(runs):
        made.append(scored)
    said = (
        'Guessing gives each masked token its frequency in the training records (unigram), and'
        ' always the more frequent label of next sentence prediction.'
    )
    return [
        *made,
        element('p', said, class_='note'),
        charts.curves(charts.series_of(runs), 'pre-training'),
    ]


def _finetuning(opened: Sequence[Run | Sweep]) -> list[Element]:
    runs = all_runs(opened)
    made = [tables.finetuning_results(runs)]
    if scored := tables.scored_afterwards(runs):
        made.append(scored)

    # Tasks have metrics and baselines of their own, so each has charts of its own.
    series = charts.series_of(opened)
    for task in dict.fromkeys(run.data['task'] for run in runs):
        of_task = [one for one in series if one.run.data['task'] == task]
        made += [element('h3', of_task[0].run.task), charts.curves(of_task, task)]
    for one in opened:
        if isinstance(one, Sweep) and (spread := charts.spread(one)) is not None:
            made += [element('h3', f'{one.name}: spread over seeds'), spread]
    return made


def _samples(runs: Sequence[Run], count: int, known: Mapping[str, Samples]) -> list[Element]:
    made: list[Element] = []
    for run in runs:
        made.append(element('h3', run.name))
        try:
            found = known.get(run.workdir.name) or samples(run, count)
        except UserError as error:
            logging.info('%s: no samples (%s)', run.name, error)
            made.append(element('p', f'No samples: {error}.', class_='note'))
            continue
        rows = [
            [
                element(
                    'span', one.hidden.before, element('mark', one.hidden.word), one.hidden.after
                ),
                _answers(one.first, one.hidden.word),
                _answers(one.now, one.hidden.word),
            ]
            for one in found.samples
        ]
        head = ['held-out text, the hidden word marked', 'before', f'at step {found.step:,}']
        said = f'Before: {found.began}. One word of each of the first held-out records.'
        words = table(head, rows, said)
        words.set('class', 'scroll words')
        made.append(words)
    return made


def _answers(words: Sequence[tuple[str, float]], hidden: str) -> Element:
    """The likeliest words with their probabilities, the right one marked."""
    parts: list[Child] = []
    for word, probability in words:
        right = word.removeprefix('▁') == hidden
        parts.append(element('span', word, class_='right') if right else word)
        parts.append(f' {100 * probability:.1f} %' if probability >= 0.001 else ' < 0.1 %')
        parts.append(element('br'))
    return element('span', *parts)


def _matrices(opened: Sequence[Run | Sweep]) -> list[Element]:
    """The confusion of each run, and of a sweep's best."""
    from bert_jax.runs.finetuning.sweep import best_of

    made: list[Element] = []
    for one in opened:
        done = {run.name: run for run in all_runs([one]) if run.result}
        if not done:
            continue
        best = best_of([{**run.result, 'name': name} for name, run in done.items() if run.result])
        run = done[best['name']]
        try:
            found = confusion(run)
        except UserError as error:
            made += [element('h3', run.name), element('p', f'Not counted: {error}.', class_='note')]
            continue
        if found is None:
            continue

        # A cell is the darker the larger its share of the row, as the eye reads a matrix.
        rows: list[list[Child]] = []
        for label, counts in zip(found.labels, found.counts, strict=True):
            total = max(1, counts.sum())
            cells = [_cell(int(count), count / total) for count in counts]
            rows.append([label, *cells, f'{counts.sum():,}'])
        said = f'{run.task} {found.split}: rows are the labels, columns what the run answered'
        matrix = table(['label', *found.labels, 'all'], rows, said)
        matrix.set('class', 'scroll matrix')
        note = ' (the best run)' if isinstance(one, Sweep) else ''
        made += [element('h3', f'{run.name}{note}'), matrix]
    return made


def _cell(count: int, share: float) -> Element:
    shade = f'background: rgba(var(--cell), {0.55 * share:.2f})'
    return element('span', f'{count:,} ', element('br'), f'{100 * share:.0f} %', style=shade)


def _settings(*kinds: Sequence[Run | Sweep]) -> list[Element]:
    return [part for opened in kinds if opened for part in tables.differences(opened)]


def _reproduction(one: Run | Sweep) -> list[Element]:
    return [element('h3', one.name), *tables.reproduction(one)]


def _anchor(name: str) -> str:
    return name.lower().replace(' ', '-')
