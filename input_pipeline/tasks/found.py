"""A table of the user's as a task: which column is what, found by looking at it.

Owns what tells a header from a row. What it finds is the description that a JSON task file would
hold; where two readings are possible it asks, in one line that names the option. Which column is
what table_columns.py finds, and what labels a kind of task has its class says (`describe_table`).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Task
from bert_jax.input_pipeline.tasks.classification import TextTask
from bert_jax.input_pipeline.tasks.conll import is_column_file
from bert_jax.input_pipeline.tasks.load_task import BY_KIND
from bert_jax.input_pipeline.tasks.multilabel import MultiLabelTask
from bert_jax.input_pipeline.tasks.table_columns import (
    LABELS,
    TEXTS,
    Cells,
    TableColumns,
    is_number,
)
from bert_jax.input_pipeline.tasks.tagging import TaggingTask
from bert_jax.input_pipeline.tasks.task_file import TaskFile
from bert_jax.input_pipeline.text.data_sets import get_class_names, is_hub_name
from bert_jax.input_pipeline.text.encodings import located, plain_name
from bert_jax.input_pipeline.text.record_files import parse_columns
from bert_jax.input_pipeline.text.tables import SUFFIXES, Table

# The classes of tasks that know their labels in a table, from the special to the general.
_LOOKED_AT = (MultiLabelTask, TextTask)
_KINDS = [kind for task in (*_LOOKED_AT, TaggingTask) for kind in task.kinds]
_ENDS = {*SUFFIXES, '.conll', '.conllu', '.bio', '.iob', '.iob2'} - {'.json'}
_ROWS = 20_000  # that are looked at
_DEV_SHARE = 0.1  # of the rows, where there is no dev file
_FEWEST = 10  # rows of a dev split that is drawn


@dataclass(frozen=True)
class FoundTask:
    """A task that was found.

    Attributes:
      name: what its results are filed under.
      description: what its JSON task file would hold, files by their whole paths.
    """

    name: str
    description: dict[str, Any]

    @functools.cached_property
    def task(self) -> Task:
        """Return the task."""
        file = TaskFile(self.name, self.description)
        return BY_KIND[self.description['kind']].from_task_file(file)

    @property
    def text(self) -> str:
        """Return the JSON task file."""
        return json.dumps(self.description, indent=2, ensure_ascii=False) + '\n'


def is_table(name: str) -> bool:
    """Tell whether that is a table, and no name of a task or task file."""
    end = os.path.splitext(plain_name(name))[1]
    return is_hub_name(name) or end in _ENDS


def find(
    train: str,
    dev: str = '',
    kind: str = '',
    columns: str | Mapping[str, str | int] = '',
    header: bool | None = None,
) -> FoundTask:
    """Find the task that a table is of.

    Args:
      train: the table to train on: TSV, CSV, JSON lines, parquet, or hf:NAME:SPLIT of the Hub.
      dev: the one to score on; '' for a part of the training rows.
      kind: the kind of task; '' for the one that the labels show.
      columns: role -> column or 'ROLE=COLUMN,...', of those that are not to be found.
      header: whether the first row names the columns; None: as it looks.

    Raises:
      UserError: a file cannot be read, or is not clear; the line says which option to give.
    """
    if kind and kind not in _KINDS:
        raise UserError(
            f'--kind={kind}: of a table it is one of {", ".join(_KINDS)}; others are described in'
            ' JSON'
        )
    if not is_hub_name(train) and located(train) is None:
        raise UserError(f'--task={train}: no such file')
    files, drawn = {'train': _make_lasting(train)}, {'dev_share': _DEV_SHARE, 'dev_seed': 0}
    if dev:
        files['dev'], drawn = _make_lasting(dev), {}

    # A file that is no table has no columns to be found.
    if not columns and not kind and is_column_file(train):
        entry: dict[str, Any] = {'kind': 'tagging', 'files': files, **drawn}
    else:
        looked, has_header = _read_columns(Table(train, {}), header)
        entries = _describe(TableColumns(train, looked, parse_columns(columns)), kind)
        roles = entries.pop('columns')
        entry = {**entries, 'files': files, **drawn, 'columns': roles}
        if not has_header:
            entry['header'] = False
        label = str(roles['label'] if 'label' in roles else roles['tags'])
        names = get_class_names(train, label) if is_hub_name(train) else []
        if names:
            entry['labels'] = {str(number): name for number, name in enumerate(names)}

    # The family has its own checks, and names the labels.
    task = FoundTask(_name_task(train), entry).task
    if task.labels and 'labels' not in entry:
        entry['labels'] = list(task.labels)
    if dev:
        task.examples('dev')  # what is wrong with it is said before a run begins
        return FoundTask(_name_task(train), entry)
    count = _count_examples(task, 'dev')
    if count < _FEWEST:
        raise UserError(
            f'{train}: {count} of its rows would be its dev split: too few; name a file with --dev'
        )
    return FoundTask(_name_task(train), entry)


def _count_examples(task: Task, split: str) -> int:
    """Return how many examples a drawn split has, which may be none of few rows."""
    try:
        return len(task.examples(split))
    except UserError:
        task.examples('train')  # raises what is wrong with the file
        return 0


def _describe(columns: TableColumns, kind: str) -> dict[str, Any]:
    """Return the kind, the columns and what else the task file needs.

    Raises:
      UserError: no kind is clear, or a column is not.
    """
    if kind in ('', 'tagging'):
        entries = columns.find_words(asked=kind == 'tagging')
        if entries:
            return {'kind': 'tagging', **entries}
    roles = columns.find_texts()
    if kind:
        return {'kind': kind, 'columns': roles}
    cells = {role: columns.get(key) for role, key in roles.items()}
    for task in _LOOKED_AT:
        described = task.describe_table(columns.path, cells)
        if described:
            return {**described, 'columns': roles}
    raise UserError(f'{columns.path}: no kind of task has such labels: give --kind')


def _make_lasting(path: str) -> str:
    if '://' in path or is_hub_name(path):
        return path
    return os.path.abspath(path)


def _name_task(train: str) -> str:
    """Return what a task is called by its training file: train.tsv says less than its folder."""
    if is_hub_name(train):
        return re.sub(r'\W+', '-', os.path.basename(train.removeprefix('hf:').split(':')[0]))
    stem = os.path.splitext(os.path.basename(plain_name(train)))[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(train)))
    return folder if stem.startswith('train') and folder else stem


def _read_columns(table: Table, header: bool | None) -> tuple[list[Cells], bool]:
    """Return the columns of a table, and whether its first row names them."""
    limit = 1000 if is_hub_name(table.path) else None
    rows: list[Any] = list(itertools.islice(table.raw(), limit))
    if not rows:
        raise UserError(f'{table.path}: no examples')
    first = rows[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(itertools.chain.from_iterable(rows[:100]))
        rows = _thin_out(rows)
        return [Cells(name, [row.get(name) for row in rows]) for name in names], True
    if len(first) < 2:
        raise UserError(
            f'{table.path}: it has one column as it is read, and a text and its label are two: save'
            ' it with tabs as .tsv, or with commas as .csv'
        )

    # Rows of another width are the reader's to refuse, by their line.
    others = _thin_out([row for row in rows[1:] if len(row) == len(first)])
    below = [Cells(i, [row[i] for row in others]) for i in range(len(first))]
    if header is None:
        header = _is_header(table.path, first, below)
    if not header:
        return [Cells(i, [first[i], *cells.values]) for i, cells in enumerate(below)], False
    if not others:
        raise UserError(f'{table.path}: no examples below the names of its columns')
    named = zip(first, below, strict=True)
    return [Cells(name, cells.values) for name, cells in named if name], True


def _thin_out(rows: list[Any]) -> list[Any]:
    """Return all rows, or of very many as many as are looked at, from everywhere."""
    return rows[:: max(1, -(-len(rows) // _ROWS))]


def _is_header(path: str, first: Sequence[str], below: Sequence[Cells]) -> bool:
    """Tell whether a first row names the columns below. UserError where it may be either."""
    names = [cell.strip().lower() for cell in first]
    if names == [str(i) for i in range(len(names))]:
        return True
    is_known = any(name in LABELS or name in TEXTS for name in names)
    is_like_names = all(len(name) <= 40 and len(name.split()) <= 4 for name in names)
    signs = set()
    for name, cell, cells in zip(names, first, below, strict=True):
        if name and cells.are_numbers:
            signs.add(not is_number(cell))
        elif name and cells.are_classes:
            signs.add(cell not in cells.different)
    # A row like those below it is one of them, whatever else it looks like.
    if False in signs or not is_like_names:
        return False
    if signs or is_known:
        return True
    shown = ', '.join(first)[:80]
    raise UserError(
        f'{path}: does the first row name the columns ({shown})? Give --header=true or'
        ' --header=false'
    )
