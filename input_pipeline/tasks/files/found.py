"""A table of the user's as a task: which column is what, found by looking at it.

Owns what tells a header from a row, and labels from texts. What it finds is the description that a
JSON task file would hold; where two readings are possible it asks, in one line that names the
option. It must not know kinds of tasks: each family says what labels it takes (`looks_like`),
or which columns are its own (`find_columns`).
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
from bert_jax.input_pipeline.tasks import BY_KIND, Task
from bert_jax.input_pipeline.tasks.files import word_columns
from bert_jax.input_pipeline.text.record_files import parse_columns
from bert_jax.input_pipeline.text.sources import hub
from bert_jax.input_pipeline.text.tables import SUFFIXES, Table
from bert_jax.input_pipeline.text.whole_text import located, plain_name

_ENDS = {*SUFFIXES, '.conll', '.conllu', '.bio', '.iob', '.iob2'} - {'.json'}
_ROWS = 20_000  # that are looked at
_DEV_SHARE = 0.1  # of the rows, where there is no dev file
_FEWEST = 10  # rows of a dev split that is drawn

# What people call such columns, in small letters. Of labels the first that is there is it.
_LABELS = (
    'label', 'labels', 'gold_label', 'class', 'target', 'category', 'sentiment', 'intent',
    'emotion', 'is_duplicate', 'score', 'similarity', 'rating', 'stars', 'tags', 'ner_tags',
)  # fmt: skip
_TEXTS = (
    'text', 'sentence', 'review', 'content', 'document', 'comment', 'tweet', 'message', 'utterance',
    'body', 'tokens', 'words',
)  # fmt: skip
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
        return BY_KIND[self.description['kind']].from_description(self.name, self.description, '')

    @property
    def text(self) -> str:
        """Return the JSON task file."""
        return json.dumps(self.description, indent=2, ensure_ascii=False) + '\n'


@dataclass(frozen=True)
class Cells:
    """A column of a table, as far as it was looked at.

    Attributes:
      key: its name, or its place from 0.
      values: its cells, of which those of records may be lists and numbers; None where empty.
    """

    key: str | int
    values: Sequence[Any]

    @property
    def name(self) -> str:
        """Return its name in small letters; '' where it has none."""
        return self.key.strip().lower() if isinstance(self.key, str) else ''

    @functools.cached_property
    def given(self) -> list[Any]:
        """Return the cells that are not empty."""
        return [v for v in self.values if v is not None and v != '']

    @functools.cached_property
    def texts(self) -> list[str]:
        """Return those that are one text or number, as texts."""
        return [str(v) for v in self.given if not isinstance(v, list)]

    @functools.cached_property
    def are_lists(self) -> bool:
        """Whether cells are lists."""
        return bool(self.given) and all(isinstance(v, list) for v in self.given)

    @functools.cached_property
    def different(self) -> set[str]:
        """Return the different cells that are one text."""
        return set(self.texts)

    @functools.cached_property
    def are_numbers(self) -> bool:
        """Whether all are numbers."""
        return bool(self.texts) and not self.are_lists and all(map(is_number, self.different))

    @functools.cached_property
    def are_classes(self) -> bool:
        """Whether few different, short values come again and again."""
        count, different = len(self.texts), len(self.different)
        short = all(len(text) <= 40 for text in self.different)
        whole = not self.are_numbers or all(float(text).is_integer() for text in self.different)
        few = 2 <= different <= max(2, count // 3) and different < count
        return not self.are_lists and short and whole and few

    @functools.cached_property
    def are_texts(self) -> bool:
        """Whether most are of several words, or of a script that does not part them."""
        if self.are_lists or self.are_numbers or not self.texts:
            return False
        wordy = sum(
            len(text.split()) > 1 or (len(text) >= 5 and not text.isascii()) for text in self.texts
        )
        return wordy > len(self.texts) / 2 and not self.are_classes

    def __str__(self) -> str:
        return repr(self.key) if isinstance(self.key, str) else str(self.key)


def is_number(text: str) -> bool:
    """Tell whether a text spells a number in digits."""
    return bool(re.fullmatch(r'\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*', text))


def is_table(name: str) -> bool:
    """Tell whether that is a table, and no name of a task or task file."""
    end = os.path.splitext(plain_name(name))[1]
    return hub.is_meant(name) or end in _ENDS


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
    families = _families(kind)
    if not hub.is_meant(train) and located(train) is None:
        raise UserError(f'--task={train}: no such file')
    files = {'train': _lasting(train)} | ({'dev': _lasting(dev)} if dev else {})
    drawn = {} if dev else {'dev_share': _DEV_SHARE, 'dev_seed': 0}

    # A file that is no table has no columns to be found.
    claimed = [f for f in families if hasattr(f, 'claims') and f.claims(train)]
    if claimed and not columns and not kind:
        entry: dict[str, Any] = {'kind': claimed[0].KINDS[0], 'files': files, **drawn}
    else:
        looked, has_header = _columns(Table(train, {}), header)
        if dev and not has_header and header is None:
            _check_no_header(dev, train)
        entries = _entries(train, families, kind, looked, parse_columns(columns))
        roles = entries.pop('columns')
        entry = {
            **entries,
            'files': files,
            **drawn,
            'columns': roles,
            **({} if has_header else {'header': False}),
        }
        label = str(roles['label'] if 'label' in roles else roles['tags'])
        if names := hub.class_names(train, label) if hub.is_meant(train) else []:
            entry['labels'] = {str(number): name for number, name in enumerate(names)}

    # The family has its own checks, and names the labels.
    task = FoundTask(_name(train), entry).task
    if task.labels and 'labels' not in entry:
        entry['labels'] = list(task.labels)
    if dev:
        task.examples('dev')  # what is wrong with it is said before a run begins
    elif (count := _count(task, 'dev')) < _FEWEST:
        raise UserError(
            f'{train}: {count} of its rows would be its dev split: too few; name a file with --dev'
        )
    return FoundTask(_name(train), entry)


def _families(kind: str) -> list[Any]:
    """Return the families whose tasks are found; UserError where `kind` is of none of them."""
    hooks = {'looks_like', 'find_columns'}
    families = [family for family in dict.fromkeys(BY_KIND.values()) if hooks & set(dir(family))]
    kinds = [kind for family in families for kind in family.KINDS]
    if kind and kind not in kinds:
        raise UserError(
            f'--kind={kind}: of a table it is one of {", ".join(kinds)}; others are described in'
            ' JSON'
        )
    return families


def _count(task: Task, split: str) -> int:
    """Return how many examples a drawn split has, which may be none of few rows."""
    try:
        return len(task.examples(split))
    except UserError:
        task.examples('train')  # raises what is wrong with the file
        return 0


def _entries(
    path: str,
    families: Sequence[Any],
    kind: str,
    columns: Sequence[Cells],
    named: Mapping[str, str | int],
) -> dict[str, Any]:
    """Return the kind, the columns and what else the task file needs."""
    for family in [f for f in families if hasattr(f, 'find_columns')]:
        if kind not in ('', *family.KINDS):
            continue
        if entries := family.find_columns(path, columns, named, bool(kind)):
            return {'kind': kind or family.KINDS[0], **entries}
    roles = _roles(path, columns, named)
    entries = {'kind': kind} if kind else _kind(path, families, columns, roles)
    return {**entries, 'columns': roles}


def _lasting(path: str) -> str:
    is_local = '://' not in path and not hub.is_meant(path)
    return os.path.abspath(path) if is_local else path


def _name(train: str) -> str:
    """Return what a task is called by its training file: train.tsv says less than its folder."""
    if hub.is_meant(train):
        return re.sub(r'\W+', '-', os.path.basename(train.removeprefix('hf:').split(':')[0]))
    stem = os.path.splitext(os.path.basename(plain_name(train)))[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(train)))
    return folder if stem.startswith('train') and folder else stem


def _columns(table: Table, header: bool | None) -> tuple[list[Cells], bool]:
    """Return the columns of a table, and whether its first row names them."""
    rows: list[Any] = list(
        itertools.islice(table.raw(), 1000 if hub.is_meant(table.path) else None)
    )
    if not rows:
        raise UserError(f'{table.path}: no examples')
    first = rows[0]
    if isinstance(first, Mapping):
        names = list(dict.fromkeys(name for row in rows[:100] for name in row))
        every = rows[:: -(-len(rows) // _ROWS)]
        return [Cells(name, [row.get(name) for row in every]) for name in names], True

    # Rows of another width are the reader's to refuse, by their line.
    others = [row for row in rows[1:] if len(row) == len(first)]
    if len(first) < 2:
        other = next((s for s in (';', ',', '\t', '|') if s in first[0]), None)
        hint = 'a text and its label are two'
        if other:
            hint = f'its first row has {other!r}: save it with tabs as .tsv, or with commas as .csv'
        raise UserError(f'{table.path}: it has one column as it is read: {hint}')
    others = others[:: -(-len(others) // _ROWS)] if others else []
    below = [Cells(i, [row[i] for row in others]) for i in range(len(first))]
    if header is None:
        header = _is_header(table.path, first, below)
    if header and not others:
        raise UserError(f'{table.path}: no examples below the names of its columns')
    if header:
        named = (Cells(name, cells.values) for name, cells in zip(first, below, strict=True))
        return [cells for cells in named if cells.key], True
    with_first = ([first[i], *cells.values] for i, cells in enumerate(below))
    return [Cells(i, values) for i, values in enumerate(with_first)], False


def _check_no_header(dev: str, train: str) -> None:
    """Raise UserError for a dev file that names its columns, where the training file does not."""
    first = next(iter(Table(dev, {}).raw()), [])
    names = [] if isinstance(first, Mapping) else [cell.strip().lower() for cell in first]
    if names and all(name in _LABELS or name in _TEXTS for name in names):
        raise UserError(
            f'{dev}: its first row names the columns ({", ".join(first)}), and that of {train} does'
            ' not: give both such a row, or neither'
        )


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
    if len(likely) == 1:
        return likely[0].key
    shown = ', '.join(map(str, likely or columns))[:200]
    what = 'may each be the label' if likely else 'do not look like labels'
    raise UserError(f'{path}: columns {shown} {what}: say which, as in {_option(columns)}')


def _option(columns: Sequence[Cells]) -> str:
    """Return the option that names columns; of a table without texts also that for words."""
    if any(cells.are_texts for cells in columns):
        return _OPTION
    return f'{_OPTION}, or {word_columns.OPTION} where each row is a word'


def _texts(path: str, columns: Sequence[Cells]) -> dict[str, str | int]:
    """Return the column of the text, or those of both."""
    names = {cells.name: cells.key for cells in columns if cells.name}
    for pair in _PAIRS:
        if set(pair) <= set(names):
            return {'text': names[pair[0]], 'text_b': names[pair[1]]}
    for pair in itertools.combinations(names, 2):
        if _is_pair(*pair) and all(c.are_texts for c in columns if c.name in pair):
            return {'text': names[pair[0]], 'text_b': names[pair[1]]}

    # By what is in them; a name decides among several.
    texts = [cells for cells in columns if cells.are_texts]
    if len(texts) != 1:
        by_name = [name for name in _TEXTS if name in names]
        if len(by_name) == 1 or (by_name and len(texts) < 1):
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


def _kind(
    path: str, families: Sequence[Any], columns: Sequence[Cells], roles: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entries of the family whose labels these are; UserError where none is clear."""
    by_key = {cells.key: cells for cells in columns}

    # A place from the end, as --columns takes it.
    def at(key: Any) -> Any:
        if isinstance(key, list):
            return [by_key[each] for each in key]
        return by_key[key] if key in by_key else columns[key]

    # From the special to the general, as they are listed.
    for family in reversed([f for f in families if hasattr(f, 'looks_like')]):
        entries = family.looks_like(path, {role: at(key) for role, key in roles.items()})
        if entries:
            return entries
    raise UserError(f'{path}: no kind of task has such labels: give --kind')
