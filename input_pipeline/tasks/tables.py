"""Delimited and JSON-lines files as rows of named columns.

This file owns how TSV, CSV and JSONL are read, and the message for each way in which such
a file can be wrong. It must not know what the columns mean. TSV has no quoting, as GLUE
(a quote is a character like any other, a row is a line); CSV has RFC 4180 quoting.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass

from absl import logging

from configs.errors import UserError

FORMATS = ('tsv', 'csv', 'jsonl')
_SUFFIXES = {'.tsv': 'tsv', '.txt': 'tsv', '.csv': 'csv', '.jsonl': 'jsonl', '.json': 'jsonl'}


@dataclass(frozen=True)
class Table:
    """A file and the columns wanted from it.

    Attributes:
      path: the file.
      columns: role -> column, by its name in the header (or JSON key) or by its place from 0; -1 is the last.
      header: whether the first line names the columns.
      format: tsv, csv or jsonl; '' goes by the file's suffix.
      skip_bad_rows: leave out rows of another width than the header's, and say how many, instead of refusing the file.
    """

    path: str
    columns: dict[str, str | int]
    header: bool = True
    format: str = ''
    skip_bad_rows: bool = False

    def rows(self, optional: frozenset[str] = frozenset()) -> Iterator[tuple[str, dict[str, str]]]:
        """Yields ('file:line', {role: text}); a role in `optional` is left out where its column is absent.

        Raises UserError for a missing file or column, bytes that are not UTF-8, and malformed rows.
        """
        form = self.format or next((form for suffix, form in _SUFFIXES.items() if self.path.endswith(suffix)), '')
        if form not in FORMATS:
            raise UserError(f'{self.path}: cannot tell the format from the name; set "format" to one of {", ".join(FORMATS)}')
        text = read_utf8(self.path)
        yield from self._json_rows(text, optional) if form == 'jsonl' else self._delimited_rows(text, form, optional)

    def _delimited_rows(self, text: str, form: str, optional: frozenset[str]) -> Iterator[tuple[str, dict[str, str]]]:
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
                    raise UserError(f'{self.path}:{line}: {len(cells)} columns where the first line has {width} ({hint})')
                skipped += 1
                continue
            yield f'{self.path}:{line}', {role: cells[place] for role, place in places.items()}
        if skipped:
            logging.warning('%s: left out %d rows that do not have %d columns', self.path, skipped, width)

    def _places(self, first: list[str], optional: frozenset[str]) -> dict[str, int]:
        """Role -> place, from the first line."""
        places = {}
        for role, column in self.columns.items():
            if isinstance(column, int):
                found = column if -len(first) <= column < len(first) else None
            elif not self.header:
                raise UserError(f'{self.path}: column {column!r} is named but the file has no header; give its place from 0')
            else:
                found = first.index(column) if column in first else None
            if found is not None:
                places[role] = found
            elif role not in optional:
                raise UserError(f'{self.path}: no column {column!r} for {role!r}; it has {len(first)}: {", ".join(first)[:200]}')
        return places

    def _json_rows(self, text: str, optional: frozenset[str]) -> Iterator[tuple[str, dict[str, str]]]:
        for number, line in enumerate(text.split('\n'), start=1):
            if not line.strip():
                continue
            where = f'{self.path}:{number}'
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UserError(f'{where}: not JSON ({error})') from error
            if not isinstance(record, dict):
                raise UserError(f'{where}: expected a JSON object on each line')
            row = {}
            for role, column in self.columns.items():
                if record.get(column) is not None:
                    row[role] = str(record[column])
                elif role not in optional:
                    raise UserError(f'{where}: no {column!r} for {role!r}; it has {", ".join(map(str, record))[:200]}')
            yield where, row


def read_utf8(path: str) -> str:
    """The text of a file, without a BOM. Raises UserError for no file, and names the line of a bad byte."""
    from etils import epath

    try:
        raw = epath.Path(path).read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"{path}: no such file; --data_dir is the folder that holds the task's own files") from error
    try:
        return raw.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = raw.count(b'\n', 0, error.start) + 1
        raise UserError(f'{path}:{line}: byte {error.start} is not UTF-8; convert the file (iconv -t utf-8)') from error


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
        raise UserError(f'{path}:{reader.line_num}: not CSV ({error}); a file without quoting is "format": "tsv"') from error
