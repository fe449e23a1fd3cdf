"""A study's table: in words for the terminal and for table.md, as numbers in table.json.

Owns how it looks. Every number is of scores.py; it must not know where those come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.reports.studies import plot, scores
from bert_jax.reports.studies.plan import Line, Plan
from bert_jax.reports.studies.scores import Cell, Compute
from bert_jax.runs.finetuning.sweep import aligned

Rows = list[list[str]]
# Losses are below it; of scores in per cent not all are.
_FEW = 20


def folder_of(workdir: str, study: str, scale: str | None = None) -> Path:
    """Returns where the tables of a study are."""
    name = Path(study).stem
    return Path(workdir) / 'tables' / (f'{name}-{scale}' if scale else name)


def named(study: str) -> dict[str, str]:
    """Returns what tells a study from another with a file of the same name: its place and text."""
    path = Path(study)
    if path.suffix != '.py':
        return {'file': study, 'digest': ''}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return {'file': str(path.resolve()), 'digest': digest}


def check_own(folder: Path, study: Mapping[str, str]) -> None:
    """UserError where the table in `folder` is of another study than `study`, as `write` has it."""
    file = folder / 'table.json'
    before = read_object(file).get('study', study) if file.exists() else study
    if before['file'] != study['file'] and before['digest'] != study['digest']:
        raise UserError(
            f'{folder} has the table of another study of that name, {before["file"]}: rename'
            f' {study["file"]}, use another --workdir, or remove the folder'
        )


def write(plan: Plan, folder: Path, study: Mapping[str, str]) -> str:
    """Writes table.md, table.json and the plot into `folder`; -> the table for the terminal.

    study: 'file' and 'digest' of what names it, which table.json notes.
    """
    found = scores.cells(plan)
    parts = tables(plan, found)
    folder.mkdir(parents=True, exist_ok=True)
    made = {'study': dict(study), **scores.as_json(plan)}
    atomic_write(folder / 'table.json', json.dumps(made, indent=2) + '\n')
    atomic_write(folder / 'table.md', markdown(plan.study.title, parts, notes(plan, found)))
    plot.draw(plan, found, folder / 'plot.png')
    text = [plan.study.title]
    for heading, rows in parts:
        text += ['', heading, *aligned(rows, left=(0,))]
    return '\n'.join([*text, '', *notes(plan, found)])


def tables(plan: Plan, found: dict[tuple[str, str], Cell]) -> list[tuple[str, Rows]]:
    """(heading, rows of cells) of each part, the first row of cells being the head."""
    columns = [column.name for column in plan.study.columns]
    lines = plan.lines()
    head = ['', *columns]
    digits = {name: decimals([found[line.name, name] for line in lines]) for name in columns}
    means = [
        [line.name, *(score(found[line.name, name], digits[name]) for name in columns)]
        for line in lines
    ]
    gaps = [
        [line.name, *(gap(found, lines, line, name, digits[name]) for name in columns)]
        for line in lines
        if scores.first_of(lines, line) is not line
    ]
    parts = [('dev scores: mean ± sd (seeds)', [head, *means])]
    if gaps:
        base = f'difference to {lines[0].row.name} ± standard error'
        parts.append((base, [head, *gaps]))
    used = [(line, scores.compute(plan, line)) for line in lines]
    parts.append(('compute', [_COMPUTE, *(cost(line, compute) for line, compute in used)]))
    return parts


def decimals(column: Iterable[Cell]) -> int:
    """Of the scores of a column: four of losses and fractions, two of per cent and perplexities."""
    return 4 if all(abs(cell.mean) < _FEW for cell in column if cell.mean is not None) else 2


def score(cell: Cell, digits: int) -> str:
    """'81.20 ± 0.31 (3)', the first with as much as there is."""
    if cell.mean is None:
        return 'FAILED' if cell.failures else '-'
    spread = '' if cell.sd is None else f' ± {cell.sd:.{digits}f}'
    mark = ('!' if cell.failed_runs else '') + ('*' if cell.missing else '')
    return f'{cell.mean:.{digits}f}{spread} ({len(cell.values)}){mark}'


def gap(
    found: dict[tuple[str, str], Cell],
    lines: Sequence[Line],
    line: Line,
    column: str,
    digits: int,
) -> str:
    """'-1.20 ± 0.31', 'u' where no seeds are shared."""
    first = scores.first_of(lines, line)
    of = scores.difference(found[first.name, column], found[line.name, column])
    if of is None:
        return '-'
    error = ' ± ?' if of.error is None else f' ± {of.error:.{digits}f}'
    return f'{of.mean:+.{digits}f}{error}{"" if of.pairs else " u"}'


_COMPUTE = ['', 'word pieces', 'predictions', 'PFLOP', 'seconds', 'fine-tuning seconds']


def cost(line: Line, used: Compute | None) -> list[str]:
    """A line of the third part."""
    if used is None:
        return [line.name, *['-'] * (len(_COMPUTE) - 1)]
    return [
        line.name,
        f'{used.pieces:,.0f}',
        f'{used.predictions:,.0f}',
        f'{used.flops / 1e15:,.3g}',
        f'{used.seconds:,.0f}',
        f'{used.finetuning_seconds:,.0f}',
    ]


def notes(plan: Plan, found: dict[tuple[str, str], Cell]) -> list[str]:
    """What must be said of the numbers: what they are over, what is missing, what has failed."""
    said = []
    overs = {cell.over for cell in found.values() if cell.values}
    for over in sorted(overs, reverse=True):
        more = (
            '; a score of one is the mean over its fine-tuning seeds'
            if over == 'pre-training'
            else ' of one pre-training, and do not hold what another pre-training would change'
        )
        where = '' if len(overs) == 1 else ' (some cells)'
        said.append(f'sd and standard errors are over {over} seeds{where}{more}.')
    said.append('Differences are paired by those seeds; u: no seed is shared; ?: one seed alone.')
    rates = [
        f'{line} / {column}: {cell.learning_rate:g}'
        for (line, column), cell in found.items()
        if cell.learning_rate is not None
    ]
    if rates:
        said.append(f'Learning rates, best mean on dev: {"; ".join(rates)}.')
    if late := [key for key, cell in found.items() if cell.missing and cell.values]:
        said.append(f'*: seeds are missing: {_places(late)}.')
    if failed := [key for key, cell in found.items() if cell.failed_runs]:
        said.append(f'!: runs that have learnt nothing are among them: {_places(failed)}.')
    # A failed pre-training is told once, and not in each of the columns that it fails.
    whys = {(line, why): None for (line, _), cell in found.items() for why in cell.failures}
    said += [f'FAILED: {line}: {why}' for line, why in whys]
    return said


def markdown(title: str, parts: Iterable[tuple[str, Rows]], said: Iterable[str]) -> str:
    """All of it as a page."""
    text = [f'# {title}']
    for heading, rows in parts:
        rule = ['---', *['---:'] * (len(rows[0]) - 1)]
        text += ['', f'{heading[0].upper()}{heading[1:]}:', '']
        text += [f'| {" | ".join(cells)} |' for cells in (rows[0], rule, *rows[1:])]
    return '\n'.join([*text, '', *(f'- {one}' for one in said)]) + '\n'


def _places(keys: Iterable[tuple[str, str]]) -> str:
    return '; '.join(' / '.join(key) for key in keys)
