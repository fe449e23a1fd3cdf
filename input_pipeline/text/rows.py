"""Rows of named columns: how TSV, CSV and JSON are cut, and the words for what is wrong.

What is wrong is a ValueError with those words, without a place: tables.py refuses the file there,
record_files.py makes a bad record of that line alone. This file must not know where lines come
from, nor what columns mean. TSV has no quoting, as GLUE (a quote is a character like any other, a
row is a line); CSV has RFC 4180 quoting.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.whole_text import parse_json, well_formed

Column = str | int  # its name, or its place from 0
# A list where the column is one of a JSON or tensorflow-datasets record, or a list of columns.
Cell = str | list[str]
_SHOWN = 200  # characters of a list of names


def tsv_row(line: str) -> list[str]:
    """The cells of a line."""
    return line.split('\t')


def csv_rows(lines: Iterable[str], path: str, as_tsv: str) -> Iterator[tuple[int, list[str]]]:
    """(number of the row's first line, cells) of each row that is not empty; lines keep their ends.

    Raises UserError for quotes that went wrong: nothing after them can be trusted. `as_tsv`: how
    the user says that a file has no quoting.
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


def require_width(cells: list[str], width: int, form: str) -> None:
    """Raises ValueError for a row of another width than the first line's."""
    if len(cells) != width:
        hint = 'a tab inside a text?' if form == 'tsv' else 'a comma without quotes?'
        raise ValueError(f'{len(cells)} columns where the first line has {width} ({hint})')


def place_of(column: Column, first: list[str], header: bool) -> int | None:
    """Where a column is in each row, by the first one; None where it is not."""
    # From the end, too: -1 is the last.
    if isinstance(column, int):
        return column if -len(first) <= column < len(first) else None
    return first.index(column) if header and column in first else None


def no_column(column: Column, role: str, first: list[str], header: bool = True) -> str:
    """What to say where the first line has no such column."""
    names = f': {", ".join(first)[:_SHOWN]}' if header else ' without names'
    return f'no column {column!r} for {role!r}; it has {len(first)}{names}'


def json_object(line: str) -> dict[str, Any]:
    """The object on a line. Raises ValueError for anything else."""
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
    """{role: its cell} of a record of JSON or tensorflow-datasets.

    Those of `optional` are left out where they are absent or null. `columns`: role -> its entry
    (`a.b` for b inside a), or a list of entries. Raises ValueError for what is absent, and for a
    value that is neither text nor number nor a list of these.
    """
    # Role by role, one column or several; all of a role's columns, or the role is absent.
    row: dict[str, Cell] = {}
    for role, wanted in columns.items():
        several = wanted if isinstance(wanted, list) else [wanted]
        values = [_entry(record, column) for column in several]
        if None not in values:
            row[role] = _cell(values if isinstance(wanted, list) else values[0], role)
        elif role not in optional:
            # Two mistakes that look alike: the entry is there and null, or it is not there.
            column = several[values.index(None)]
            if column in record:
                raise ValueError(f'{column!r} for {role!r} is null: must be a text')
            names = ', '.join(map(str, record))[:_SHOWN] or 'nothing'
            raise ValueError(f'no {column!r} for {role!r}; it has {names}')
    return row


def _entry(record: Mapping, column: Column) -> Any:
    """The entry of that name, or of `a.b` the entry b of a; None where there is none."""
    # A name with a dot in it is meant as it stands, if there is one.
    if column in record:
        return record[column]
    value: Any = record
    for step in str(column).split('.'):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _cell(value: Any, role: str) -> Cell:
    """A scalar as text, a list as texts."""
    return [_text(item, role) for item in value] if isinstance(value, list) else _text(value, role)


def _text(value: Any, role: str) -> str:
    if isinstance(value, list | dict) or value is None:
        shown = json.dumps(value)[:100]
        raise ValueError(f'{role!r} is not a text or a number, nor a list of these: {shown}')
    if isinstance(value, str) and not well_formed(value):
        raise ValueError(f'{role!r} holds half a character ({ascii(value)[:100]})')
    return str(value)
