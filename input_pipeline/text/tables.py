"""Delimited files, JSON lines and tensorflow-datasets as rows of named columns.

This file owns how TSV, CSV and JSONL are read, and the message for each way in which such
a file can be wrong. It must not know what the columns mean. TSV has no quoting, as GLUE
(a quote is a character like any other, a row is a line); CSV has RFC 4180 quoting.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from absl import logging

from configs.errors import UserError
from input_pipeline.text.whole_text import parsed, plain_name, read_utf8, well_formed

FORMATS = ('tsv', 'csv', 'jsonl')
Column = str | int
# A list where the column is one of a JSON or tensorflow-datasets record, or a list of columns.
Cell = str | list[str]
_SUFFIXES = {'.tsv': 'tsv', '.txt': 'tsv', '.csv': 'csv', '.jsonl': 'jsonl', '.json': 'jsonl'}


@dataclass(frozen=True)
class Table:
    """A file and the columns wanted from it.

    Attributes:
      path: the file; for tensorflow-datasets the folder that holds them, '' for its own default.
      columns: role -> column, by its name in the header (or JSON key, `a.b` for b inside a) or by
        its place from 0 (-1 is the last), or a list of columns.
      header: whether the first line names the columns.
      format: tsv, csv or jsonl; '' goes by the file's suffix.
      skip_bad_rows: leave out rows of another width than the header's, and say how many, instead of
      refusing the file.
      tfds: a tensorflow-datasets name, to be read instead of a file.
      split: which split of `tfds`.
      class_names: of `tfds`, whether a class label is given by its name, or else as a number.
    """

    path: str
    columns: Mapping[str, Column | list[Column]]
    header: bool = True
    format: str = ''
    skip_bad_rows: bool = False
    tfds: str = ''
    split: str = 'train'
    class_names: bool = True

    @property
    def where(self) -> str:
        """What errors call it."""
        return f'tfds:{self.tfds}' if self.tfds else self.path

    def rows(
        self, optional: frozenset[str] = frozenset(), lists: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields ('file:line', {role: text}); a role in `optional` is left out where its column is
        absent.

        A role in `lists` may hold a list of texts, in JSON and tensorflow-datasets.
        Raises UserError for a missing file or column, bytes that are not UTF-8, and malformed rows.
        """
        for where, row in self._rows(optional):
            if wrong := [
                role for role, cell in row.items() if isinstance(cell, list) and role not in lists
            ]:
                raise UserError(f'{where}: {wrong[0]!r} is a list where a text is wanted')
            yield where, row

    def _rows(self, optional: frozenset[str]) -> Iterator[tuple[str, dict[str, Cell]]]:
        if self.tfds:
            from input_pipeline.text.tfds_rows import records

            found = records(self.tfds, self.split, self.path, self.class_names)
            yield from self._record_rows(
                ((f'tfds:{self.tfds}:{number}', record) for number, record in enumerate(found)),
                optional,
            )
            return
        suffix = os.path.splitext(plain_name(self.path))[1]
        form = self.format or _SUFFIXES.get(suffix, '')
        if form not in FORMATS:
            raise UserError(
                f'{self.path}: cannot tell the format from the name; set "format" to one of'
                f' {", ".join(FORMATS)}'
            )
        text = read_utf8(self.path)
        yield from (
            self._record_rows(self._json_records(text), optional)
            if form == 'jsonl'
            else self._delimited_rows(text, form, optional)
        )

    def _delimited_rows(
        self, text: str, form: str, optional: frozenset[str]
    ) -> Iterator[tuple[str, dict[str, Cell]]]:
        lines = _tsv_lines(text) if form == 'tsv' else _csv_lines(text, self.path)
        places, width, skipped = None, 0, 0
        for line, cells in lines:
            if places is None:
                width = len(cells)
                places = self._places(cells, optional)
                if self.header:
                    continue
            if len(cells) != width:
                if not self.skip_bad_rows:
                    hint = 'a tab inside a text?' if form == 'tsv' else 'a comma without quotes?'
                    raise UserError(
                        f'{self.path}:{line}: {len(cells)} columns where the first line has {width}'
                        f' ({hint})'
                    )
                skipped += 1
                continue
            where = f'{self.path}:{line}'
            yield (
                where,
                {
                    role: [cells[i] for i in place] if isinstance(place, list) else cells[place]
                    for role, place in places.items()
                },
            )
        if skipped:
            logging.warning(
                '%s: left out %d rows that do not have %d columns', self.path, skipped, width
            )

    def _places(self, first: list[str], optional: frozenset[str]) -> dict[str, int | list[int]]:
        """Role -> place or places, from the first line."""
        places: dict[str, int | list[int]] = {}
        for role, wanted in self.columns.items():
            found = [
                self._place(column, first)
                for column in (wanted if isinstance(wanted, list) else [wanted])
            ]
            there = [place for place in found if place is not None]
            if len(there) == len(found):
                places[role] = there if isinstance(wanted, list) else there[0]
            elif role not in optional:
                column = wanted[found.index(None)] if isinstance(wanted, list) else wanted
                raise UserError(
                    f'{self.path}: no column {column!r} for {role!r}; it has {len(first)}:'
                    f' {", ".join(first)[:200]}'
                )
        return places

    def _place(self, column: Column, first: list[str]) -> int | None:
        """Where a column is in a row; None where it is not."""
        if isinstance(column, int):
            return column if -len(first) <= column < len(first) else None
        if not self.header:
            raise UserError(
                f'{self.path}: column {column!r} is named but the file has no header; give its'
                ' place from 0'
            )
        if first.count(column) > 1:
            raise UserError(
                f'{self.path}: {first.count(column)} columns are named {column!r}: '
                'give the place of the one that is meant, from 0'
            )
        return first.index(column) if column in first else None

    def _json_records(self, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """('file:line', object) of each line, or of each entry of a file that is one JSON list."""
        if text.lstrip().startswith('['):
            for number, record in enumerate(parsed(text, self.path)):
                if not isinstance(record, dict):
                    raise UserError(f'{self.path}: entry {number} is not a JSON object')
                yield f'{self.path}: entry {number}', record
            return
        for number, line in enumerate(text.split('\n'), start=1):
            if not line.strip():
                continue
            where = f'{self.path}:{number}'
            record = parsed(line, where)
            if not isinstance(record, dict):
                raise UserError(f'{where}: expected a JSON object on each line')
            yield where, record

    def _record_rows(
        self, records: Iterator[tuple[str, Mapping]], optional: frozenset[str]
    ) -> Iterator[tuple[str, dict[str, Cell]]]:
        """The columns wanted of each record."""
        for where, record in records:
            row: dict[str, Cell] = {}
            for role, wanted in self.columns.items():
                values = [
                    _value(record, column)
                    for column in (wanted if isinstance(wanted, list) else [wanted])
                ]
                if None not in values:
                    row[role] = _cell(
                        values if isinstance(wanted, list) else values[0], where, role
                    )
                elif role not in optional:
                    column = wanted[values.index(None)] if isinstance(wanted, list) else wanted
                    if column in record:
                        raise UserError(f'{where}: {column!r} for {role!r} is null')
                    raise UserError(
                        f'{where}: no {column!r} for {role!r}; it has'
                        f' {", ".join(map(str, record))[:200]}'
                    )
            yield where, row


def _value(record: Mapping, column: Column) -> Any:
    """The entry of that name, or of `a.b` the entry b of a; None where there is none."""
    if column in record:
        return record[column]
    value: Any = record
    for step in str(column).split('.'):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _cell(value: Any, where: str, role: str) -> Cell:
    """A scalar as text, a list as texts."""
    return (
        [_text(item, where, role) for item in value]
        if isinstance(value, list)
        else _text(value, where, role)
    )


def _text(value: Any, where: str, role: str) -> str:
    if isinstance(value, list | dict) or value is None:
        raise UserError(f'{where}: {role!r} is not a text or a number: {json.dumps(value)[:100]}')
    if isinstance(value, str) and not well_formed(value):
        raise UserError(f'{where}: {role!r} holds half a character ({ascii(value)[:100]})')
    return str(value)


def unique_id(row: Mapping[str, Cell], where: str, lines: dict[str, str]) -> str:
    """The row's id, its number from 0 where no column holds one. UserError where `lines` (id ->
    where) has it already.
    """
    name = str(row['id']) if 'id' in row else str(len(lines))
    if name in lines:
        raise UserError(f'{where}: id {name!r} again, it was at {lines[name]}')
    lines[name] = where
    return name


def _tsv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells); only \\n ends a row, because texts hold other line separators."""
    for number, line in enumerate(text.split('\n'), start=1):
        line = line.removesuffix('\r')
        if line:
            yield number, line.split('\t')


def _csv_lines(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the row's last line, cells)."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(text, newline=''), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(
            f'{path}:{reader.line_num}: not CSV ({error}); a file without quoting is "format":'
            ' "tsv"'
        ) from error
