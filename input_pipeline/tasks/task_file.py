"""A user's own task as a JSON file: which file it is, and of what type each entry is.

This file owns the types, the tables that a file names, and the labels of a task that lists none. It
must not know which entries a kind of task has: that is its class's (`Task.from_task_file`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Files
from bert_jax.input_pipeline.text.data_sets import is_hub_name
from bert_jax.input_pipeline.text.encodings import located, plain_name, read_json, well_formed
from bert_jax.input_pipeline.text.tables import FORMATS, Part, Table

# How a file is read: of the whole task, or of one file in an object of its own.
TABLE_ENTRIES = ('columns', 'header', 'format', 'skip_bad_rows', 'only')
# Of tasks with labels: also how a dev split is drawn from the rows of the training files, where
# there is no dev file.
LABEL_ENTRIES = ('labels', 'metrics', 'dev_share', 'dev_seed')
# Roles that draw no row: equal texts are in the same part, whatever is said of them.
_NOT_DRAWN_BY = ('label', 'tags', 'id')
# Different labels that are still taken for labels, where nobody has listed them.
_MOST_LABELS = 1000

_NAME = 'a text that is not empty'
_COLUMN, _SCALAR = (_NAME, int), (str, bool, float)
# Entry -> (what it must be, the same in words).
_TYPES: dict[str, tuple[Any, str]] = {
    'files': (dict, 'an object of split -> file, as in {"train": "train.tsv"}'),
    'columns': (
        {str: (*_COLUMN, [_COLUMN])},
        'an object of what -> the name or the place of its column, as in {"text": "sentence",'
        ' "label": 1}',
    ),
    'only': (
        {str: _SCALAR},
        'an object of column -> what stands there in the rows to be read, as in {"language": "de"}',
    ),
    'labels': (
        ([_SCALAR], {str: _SCALAR}),
        'a list of texts or numbers, as in ["neg", "pos"], or an object of what stands in the files'
        ' -> its name, as in {"0": "neg", "1": "pos"}',
    ),
    'metrics': ([_NAME], 'a list of different names, as in ["accuracy"]'),
    'file': (_NAME, 'the name of a file'),
    'tfds': (_NAME, 'the name of a data set of tensorflow-datasets'),
    'data_dir': (_NAME, 'the name of a folder'),
    'comment': (str, 'a text'),
    'score_range': ([float], 'the least and the greatest score, as in [0, 5]'),
    'prompts': (
        {str: str},
        'an object of name -> the text that goes before texts, as in {"query": "query: "}',
    ),
    'null_threshold': (float, 'a finite number'),
    'dev_share': (float, 'the share of the training rows to hold out, as in 0.1'),
    'dev_seed': (int, 'a whole number'),
    'separator': (_NAME, 'what parts the labels in a cell, as in "|"'),
    **dict.fromkeys(('kind', 'split', 'format', 'scorer'), (_NAME, 'a text')),
    **dict.fromkeys(
        ('header', 'skip_bad_rows', 'class_names', 'document_context', 'unanswerable'),
        (bool, 'true or false'),
    ),
}


@dataclass(frozen=True)
class TaskFile:
    """A JSON task file, or what one would hold of a user's table.

    Attributes:
      name: of the task.
      description: the entries.
      folder: what names of files are relative to.
    """

    name: str
    description: Mapping[str, Any]
    folder: str = ''

    @classmethod
    def read(cls, path: str, folder: str = '') -> TaskFile:
        """Read a file; its data are in its own folder unless one is given.

        Raises:
          UserError: it describes no task, or an entry has a wrong type.
        """
        # Names that come twice are refused (`unique`), for one of the two would be passed over.
        if located(path) is None:
            raise UserError(f'--task={path}: no such file')
        description = read_json(path, unique=True)
        if not isinstance(description, dict) or 'kind' not in description:
            raise UserError(f'--task={path}: a task file is a JSON object with "kind"')
        _check_types(f'--task={path}', description)

        # Results are filed under the file's own name.
        name = os.path.splitext(os.path.basename(plain_name(path)))[0]
        return cls(name, description, folder or os.path.dirname(path) or '.')

    def get(self, entry: str, default: Any = None) -> Any:
        """Return an entry, or a default where it is not given."""
        return self.description.get(entry, default)

    def tables(
        self,
        roles: Mapping[str, bool],
        own_entries: Collection[str],
        formats: tuple[str, ...] = FORMATS,
        lists: Collection[str] = (),
    ) -> Files:
        """Return its `files`: split -> tables, read one after the other.

        `files` maps a split to a file, a list of files, or an object {"file"} or {"tfds", "split"}
        that may also have TABLE_ENTRIES of its own, in place of the description's.

        Args:
          roles: the columns that this kind of task has, and whether they must be given.
          own_entries: those that it has besides `kind`, `files` and TABLE_ENTRIES.
          formats: those that it reads.
          lists: those of the columns that may be several.

        Raises:
          UserError: an entry is of another kind of task, or there are no files.
        """
        allowed = ('kind', 'files', *own_entries, *TABLE_ENTRIES)
        unknown = sorted(set(self.description) - set(allowed))
        if unknown:
            raise UserError(
                f'task {self.name}: unknown entries {unknown}; a {self.get("kind")} task has'
                f' {", ".join(allowed)}'
            )
        if not self.get('files'):
            raise UserError(f"task {self.name}: missing entries ['files']")

        # Settings of the whole task hold for every file, unless its own object says otherwise.
        shared = {entry: self.get(entry) for entry in TABLE_ENTRIES if entry in self.description}
        files: dict[str, tuple[Table, ...]] = {}
        for split, entries in self.get('files').items():
            if not re.fullmatch(r'\w[\w.-]*', split):  # it names the files of results
                raise UserError(
                    f'task {self.name}: files: the name of a split is letters, digits, ".", "-" and'
                    f' "_", not {split!r}'
                )

            # A split is one entry or a list of them; an entry is a file's name or an object.
            if entries == []:
                raise UserError(f'task {self.name}: files.{split} is an empty list')
            tables = []
            for entry in entries if isinstance(entries, list) else [entries]:
                settings = {**shared, **(entry if isinstance(entry, dict) else {'file': entry})}
                of_split = f'task {self.name}: files.{split}'
                _check_table(of_split, settings, formats)
                _check_columns(of_split, settings.get('columns', {}), roles, lists)
                tables.append(self._make_table(settings))
            files[split] = tuple(tables)
        return self._hold_out(files, roles)

    def _make_table(self, settings: dict[str, Any]) -> Table:
        # Labels and what `only` looks for may be numbers in JSON; in the files they are text.
        columns = settings.pop('columns', {})
        only = {name: str(value) for name, value in settings.pop('only', {}).items()}
        # Of a data set the folder of data sets.
        path = settings.pop('file', None) or settings.pop('data_dir', '')
        if path and not is_hub_name(path):
            path = os.path.join(self.folder, path)
        return Table(path, columns, only=only, **settings)

    def _hold_out(self, files: dict[str, tuple[Table, ...]], roles: Iterable[str]) -> Files:
        """Return the files with a dev split that is drawn from the training files, if asked."""
        share, seed = self.get('dev_share'), self.get('dev_seed')
        if share is None:
            if seed is not None:
                raise UserError(
                    f'task {self.name}: "dev_seed" is for "dev_share", which is not there'
                )
            return files
        if not 0 < share < 1:
            raise UserError(f'task {self.name}: "dev_share" must be between 0 and 1, not {share}')
        if 'dev' in files or 'train' not in files:
            raise UserError(
                f'task {self.name}: "dev_share" holds rows of the file of "train" out where there'
                ' is no "dev"'
            )
        by = tuple(role for role in roles if role not in _NOT_DRAWN_BY)
        for split in ('dev', 'train'):
            part = Part(share, seed or 0, split == 'dev', by)
            files[split] = tuple(dataclasses.replace(table, part=part) for table in files['train'])
        return files

    def labels(
        self,
        files: Files,
        default: Sequence[Any] = (),
        read_labels: Callable[[Table], Iterable[tuple[str, str]]] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the labels in order, and {how the files spell one: its label} if they differ.

        Args:
          files: the tables of each split.
          default: the labels of a task that lists none; if () those of its training files, sorted.
          read_labels: yields ('file:line', label) of each label of a table; None: one a row.

        Raises:
          UserError: the training files have too few or too many, or some that differ in case and
            blanks alone.
        """
        # Labels may be numbers in JSON; in the files they are text.
        given = self.get('labels') or default
        if not given:
            return _find_labels(files, read_labels or _read_labels), {}
        if not isinstance(given, Mapping):
            return tuple(map(str, given)), {}
        # Several spellings may have one name, as in {"Pos": "pos", "pos": "pos"}.
        labels = tuple(dict.fromkeys(map(str, given.values())))
        return labels, {name: str(label) for name, label in given.items()}


def is_task_file(name: str) -> bool:
    """Tell whether that is the path of a task file, not the name of a task."""
    return plain_name(name).endswith('.json')


def _check_types(name: str, entries: Mapping[str, Any]) -> None:
    """Raise UserError, which begins with `name`, for an entry of another type than it must be."""
    # Entries that are not listed are the family's to refuse: it knows its own.
    for entry, value in entries.items():
        if entry in _TYPES and not _is(value, _TYPES[entry][0]):
            shown = json.dumps(value)
            shown = shown if len(shown) <= 80 else f'{shown[:80]}...'
            raise UserError(f'{name}: "{entry}" is {_TYPES[entry][1]}, not {shown}')


def _is(value: Any, kind: Any) -> bool:
    """Tell whether a value of JSON is of a kind, or of one of several, as `_TYPES` has them."""
    if isinstance(kind, tuple):
        return any(_is(value, each) for each in kind)
    if isinstance(kind, list):
        if not isinstance(value, list) or not all(_is(entry, kind[0]) for entry in value):
            return False
        # Names must differ, and only labels may be none.
        differ = kind[0] is not _NAME or len(set(value)) == len(value)
        return differ and (value != [] or kind[0] is _SCALAR)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_is(v, kind[str]) for v in value.values())
    if kind in (str, _NAME):
        return isinstance(value, str) and well_formed(value) and (kind is str or value != '')
    # type, not isinstance: true is an int there
    if kind is float:
        return type(value) in (int, float) and abs(value) < math.inf
    return type(value) is kind


def _check_table(name: str, settings: Mapping[str, Any], formats: Sequence[str]) -> None:
    """Raise UserError, which begins with `name`, for a file that is not said as one can be."""
    _check_types(name, settings)
    # tensorflow-datasets have a split and a folder of their own; files have none
    if ('file' in settings) == ('tfds' in settings):
        raise UserError(
            f'{name}: expected a file name, a list of them, or an object with "file", or with'
            f' "tfds" and "split", not {json.dumps(settings)}'
        )
    of_tfds = ('tfds', 'split', 'data_dir', 'class_names')
    entries = (*(of_tfds if 'tfds' in settings else ('file',)), *TABLE_ENTRIES)
    unknown = sorted(set(settings) - set(entries))
    if unknown:
        raise UserError(
            f'{name}: unknown entries {unknown}; a file has {", ".join(entries)}: move'
            ' what holds for the whole task out of "files"'
        )
    if settings.get('format', '') not in ('', *formats):
        raise UserError(f'{name}: format {settings["format"]!r} is none of {", ".join(formats)}')


def _check_columns(
    name: str,
    columns: Mapping[str, Any],
    roles: Mapping[str, bool],
    lists: Collection[str],
) -> None:
    """Raise UserError, which begins with `name`, for columns that a kind of task has not."""
    unknown = sorted(set(columns) - set(roles))
    if unknown:
        raise UserError(f'{name}: unknown columns {unknown}; columns are {", ".join(roles)}')
    missing = [role for role, needed in roles.items() if needed and role not in columns]
    if missing:
        raise UserError(f'{name}: "columns" does not say which column is {missing}')
    for role, column in columns.items():
        if isinstance(column, list) and role not in lists:
            raise UserError(f'{name}: columns.{role} is one column, not a list')


def _read_labels(table: Table) -> Iterator[tuple[str, str]]:
    """Yield ('file:line', label) of each row."""
    lists = frozenset(table.columns) - {'label'}
    yield from ((line, row['label']) for line, row in table.rows(lists=lists))


def _find_labels(
    files: Files, read_labels: Callable[[Table], Iterable[tuple[str, str]]]
) -> tuple[str, ...]:
    """Return the labels of the training files, in order; numbers by what they are."""
    tables = files['train' if 'train' in files else next(iter(files))]
    name = ', '.join(table.where for table in tables)
    given = (pair for table in tables for pair in read_labels(table))
    # Where each was first, by its spelling and by that without case and blanks.
    first: dict[str, str] = {}
    alike: dict[str, str] = {}
    rows = 0
    for line, label in given:
        rows += 1
        if label in first:
            continue
        if not label.strip():
            raise UserError(f'{line}: no label: fill it in, or leave the row out')
        other = alike.setdefault(label.strip().casefold(), label)
        if other != label:
            both = json.dumps({other: other, label: other}, ensure_ascii=False)
            raise UserError(
                f'{line}: label {label!r}, and {other!r} at {first[other]}: spell them alike, or'
                f' say so in a task file, "labels": {both[:100]}'
            )
        first[label] = line
    if len(first) < 2:
        only = f'the label {next(iter(first))!r} alone' if first else 'no labels'
        raise UserError(f'{name}: it has {only}, and a task needs two or more: is it the column?')
    if len(first) > min(_MOST_LABELS, max(20, rows // 2)):
        raise UserError(
            f'{name}: {len(first)} different labels in {rows} rows: is it the column? For numbers'
            ' the kind is regression; as classes they must be listed in a task file, "labels"'
        )
    return tuple(sorted(first, key=_label_order))


def _label_order(label: str) -> tuple[bool, float, str]:
    """Return by what labels are sorted: numbers first, by what they are."""
    # In digits: float() would take "nan" and "infinity" too.
    is_number = re.fullmatch(r'[-+]?\d+(\.\d+)?', label)
    return (not is_number, float(label) if is_number else 0.0, label)


def word_unknown_label(name: str, label: str, labels: Sequence[str]) -> str:
    """Return what to say of a label in a file that the task does not have."""
    # The likeliest mistakes: a data set that numbers its labels, and capitals.
    hint = ': leave its rows out, or give the task that label'
    alike = [spelling for spelling in labels if spelling.casefold() == label.strip().casefold()]
    if label.isdecimal() and not any(map(str.isdecimal, labels)):
        hint = '; numbers are given names by "labels": {"0": ..., "1": ...}'
    elif alike and alike[0]:
        hint = f': spell it as {alike[0]!r}'
    return f'unknown label {label!r}; task {name} has {", ".join(labels)}{hint}'
