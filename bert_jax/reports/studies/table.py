"""A study's table: in words for the terminal and for table.md, as numbers in table.json.

Owns how it looks. Every number is of scores.py; it must not know where those come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.reports.studies import plot, scores
from bert_jax.reports.studies.plan import Line, Plan
from bert_jax.reports.studies.scores import Cell
from bert_jax.runs.finetuning.sweep import aligned

Rows = list[list[str]]
Cells = Mapping[tuple[str, str], Cell]
# Losses are below it; of scores in per cent not all are.
_FEW = 20


def folder_of(workdir: str, study: str, scale: str | None = None) -> Path:
    """Return the folder of the tables of a study."""
    name = Path(study).stem
    return Path(workdir) / 'tables' / (f'{name}-{scale}' if scale else name)


def named(study: str) -> dict[str, str]:
    """Return what tells a study from another with a file of the same name: path and text."""
    path = Path(study)
    if path.suffix != '.py':
        return {'file': study, 'digest': ''}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return {'file': str(path.resolve()), 'digest': digest}


def check_own(folder: Path, study: Mapping[str, str]) -> None:
    """Check that a table in `folder` is not of another study than `study`, as `write` has it.

    Raises:
      UserError: it is.
    """
    file = folder / 'table.json'
    before = read_object(file).get('study', study) if file.exists() else study
    if before['file'] != study['file'] and before['digest'] != study['digest']:
        raise UserError(
            f'{folder} has the table of another study of that name, {before["file"]}: rename'
            f' {study["file"]}, use another --workdir, or remove the folder'
        )


def write(plan: Plan, folder: Path, study: Mapping[str, str]) -> str:
    """Write table.md, table.json and the plot into `folder`; return the table for the terminal.

    Args:
      plan: the study's.
      folder: the tables'.
      study: 'file' and 'digest' of what names it, which table.json notes.
    """
    cells = scores.cells(plan)
    parts, remarks = tables(plan, cells), notes(cells)
    folder.mkdir(parents=True, exist_ok=True)
    made = {'study': dict(study), **scores.as_json(plan, cells)}
    atomic_write(folder / 'table.json', json.dumps(made, indent=2) + '\n')
    plot.draw(plan, cells, folder / 'plot.png')
    page, text = [f'# {plan.study.title}'], [plan.study.title]
    for heading, rows in parts:
        rule = ['---', *['---:'] * (len(rows[0]) - 1)]
        page += ['', f'{heading[0].upper()}{heading[1:]}:', '']
        page += [f'| {" | ".join(row)} |' for row in (rows[0], rule, *rows[1:])]
        text += ['', heading, *aligned(rows, left=(0,))]
    page += ['', *(f'- {remark}' for remark in remarks)]
    atomic_write(folder / 'table.md', '\n'.join(page) + '\n')
    return '\n'.join([*text, '', *remarks])


def tables(plan: Plan, cells: Cells) -> list[tuple[str, Rows]]:
    """Return (heading, rows of texts) of each part, the first row being the head."""
    columns = [column.name for column in plan.study.columns]
    lines = plan.lines()
    head = ['', *columns]
    digits = {name: decimals([cells[line.name, name] for line in lines]) for name in columns}
    means = [
        [line.name, *(score(cells[line.name, name], digits[name]) for name in columns)]
        for line in lines
    ]
    gaps = [
        [line.name, *(gap(cells, first, line, name, digits[name]) for name in columns)]
        for line in lines
        if (first := scores.first_of(lines, line)) is not line
    ]
    parts = [('dev scores: mean ± sd (seeds)', [head, *means])]
    if gaps:
        base = f'difference to {lines[0].row.name} ± standard error'
        parts.append((base, [head, *gaps]))
    costs = []
    for line in lines:
        values = ['-'] * 5
        if used := scores.compute(plan, line):
            counts = [
                f'{used.pieces:,.0f}',
                f'{used.predictions:,.0f}',
                f'{used.flops / 1e15:,.3g}',
            ]
            values = [*counts, f'{used.seconds:,.0f}', f'{used.finetuning_seconds:,.0f}']
        costs.append([line.name, *values])
    head = ['', 'word pieces', 'predictions', 'PFLOP', 'seconds', 'fine-tuning seconds']
    return [*parts, ('compute', [head, *costs])]


def decimals(column: Iterable[Cell]) -> int:
    """Return the digits of a column: four of losses and fractions, two of larger scores."""
    return 4 if all(abs(cell.mean) < _FEW for cell in column if cell.mean is not None) else 2


def score(cell: Cell, digits: int) -> str:
    """Return '81.20 ± 0.31 (3)', the first with as much as there is."""
    if cell.mean is None:
        return 'FAILED' if cell.failures else '-'
    spread = '' if cell.sd is None else f' ± {cell.sd:.{digits}f}'
    mark = ('!' if cell.failed_runs else '') + ('*' if cell.missing else '')
    return f'{cell.mean:.{digits}f}{spread} ({len(cell.values)}){mark}'


def gap(cells: Cells, first: Line, line: Line, column: str, digits: int) -> str:
    """Return '-1.20 ± 0.31', with 'u' where no seeds are shared."""
    of = scores.difference(cells[first.name, column], cells[line.name, column])
    if of is None:
        return '-'
    error = ' ± ?' if of.error is None else f' ± {of.error:.{digits}f}'
    return f'{of.mean:+.{digits}f}{error}{"" if of.pairs else " u"}'


def notes(cells: Cells) -> list[str]:
    """Return what must be said of the numbers: what they are over, and what is missing."""
    remarks = []
    overs = {cell.over for cell in cells.values() if cell.values}
    for over in sorted(overs, reverse=True):
        more = (
            '; a score of one is the mean over its fine-tuning seeds'
            if over == 'pre-training'
            else ' of one pre-training, and do not hold what another pre-training would change'
        )
        some = '' if len(overs) == 1 else ' (some cells)'
        remarks.append(f'sd and standard errors are over {over} seeds{some}{more}.')
    remarks.append(
        'Differences are paired by those seeds; u: no seed is shared; ?: one seed alone.'
    )
    rates = [
        f'{line} / {column}: {cell.learning_rate:g}'
        for (line, column), cell in cells.items()
        if cell.learning_rate is not None
    ]
    if rates:
        remarks.append(f'Learning rates, best mean on dev: {"; ".join(rates)}.')
    names = lambda marked: '; '.join(' / '.join(key) for key, cell in cells.items() if marked(cell))
    if late := names(lambda cell: cell.missing and cell.values):
        remarks.append(f'*: seeds are missing: {late}.')
    if failed := names(lambda cell: cell.failed_runs):
        remarks.append(f'!: runs that have learnt nothing are among them: {failed}.')
    # A failed pre-training is named once, and not in each of the columns that it fails.
    whys = {(line, why): None for (line, _), cell in cells.items() for why in cell.failures}
    return remarks + [f'FAILED: {line}: {why}' for line, why in whys]
