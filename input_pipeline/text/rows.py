"""Rows of named columns: how TSV, CSV and JSON are cut, and the words for what is wrong.

What is wrong with a row is a BadRecord or a ValueError with those words, without the line:
tables.py refuses the file there, record_files.py gives a bad record of that line alone. This file
must not know where lines come from, nor what columns mean. TSV has no quoting, as GLUE (a quote is
a character like any other, a row is a line); CSV has RFC 4180 quoting.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.whole_text import parse_json, well_formed

Column = str | int  # its name, or its number from 0
# A list where the column is one of a JSON or tensorflow-datasets record, or a list of columns.
Cell = str | list[str]
_SHOWN = 200  # characters of a list of names


@dataclass(frozen=True)
class BadRecord:
    """What is wrong with a line, in words."""

    reason: str


def tsv_rows(
    lines: Iterable[tuple[int, str | BadRecord]],
) -> Iterator[tuple[int, list[str] | BadRecord]]:
    """Yield (number, cells) of each line that is not empty."""
    for number, line in lines:
        if line:
            yield number, line if isinstance(line, BadRecord) else line.split('\t')


def table(
    lines: Iterable[tuple[int, list[str] | BadRecord]],
    columns_of: Callable[[list[str]], Mapping[str, int | list[int]]],
    header: bool,
    form: str,
    path: str,
) -> Iterator[tuple[int, dict[str, Cell] | BadRecord]]:
    """Yield (number, {role: its cell}) of each row of TSV or CSV.

    Args:
      lines: (number, cells) of each row.
      columns_of: role -> number of its column, or numbers, by the first row.
      header: whether the first row has names and is no record.
      form: tsv or csv.
      path: what errors call the file.

    Raises:
      UserError: the first row cannot be read, and so no other one.
    """
    # The first row, be it names or a record, settles the width and where the columns are.
    columns, width = None, 0
    for number, cells in lines:
        if isinstance(cells, BadRecord):
            if columns is None:
                raise UserError(f'{path}:{number}: {cells.reason}')
            yield number, cells
            continue
        if columns is None:
            columns, width = columns_of(cells), len(cells)
            if header:
                continue
        if len(cells) == width:
            yield (
                number,
                {
                    role: [cells[i] for i in column] if isinstance(column, list) else cells[column]
                    for role, column in columns.items()
                },
            )
            continue
        hint = 'a tab inside a text?' if form == 'tsv' else 'a comma without quotes?'
        reason = f'{len(cells)} columns where the first line has {width} ({hint})'
        yield number, BadRecord(reason)


def csv_rows(lines: Iterable[str], path: str, as_tsv: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, cells) of each row that is not empty.

    Args:
      lines: with their ends.
      path: what errors call the file.
      as_tsv: how the user says that a file has no quoting.

    Raises:
      UserError: quotes went wrong; nothing after them can be trusted.
    """
    # The library's own limit of 128 KiB a cell would refuse long contexts.
    csv.field_size_limit(2**31 - 1)
    rows, begin = csv.reader(lines, strict=True), 1
    try:
        for cells in rows:
            if cells:
                yield begin, cells
            begin = rows.line_num + 1
    except csv.Error as error:
        # A quote that is not closed swallows the lines that follow: the row's first line has it.
        raise UserError(
            f'{path}:{begin}: not CSV ({error}); a file without quoting is {as_tsv}'
        ) from None


def column_index(column: Column, first: list[str], header: bool) -> int | None:
    """Return the number of a column, by the first row; None where it is not there."""
    # From the end, too: -1 is the last.
    if isinstance(column, int):
        return column if -len(first) <= column < len(first) else None
    return first.index(column) if header and column in first else None


def no_column(column: Column, role: str, first: list[str], header: bool = True) -> str:
    """Word the error for a first line that has no such column."""
    names = f': {", ".join(first)[:_SHOWN]}' if header else ' without names'
    return f'no column {column!r} for {role!r}; it has {len(first)}{names}'


def json_object(line: str) -> dict[str, Any]:
    """Return the object on a line; ValueError for anything else."""
    try:
        record = parse_json(line)
    except ValueError as error:
        # the parser counts the lines of what it is given, which is one line of the file
        raise ValueError(str(error).replace('line 1 column', 'column')) from error
    if not isinstance(record, dict):
        raise ValueError('not a JSON object: jsonl has one on each line')
    return record


def cells_of(
    record: Mapping,
    columns: Mapping[str, Column | list[Column]],
    optional: Collection[str],
) -> dict[str, Cell]:
    """Return {role: its cell} of a record of JSON or tensorflow-datasets.

    Args:
      record: its entries.
      columns: role -> its entry (`a.b` for b inside a), or a list of entries.
      optional: roles that are left out where their entry is absent or null.

    Raises:
      ValueError: an entry is absent, or is neither text nor number nor a list of these.
    """
    # Role by role, one column or several; all of a role's columns, or the role is absent.
    row: dict[str, Cell] = {}
    for role, wanted in columns.items():
        several = wanted if isinstance(wanted, list) else [wanted]
        values = [_entry(record, column) for column in several]
        if None not in values:
            value = values if isinstance(wanted, list) else values[0]
            is_list = isinstance(value, list)
            row[role] = [_text(v, role) for v in value] if is_list else _text(value, role)
        elif role not in optional:
            # Two mistakes that look alike: the entry is there and null, or it is not there.
            column = several[values.index(None)]
            if column in record:
                raise ValueError(f'{column!r} for {role!r} is null: must be a text')
            names = ', '.join(map(str, record))[:_SHOWN] or 'nothing'
            raise ValueError(f'no {column!r} for {role!r}; it has {names}')
    return row


def _entry(record: Mapping, column: Column) -> Any:
    """Return the entry of that name, or of `a.b` the entry b of a; None where there is none."""
    # A name with a dot in it is meant as it stands, if there is one.
    if column in record:
        return record[column]
    value: Any = record
    for step in str(column).split('.'):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _text(value: Any, role: str) -> str:
    if isinstance(value, list | dict) or value is None:
        shown = json.dumps(value)[:100]
        raise ValueError(f'{role!r} is not a text or a number, nor a list of these: {shown}')
    if isinstance(value, str) and not well_formed(value):
        raise ValueError(f'{role!r} holds half a character ({ascii(value)[:100]})')
    return str(value)
