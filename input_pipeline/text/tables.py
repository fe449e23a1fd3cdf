"""Rows of named columns: how TSV, CSV and JSON are cut, and the tables of a task's files.

What is wrong with a row is a BadRecord with the words for it, without the line. A `Table` refuses
the file there, by file and line; record_files.py, which reads text of any length to be answered,
gives a bad record of that line alone. TSV has no quoting, as GLUE (a quote is a character like any
other, a row is a line); CSV has RFC 4180 quoting. A table may also be parquet, or a data set of
tensorflow-datasets, or one of the Hugging Face Hub by hf:NAME:SPLIT. This file owns which file is
read as what. It must not know what columns mean.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import digest64
from bert_jax.input_pipeline.text.data_sets import (
    is_hub_name,
    iterate_hub_rows,
    iterate_parquet_rows,
    iterate_tfds_rows,
)
from bert_jax.input_pipeline.text.encodings import parse_json, plain_name, read_utf8, well_formed

FORMATS = ('tsv', 'csv', 'jsonl', 'parquet')
SUFFIXES = {
    '.tsv': 'tsv',
    '.txt': 'tsv',
    '.csv': 'csv',
    '.jsonl': 'jsonl',
    '.json': 'jsonl',
    '.parquet': 'parquet',
}
_OF_RECORDS = ('jsonl', 'parquet')  # whose rows have names, and no width
Column = str | int  # its name, or its number from 0
Columns = Mapping[str, Column | list[Column]]  # role -> its column, or its columns
# A list where the column is one of a JSON or tensorflow-datasets record, or a list of columns.
Cell = str | list[str]
P = TypeVar('P')  # where a record is: the number of its line, or words
_SHOWN = 200  # characters of a list of names


@dataclass(frozen=True)
class BadRecord:
    """What is wrong with a line, in words."""

    reason: str


Lines = Iterable[tuple[int, str | BadRecord]]  # (number, line without its end)
Cells = Iterator[tuple[int, list[str] | BadRecord]]  # (number of a row's first line, cells)
Row = dict[str, Cell] | BadRecord  # {role: its cell}


@dataclass(frozen=True)
class Wanted:
    """What is wanted of the rows of a file.

    Attributes:
      path: what errors call the file.
      columns: role -> its column, or its columns; of a record its entry, `a.b` for b inside a.
      optional: roles that are left out where their columns are absent, or entries null.
      header: whether the first row has names and is no record.
      mend: how the user names the column of a role, which is put in place of {}.
    """

    path: str
    columns: Columns
    optional: Collection[str]
    header: bool = True
    mend: str = ''


def read_records(entries: Iterable[tuple[P, Any]], wanted: Wanted) -> Iterator[tuple[P, Row]]:
    """Yield (location, {role: its cell}) of each entry: a mapping, JSON of one, or a BadRecord."""
    for location, entry in entries:
        try:
            if isinstance(entry, BadRecord):
                yield location, entry
            elif not isinstance(entry, str):
                yield location, _read_cells(entry, wanted)
            elif entry.strip():
                yield location, _read_cells(parse_json(entry), wanted)
        except ValueError as error:
            # the parser counts the lines of what it is given, which is one line of the file
            yield location, BadRecord(str(error).replace('line 1 column', 'column'))


def read_lines(lines: Lines, form: str, wanted: Wanted) -> Iterator[tuple[int, Row]]:
    """Yield (number of its line, {role: its cell}) of each row of TSV or CSV, as `form` says.

    Raises:
      UserError: the first row cannot be read, and so no other one; or the quotes of CSV went wrong.
    """
    # The first row, be it names or a record, settles the width and where the columns are.
    indices, width = None, 0
    for number, cells in cut_cells(lines, form, wanted.path):
        if isinstance(cells, BadRecord):
            if indices is None:
                raise UserError(f'{wanted.path}:{number}: {cells.reason}')
            yield number, cells
            continue
        if indices is None:
            indices, width = _find_columns(cells, wanted), len(cells)
            if wanted.header:
                continue
        if len(cells) != width:
            hint = 'a tab inside a text?' if form == 'tsv' else 'a comma without quotes?'
            reason = f'{len(cells)} columns where the first line has {width} ({hint})'
            yield number, BadRecord(reason)
            continue
        row: dict[str, Cell] = {}
        for role, index in indices.items():
            row[role] = [cells[i] for i in index] if isinstance(index, list) else cells[index]
        yield number, row


def cut_cells(lines: Lines, form: str, path: str) -> Cells:
    """Yield (number of its first line, cells) of each row of TSV or CSV, the header's too."""
    if form == 'csv':
        yield from _read_csv(lines, path)
        return
    for number, line in lines:
        if isinstance(line, BadRecord):
            yield number, line
        elif line.removesuffix('\r'):
            yield number, line.removesuffix('\r').split('\t')


def _read_csv(lines: Lines, path: str) -> Cells:
    """Yield (number of its first line, cells) of each row that is not empty, by RFC 4180.

    Cells are parted by semicolons where the first line has those and no comma, as spreadsheets
    write them in most of Europe.
    """
    # The library's own limit of 128 KiB a cell would refuse long contexts.
    csv.field_size_limit(2**31 - 1)
    lines = iter(lines)
    first = list(itertools.islice(lines, 1))
    is_european = all(';' in str(line) and ',' not in str(line) for _, line in first)
    texts = (f'{line}\n' for _, line in itertools.chain(first, lines))
    rows, begin = csv.reader(texts, delimiter=';' if is_european else ',', strict=True), 1
    try:
        for cells in rows:
            if cells:
                # half characters are what is left of bytes that are no UTF-8
                if all(map(well_formed, cells)):
                    yield begin, cells
                else:
                    yield begin, BadRecord('bytes that are not UTF-8 in it')
            begin = rows.line_num + 1
    except csv.Error as error:
        # A quote that is not closed swallows the lines that follow: the row's first line has it.
        raise UserError(
            f'{path}:{begin}: not CSV ({error}); a file without quoting is of the format tsv'
        ) from None


def _find_columns(first: list[str], wanted: Wanted) -> dict[str, int | list[int]]:
    """Return role -> number or numbers of its columns, by the first row."""
    indices: dict[str, int | list[int]] = {}
    for role, of_role in wanted.columns.items():
        # A role of several columns (the endings of a choice) is there only with all of them.
        several = of_role if isinstance(of_role, list) else [of_role]
        present = []
        for column in several:
            if wanted.header and isinstance(column, str) and first.count(column) > 1:
                raise UserError(
                    f'{wanted.path}: {first.count(column)} columns are named {column!r}: '
                    'give the place of the one that is meant, from 0'
                )
            if isinstance(column, int) and -len(first) <= column < len(first):
                present.append(column)  # from the end, too: -1 is the last
            elif wanted.header and column in first:
                present.append(first.index(column))
            elif role not in wanted.optional:
                names = f': {", ".join(first)[:_SHOWN]}' if wanted.header else ' without names'
                raise UserError(
                    f'{wanted.path}: no column {column!r} for {role!r}; it has {len(first)}{names}'
                    + wanted.mend.format(role)
                )
        if len(present) == len(several):
            indices[role] = present if isinstance(of_role, list) else present[0]
    return indices


def _read_cells(record: Any, wanted: Wanted) -> dict[str, Cell]:
    """Return {role: its cell} of a record of JSON or tensorflow-datasets.

    Raises:
      ValueError: an entry is absent, or is neither text nor number nor a list of these.
    """
    if not isinstance(record, Mapping):
        raise ValueError('not a JSON object')
    # Role by role, one column or several; all of a role's columns, or the role is absent.
    row: dict[str, Cell] = {}
    for role, of_role in wanted.columns.items():
        several = of_role if isinstance(of_role, list) else [of_role]
        values = [_get_entry(record, column) for column in several]
        if None not in values:
            value = values if isinstance(of_role, list) else values[0]
            if isinstance(value, list):
                row[role] = [_check_text(item, role) for item in value]
            else:
                row[role] = _check_text(value, role)
        elif role not in wanted.optional:
            # Two mistakes that look alike: the entry is there and null, or it is not there.
            column = several[values.index(None)]
            if column in record:
                raise ValueError(f'{column!r} for {role!r} is null: must be a text')
            names = ', '.join(map(str, record))[:_SHOWN] or 'nothing'
            raise ValueError(
                f'no {column!r} for {role!r}; it has {names}{wanted.mend.format(role)}'
            )
    return row


def _get_entry(record: Mapping, column: Column) -> Any:
    """Return the entry of that name, or of `a.b` the entry b of a; None where there is none."""
    # A name with a dot in it is meant as it stands, if there is one.
    if column in record:
        return record[column]
    value: Any = record
    for step in str(column).split('.'):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _check_text(value: Any, role: str) -> str:
    if isinstance(value, list | dict) or value is None:
        shown = json.dumps(value)[:100]
        raise ValueError(f'{role!r} is not a text or a number, nor a list of these: {shown}')
    if isinstance(value, str) and not well_formed(value):
        raise ValueError(f'{role!r} holds half a character ({ascii(value)[:100]})')
    return str(value)


# ---- tables


class Part(NamedTuple):
    """One of the two parts of a table's rows.

    Attributes:
      share: of the smaller part, from 0 to 1.
      seed: of the draw.
      is_held_out: whether the smaller part is meant, or else the other.
      by: roles whose cells draw; rows that are equal in them are in the same part.
    """

    share: float
    seed: int
    is_held_out: bool
    by: tuple[str, ...]

    def has(self, row: Mapping[str, Cell]) -> bool:
        """Tell whether a row is of this part."""
        cells = (row[role] for role in self.by if role in row)
        drawn = digest64(self.seed, 'held out', *map(str, cells)) / 2.0**64
        return (drawn < self.share) == self.is_held_out


@dataclass(frozen=True)
class Table:
    """A file and the columns wanted from it.

    Attributes:
      path: the file, or hf:NAME[:CONFIG]:SPLIT; for tensorflow-datasets the folder that holds them,
        '' for its own default.
      columns: role -> column, by its name in the header (or JSON key, `a.b` for b inside a) or by
        its number from 0 (-1 is the last), or a list of columns.
      header: whether the first line names the columns.
      format: tsv, csv, jsonl or parquet; '' goes by the file's suffix.
      skip_bad_rows: leave out rows of another width than the header's, and say how many, instead of
        refusing the file.
      only: column -> its value in the rows that are wanted; the others are passed over.
      tfds: a tensorflow-datasets name, to be read instead of a file.
      split: which split of `tfds`.
      class_names: of `tfds`, whether a class label is given by its name, or else as a number.
      part: the part of the rows that is read; None: all of them.
    """

    path: str
    columns: Mapping[str, Column | list[Column]]
    header: bool = True
    format: str = ''
    skip_bad_rows: bool = False
    only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tfds: str = ''
    split: str = 'train'
    class_names: bool = True
    part: Part | None = None

    @property
    def where(self) -> str:
        """Return what errors call it."""
        return f'tfds:{self.tfds}' if self.tfds else self.path

    def rows(
        self, optional: frozenset[str] = frozenset(), lists: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ('file:line', {role: text}) for each row.

        Args:
          optional: roles that are left out where their columns are absent.
          lists: roles that may hold a list of texts, in JSON and tensorflow-datasets.

        Raises:
          UserError: a missing file or column, bytes that are not UTF-8, or malformed rows.
        """
        skipped = 0
        for location, row in self._rows(optional):
            if isinstance(row, BadRecord):
                if not self.skip_bad_rows or self._form in _OF_RECORDS:
                    raise UserError(f'{location}: {row.reason}')
                skipped += 1
                continue
            values = {column: str(row.pop(_only(column))) for column in self.only}
            if values != self.only:
                continue
            # A list under a role that takes one text would be trained on as its Python spelling.
            for role, cell in row.items():
                if isinstance(cell, list) and role not in lists:
                    raise UserError(f'{location}: {role!r} is a list where a text is wanted')
            if self.part is None or self.part.has(row):
                yield location, row

        # Said once at the end: QQP has a few, another file might have half of its rows.
        if skipped:
            logging.warning('%s: left out %d rows of another width', self.path, skipped)

    def raw(self) -> Iterator[list[str] | Mapping[str, Any]]:
        """Yield the cells of each row, its header's too, or records where rows have names.

        Raises:
          UserError: as `rows` does; rows of a wrong width are no mistake here.
        """
        if self._form in _OF_RECORDS:
            for location, record in self._records():
                if isinstance(record, str) and not record.strip():
                    continue
                try:
                    entry = parse_json(record) if isinstance(record, str) else record
                except ValueError as error:
                    raise UserError(f'{location}: {error}') from error
                if not isinstance(entry, Mapping):
                    raise UserError(f'{location}: not a JSON object')
                yield entry
            return
        for number, cells in cut_cells(self._lines(), self._form, self.path):
            if isinstance(cells, BadRecord):
                raise UserError(f'{self.path}:{number}: {cells.reason}')
            yield cells

    @property
    def _form(self) -> str:
        """Return the format of the file; a data set has records, as jsonl has."""
        if self.tfds or is_hub_name(self.path):
            return 'jsonl'
        form = self.format or SUFFIXES.get(os.path.splitext(plain_name(self.path))[1], '')
        if form not in FORMATS:
            raise UserError(
                f'{self.path}: cannot tell the format from the name; set "format" to one of'
                f' {", ".join(FORMATS)}'
            )
        return form

    def _rows(self, optional: frozenset[str]) -> Iterator[tuple[str, Row]]:
        """Yield ('file:line', what is wanted of the row, and what `only` needs) of each row."""
        # Without a header it is a number, which is a text too where it names an entry of JSON.
        columns = dict(self.columns)
        for name in self.only:
            is_number = not self.header and re.fullmatch(r'-?\d+', name)
            columns[_only(name)] = int(name) if is_number else name
        wanted = Wanted(self.path, columns, optional, self.header)
        if self._form in _OF_RECORDS:
            yield from read_records(self._records(), wanted)
            return
        for number, row in read_lines(self._lines(), self._form, wanted):
            yield f'{self.path}:{number}', row

    def _lines(self) -> Iterator[tuple[int, str]]:
        # Only \n ends a row of TSV, because texts hold other line separators; only CSV may have
        # line ends inside a cell.
        yield from enumerate(read_utf8(self.path).split('\n'), start=1)

    def _records(self) -> Iterator[tuple[str, Any]]:
        """Yield ('file:line', JSON) of each line, or the entries of a JSON list or a data set."""
        # Entries have no lines of their own, so they are named by number.
        if self.tfds:
            rows = iterate_tfds_rows(self.tfds, self.split, self.path, self.class_names)
            for number, record in enumerate(rows):
                yield f'tfds:{self.tfds}:{number}', record
            return
        if is_hub_name(self.path) or self._form == 'parquet':
            read = iterate_hub_rows if is_hub_name(self.path) else iterate_parquet_rows
            for number, record in enumerate(read(self.path)):
                yield f'{self.path}: row {number}', record
            return

        # A file: read as a whole (a task's files are small), and refused as a whole where it is no
        # UTF-8.
        text = read_utf8(self.path)
        if not text.lstrip().startswith('['):
            for number, line in enumerate(text.split('\n'), start=1):
                yield f'{self.path}:{number}', line
            return
        try:
            entries = parse_json(text)
        except ValueError as error:
            raise UserError(f'{self.path}: {error}') from error
        for number, entry in enumerate(entries):
            # a text in the list is no JSON of a record
            if isinstance(entry, str):
                entry = BadRecord('not a JSON object')
            yield f'{self.path}: entry {number}', entry


def _only(column: str) -> str:
    """Return the role of a column that `only` looks at, which no task has."""
    return f'only {column}'


def unique_id(row: Mapping[str, Cell], location: str, lines: dict[str, str]) -> str:
    """Return the row's id, or its number from 0 where no column holds one.

    Raises:
      UserError: `lines` (id -> its location) has it already.
    """
    # `lines` has an entry for each row so far, so its size is the row's number.
    name = str(row['id']) if 'id' in row else str(len(lines))
    if name in lines:
        raise UserError(f'{location}: id {name!r} again, it was at {lines[name]}')
    lines[name] = location
    return name
