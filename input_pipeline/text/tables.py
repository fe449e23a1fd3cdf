"""A task's files as rows of named columns: TSV, CSV, JSON lines, parquet and data sets.

Data sets are those of tensorflow-datasets, and of the Hugging Face Hub by hf:NAME:SPLIT.

This file owns which file is read as what, and that the first bad row refuses it, by file and line
(rows.py has the words). It must not know what the columns mean. record_files.py reads text of any
length to be answered, where a bad row is a record of its own.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import digest64
from bert_jax.input_pipeline.text import hub, parquet, rows
from bert_jax.input_pipeline.text.encodings import parse_json, plain_name, read_utf8
from bert_jax.input_pipeline.text.rows import BadRecord, Cell, Column

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

    @property
    def _read(self) -> dict[str, Column | list[Column]]:
        """Return role -> column of all that is read of a row, and so also what `only` needs."""
        # Without a header it is a number, which is a text too where it names an entry of JSON.
        columns = dict(self.columns)
        for name in self.only:
            is_number = not self.header and re.fullmatch(r'-?\d+', name)
            columns[_only(name)] = int(name) if is_number else name
        return columns

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
        for number, cells in rows.cells_of_lines(self._lines(), self._form, self.path):
            if isinstance(cells, BadRecord):
                raise UserError(f'{self.path}:{number}: {cells.reason}')
            yield cells

    @property
    def _form(self) -> str:
        """Return the format of the file; a data set has records, as jsonl has."""
        if self.tfds or hub.is_meant(self.path):
            return 'jsonl'
        form = self.format or SUFFIXES.get(os.path.splitext(plain_name(self.path))[1], '')
        if form not in FORMATS:
            raise UserError(
                f'{self.path}: cannot tell the format from the name; set "format" to one of'
                f' {", ".join(FORMATS)}'
            )
        return form

    def _rows(self, optional: frozenset[str]) -> Iterator[tuple[str, dict[str, Cell] | BadRecord]]:
        """Yield ('file:line', what is wanted of the row) of each row."""
        form = self._form
        if form in _OF_RECORDS:
            yield from rows.of_records(self._records(), self._read, optional)
            return
        of_lines = rows.of_lines(self._lines(), form, self._read, optional, self.header, self.path)
        for number, row in of_lines:
            yield f'{self.path}:{number}', row

    def _lines(self) -> Iterator[tuple[int, str]]:
        # Only \n ends a row of TSV, because texts hold other line separators; only CSV may have
        # line ends inside a cell.
        yield from enumerate(read_utf8(self.path).split('\n'), start=1)

    def _records(self) -> Iterator[tuple[str, Any]]:
        """Yield ('file:line', JSON) of each line, or the entries of a JSON list or a data set."""
        # Entries have no lines of their own, so they are named by number.
        if self.tfds:
            from bert_jax.input_pipeline.text.tfds_files import records

            all_records = records(self.tfds, self.split, self.path, self.class_names)
            for number, record in enumerate(all_records):
                yield f'tfds:{self.tfds}:{number}', record
            return
        if hub.is_meant(self.path) or self._form == 'parquet':
            read = hub.records if hub.is_meant(self.path) else parquet.records
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
