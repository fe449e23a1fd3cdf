"""A table of the user's as a task: which column is what, found by looking at it.

Owns what tells a header from a row, and labels from texts. What it finds is the description that a
JSON task file would hold; where two readings are possible it asks, in one line that names the
option. What labels a kind of task has its class says (`describe_table`), and which columns are
words and tags table_columns.py.
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
    WORDS_OPTION,
    Cells,
    find_columns,
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

# What people call such columns, in small letters. Of labels the first that is there is it.
_LABELS = (
    'label labels gold_label class target category sentiment intent emotion is_duplicate score'
    ' similarity rating stars tags ner_tags'.split()
)
_TEXTS = (
    'text sentence review content document comment tweet message utterance body tokens'
    ' words'.split()
)
_PAIRS = (
    ('premise', 'hypothesis'), ('question', 'sentence'), ('question', 'passage'),
    ('query', 'document'), ('query', 'passage'), ('text', 'text_pair'), ('text', 'text_b'),
)  # fmt: skip
_NUMBERED = ('12', 'ab', '01')  # ends of the names of a pair, as in sentence1 and sentence2
_OPTION = '--columns=text=NAME,label=NAME'


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
    files = {'train': _lasting(train)} | ({'dev': _lasting(dev)} if dev else {})
    drawn = {} if dev else {'dev_share': _DEV_SHARE, 'dev_seed': 0}

    # A file that is no table has no columns to be found.
    if not columns and not kind and is_column_file(train):
        entry: dict[str, Any] = {'kind': 'tagging', 'files': files, **drawn}
    else:
        looked, has_header = _columns(Table(train, {}), header)
        entries = _entries(train, kind, looked, parse_columns(columns))
        roles = entries.pop('columns')
        entry = {**entries, 'files': files, **drawn, 'columns': roles}
        if not has_header:
            entry['header'] = False
        label = str(roles['label'] if 'label' in roles else roles['tags'])
        names = get_class_names(train, label) if is_hub_name(train) else []
        if names:
            entry['labels'] = {str(number): name for number, name in enumerate(names)}

    # The family has its own checks, and names the labels.
    task = FoundTask(_name(train), entry).task
    if task.labels and 'labels' not in entry:
        entry['labels'] = list(task.labels)
    if dev:
        task.examples('dev')  # what is wrong with it is said before a run begins
        return FoundTask(_name(train), entry)
    count = _count(task, 'dev')
    if count < _FEWEST:
        raise UserError(
            f'{train}: {count} of its rows would be its dev split: too few; name a file with --dev'
        )
    return FoundTask(_name(train), entry)


def _count(task: Task, split: str) -> int:
    """Return how many examples a drawn split has, which may be none of few rows."""
    try:
        return len(task.examples(split))
    except UserError:
        task.examples('train')  # raises what is wrong with the file
        return 0


def _entries(
    path: str, kind: str, columns: Sequence[Cells], named: Mapping[str, str | int]
) -> dict[str, Any]:
    """Return the kind, the columns and what else the task file needs."""
    is_asked = kind == 'tagging'
    if not kind or is_asked:
        entries = find_columns(path, columns, named, is_asked)
        if entries:
            return {'kind': 'tagging', **entries}
    roles = _roles(path, columns, named)
    entries = {'kind': kind} if kind else _kind(path, columns, roles)
    return {**entries, 'columns': roles}


def _lasting(path: str) -> str:
    is_local = '://' not in path and not is_hub_name(path)
    return os.path.abspath(path) if is_local else path


def _name(train: str) -> str:
    """Return what a task is called by its training file: train.tsv says less than its folder."""
    if is_hub_name(train):
        return re.sub(r'\W+', '-', os.path.basename(train.removeprefix('hf:').split(':')[0]))
    stem = os.path.splitext(os.path.basename(plain_name(train)))[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(train)))
    return folder if stem.startswith('train') and folder else stem


def _columns(table: Table, header: bool | None) -> tuple[list[Cells], bool]:
    """Return the columns of a table, and whether its first row names them."""
    rows: list[Any] = list(itertools.islice(table.raw(), 1000 if is_hub_name(table.path) else None))
    if not rows:
        raise UserError(f'{table.path}: no examples')
    first = rows[0]
    if isinstance(first, Mapping):
        names = list(dict.fromkeys(name for row in rows[:100] for name in row))
        return [Cells(name, [row.get(name) for row in _some(rows)]) for name in names], True
    if len(first) < 2:
        raise UserError(
            f'{table.path}: it has one column as it is read, and a text and its label are two: save'
            ' it with tabs as .tsv, or with commas as .csv'
        )

    # Rows of another width are the reader's to refuse, by their line.
    others = _some([row for row in rows[1:] if len(row) == len(first)])
    below = [Cells(i, [row[i] for row in others]) for i in range(len(first))]
    if header is None:
        header = _is_header(table.path, first, below)
    if not header:
        return [Cells(i, [first[i], *cells.values]) for i, cells in enumerate(below)], False
    if not others:
        raise UserError(f'{table.path}: no examples below the names of its columns')
    named = zip(first, below, strict=True)
    return [Cells(name, cells.values) for name, cells in named if name], True


def _some(rows: list[Any]) -> list[Any]:
    """Return all rows, or of very many as many as are looked at, from everywhere."""
    return rows[:: max(1, -(-len(rows) // _ROWS))]


def _is_header(path: str, first: Sequence[str], below: Sequence[Cells]) -> bool:
    """Tell whether a first row names the columns below. UserError where it may be either."""
    names = [cell.strip().lower() for cell in first]
    if names == [str(i) for i in range(len(names))]:
        return True
    is_known = any(name in _LABELS or name in _TEXTS for name in names)
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


def _roles(path: str, columns: Sequence[Cells], named: Mapping[str, str | int]) -> dict[str, Any]:
    """Return role -> column of a task of texts; UserError where a column may be either."""
    keys = [cells.key for cells in columns]
    for role, key in named.items():
        if key not in keys and not isinstance(key, int):
            raise UserError(
                f'--columns: no column {key!r} for {role!r} in {path}; it has'
                f' {", ".join(map(str, keys))[:200]}'
            )
    label: Any = named['label'] if 'label' in named else _label(path, columns, named)
    taken = {label, *named.values()} if not isinstance(label, list) else {*label, *named.values()}
    if 'text' in named:
        return {**named, 'label': label}
    left = [cells for cells in columns if cells.key not in taken]
    text = _texts(path, left)
    return {**text, **named, 'label': label}


def _label(path: str, columns: Sequence[Cells], named: Mapping[str, str | int]) -> Any:
    """Return the column of the label."""
    free = [cells for cells in columns if cells.key not in named.values() and cells.given]
    by_name = {cells.name: cells for cells in free}
    for name in _LABELS:
        if name in by_name and not by_name[name].are_texts:
            return by_name[name].key
    # No column is called so: the one that looks so, or one of 0 and 1 for each label.
    likely = [c for c in free if c.are_classes]
    if len(likely) > 1 and all(c.different == {'0', '1'} for c in likely):
        return [c.key for c in free if c.different <= {'0', '1'}]
    # Or lists of labels, where no other column has lists: else they may be words and their tags.
    lists = [c for c in free if c.are_lists]
    if not likely and len(lists) == 1:
        items = Cells('', [item for value in lists[0].given for item in value])
        likely = lists if items.are_classes else []
    if len(likely) == 1:
        return likely[0].key
    shown = ', '.join(map(str, likely or columns))[:200]
    what = 'may each be the label' if likely else 'do not look like labels'
    raise UserError(f'{path}: columns {shown} {what}: say which, as in {_option(columns)}')


def _option(columns: Sequence[Cells]) -> str:
    """Return the option that names columns; of a table without texts also that for words."""
    if any(cells.are_texts for cells in columns):
        return _OPTION
    return f'{_OPTION}, or {WORDS_OPTION} where each row is a word'


def _texts(path: str, columns: Sequence[Cells]) -> dict[str, str | int]:
    """Return the column of the text, or those of both."""
    names = {cells.name: cells.key for cells in columns if cells.name}
    texts = [cells for cells in columns if cells.are_texts]
    are_texts = {cells.name for cells in texts}.issuperset
    pairs = [pair for pair in _PAIRS if set(pair) <= set(names)]
    numbered = itertools.combinations(names, 2)
    pairs += [pair for pair in numbered if _is_pair(*pair) and are_texts(pair)]
    if pairs:
        return {'text': names[pairs[0][0]], 'text_b': names[pairs[0][1]]}

    # By what is in them; a name decides among several.
    if len(texts) != 1:
        by_name = [name for name in _TEXTS if name in names]
        if len(by_name) == 1 or (by_name and not texts):
            return {'text': names[by_name[0]]}
    if len(texts) == 1:
        return {'text': texts[0].key}
    if len(texts) == 2 and not any(cells.name for cells in columns):
        return {'text': texts[0].key, 'text_b': texts[1].key}
    shown = ', '.join(map(str, texts or columns))[:200]
    if len(texts) == 2:
        first, second = (cells.key for cells in texts)
        raise UserError(
            f'{path}: columns {shown} are both texts: give'
            f' --columns=text={first},text_b={second} for a pair, or --columns=text=NAME for'
            ' one alone'
        )
    what = 'are all texts' if texts else 'do not look like texts'
    raise UserError(f'{path}: columns {shown} {what}: say which, as in {_option(columns)}')


def _is_pair(first: str, second: str) -> bool:
    """Tell whether two names differ in a number or letter that counts them."""
    if len(first) != len(second):
        return False
    differ = [a + b for a, b in zip(first, second, strict=True) if a != b]
    return len(differ) == 1 and differ[0] in _NUMBERED


def _kind(path: str, columns: Sequence[Cells], roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the family whose labels these are; UserError where none is clear."""
    by_key = {cells.key: cells for cells in columns}

    # A place from the end, as --columns takes it.
    def at(key: Any) -> Any:
        if isinstance(key, list):
            return [by_key[each] for each in key]
        return by_key[key] if key in by_key else columns[key]

    cells = {role: at(key) for role, key in roles.items()}
    for task in _LOOKED_AT:
        entries = task.describe_table(path, cells)
        if entries:
            return entries
    raise UserError(f'{path}: no kind of task has such labels: give --kind')
