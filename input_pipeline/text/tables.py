"""A task's files as rows of named columns: TSV, CSV, JSON lines and tensorflow-datasets.

This file owns which file is read as what, and that the first bad row refuses it, by file and line
(rows.py has the words). It must not know what the columns mean. record_files.py reads text of any
length to be answered, where a bad row is a record of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text import rows
from bert_jax.input_pipeline.text.rows import BadRecord, Cell, Column
from bert_jax.input_pipeline.text.whole_text import parse_json, plain_name, read_utf8

FORMATS = ('tsv', 'csv', 'jsonl')
_SUFFIXES = {'.tsv': 'tsv', '.txt': 'tsv', '.csv': 'csv', '.jsonl': 'jsonl', '.json': 'jsonl'}


@dataclass(frozen=True)
class Table:
    """A file and the columns wanted from it.

    Attributes:
      path: the file; for tensorflow-datasets the folder that holds them, '' for its own default.
      columns: role -> column, by its name in the header (or JSON key, `a.b` for b inside a) or by
        its number from 0 (-1 is the last), or a list of columns.
      header: whether the first line names the columns.
      format: tsv, csv or jsonl; '' goes by the file's suffix.
      skip_bad_rows: leave out rows of another width than the header's, and say how many, instead of
        refusing the file.
      only: column -> its value in the rows that are wanted; the others are passed over.
      tfds: a tensorflow-datasets name, to be read instead of a file.
      split: which split of `tfds`.
      class_names: of `tfds`, whether a class label is given by its name, or else as a number.
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

    @property
    def where(self) -> str:
        """Return what errors call it."""
        return f'tfds:{self.tfds}' if self.tfds else self.path

    @property
    def _read(self) -> dict[str, Column | list[Column]]:
        """Return role -> column of all that is read of a row, and so also what `only` needs."""
        # Without a header it is a number, which is a text too where it names an entry of JSON.
        by_number = lambda name: not self.header and re.fullmatch(r'-?\d+', name)
        only = {_only(name): int(name) if by_number(name) else name for name in self.only}
        return {**self.columns, **only}

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
        wanted = {_only(column): value for column, value in self.only.items()}
        for location, row in self._rows(optional):
            if any(str(row.pop(role)) != value for role, value in wanted.items()):
                continue
            # A list under a role that takes one text would be trained on as its Python spelling.
            if wrong := [
                role for role, cell in row.items() if isinstance(cell, list) and role not in lists
            ]:
                raise UserError(f'{location}: {wrong[0]!r} is a list where a text is wanted')
            yield location, row

    def _rows(self, optional: frozenset[str]) -> Iterator[tuple[str, dict[str, Cell]]]:
        # A data set: its records have no lines, so they are named by number.
        if self.tfds:
            from bert_jax.input_pipeline.text.tfds_rows import records

            data = records(self.tfds, self.split, self.path, self.class_names)
            yield from self._record_rows(
                ((f'tfds:{self.tfds}:{number}', record) for number, record in enumerate(data)),
                optional,
            )
            return

        # A file: read as a whole (a task's files are small), and refused as a whole where it is no
        # UTF-8.
        suffix = os.path.splitext(plain_name(self.path))[1]
        form = self.format or _SUFFIXES.get(suffix, '')
        if form not in FORMATS:
            raise UserError(
                f'{self.path}: cannot tell the format from the name; set "format" to one of'
                f' {", ".join(FORMATS)}'
            )
        text = read_utf8(self.path)
        if form == 'jsonl':
            yield from self._record_rows(self._json_records(text), optional)
        else:
            yield from self._delimited_rows(text, form, optional)

    def _delimited_rows(
        self, text: str, form: str, optional: frozenset[str]
    ) -> Iterator[tuple[str, dict[str, Cell]]]:
        # Only \n ends a row of TSV, because texts hold other line separators; only CSV may have
        # line ends inside a cell.
        lines: Iterable[tuple[int, list[str] | BadRecord]]
        if form == 'tsv':
            numbered = enumerate(text.split('\n'), start=1)
            lines = rows.tsv_rows((number, line.removesuffix('\r')) for number, line in numbered)
        else:
            lines = rows.csv_rows(io.StringIO(text, newline=''), self.path, '"format": "tsv"')
        width = skipped = 0

        def columns_of(first: list[str]) -> dict[str, int | list[int]]:
            nonlocal width
            width = len(first)
            return self._columns_of(first, optional)

        for number, row in rows.table(lines, columns_of, self.header, form, self.path):
            # Rows of another width: left out where the table says so, else they refuse the file.
            if not isinstance(row, BadRecord):
                yield f'{self.path}:{number}', row
            elif not self.skip_bad_rows:
                raise UserError(f'{self.path}:{number}: {row.reason}')
            else:
                skipped += 1

        # Said once at the end: QQP has a few, another file might have half of its rows.
        if skipped:
            logging.warning(
                '%s: left out %d rows that do not have %d columns', self.path, skipped, width
            )

    def _columns_of(self, first: list[str], optional: frozenset[str]) -> dict[str, int | list[int]]:
        """Return role -> number or numbers of its columns, from the first line."""
        columns: dict[str, int | list[int]] = {}

        # A role may be several columns (the endings of a choice); then it is there only with all of
        # them.
        for role, wanted in self._read.items():
            several = wanted if isinstance(wanted, list) else [wanted]
            indices = [self._index(column, first) for column in several]
            present = [index for index in indices if index is not None]
            if len(present) == len(indices):
                columns[role] = present if isinstance(wanted, list) else present[0]
            elif role not in optional:
                missing = rows.no_column(several[indices.index(None)], role, first)
                raise UserError(f'{self.path}: {missing}')
        return columns

    def _index(self, column: Column, first: list[str]) -> int | None:
        """Return the number of a column; None where it is not there."""
        if isinstance(column, str) and not self.header:
            raise UserError(
                f'{self.path}: column {column!r} is named but the file has no header; give its'
                ' place from 0'
            )
        if isinstance(column, str) and first.count(column) > 1:
            raise UserError(
                f'{self.path}: {first.count(column)} columns are named {column!r}: '
                'give the place of the one that is meant, from 0'
            )
        return rows.column_index(column, first, self.header)

    def _json_records(self, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ('file:line', object) of each line, or of each entry of one JSON list."""
        # One list of objects: entries have no lines of their own, so they are named by number.
        if text.lstrip().startswith('['):
            with _refusing(self.path):
                entries = parse_json(text)
            for number, record in enumerate(entries):
                if not isinstance(record, dict):
                    raise UserError(f'{self.path}: entry {number} is not a JSON object')
                yield f'{self.path}: entry {number}', record
            return

        # JSON lines; blank ones are passed over, and counted in the line numbers.
        for number, line in enumerate(text.split('\n'), start=1):
            if line.strip():
                location = f'{self.path}:{number}'
                with _refusing(location):
                    record = rows.json_object(line)
                yield location, record

    def _record_rows(
        self, records: Iterator[tuple[str, Mapping]], optional: frozenset[str]
    ) -> Iterator[tuple[str, dict[str, Cell]]]:
        """Yield the columns wanted of each record."""
        for location, record in records:
            with _refusing(location):
                row = rows.cells_of(record, self._read, optional)
            yield location, row


def _only(column: str) -> str:
    """Return the role of a column that `only` looks at, which no task has."""
    return f'only {column}'


@contextlib.contextmanager
def _refusing(location: str) -> Iterator[None]:
    """Refuse the file for what is wrong with a row."""
    try:
        yield
    except ValueError as error:
        raise UserError(f'{location}: {error}') from error


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
