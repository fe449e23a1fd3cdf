"""Rows of named columns: how TSV, CSV and JSON are cut, and the words for what is wrong.

What is wrong with a row is a BadRecord with those words, without the line: tables.py refuses the
file there, record_files.py gives a bad record of that line alone. This file
must not know where lines come from, nor what columns mean. TSV has no quoting, as GLUE (a quote is
a character like any other, a row is a line); CSV has RFC 4180 quoting.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import parse_json, well_formed

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


def of_records(
    entries: Iterable[tuple[P, Any]],
    columns: Columns,
    optional: Collection[str],
    mend: str = '',
) -> Iterator[tuple[P, Row]]:
    """Yield (location, {role: its cell}) of each entry: a mapping, JSON of one, or a BadRecord.

    `mend` is as in `of_lines`.
    """
    for location, entry in entries:
        try:
            if isinstance(entry, BadRecord):
                yield location, entry
            elif not isinstance(entry, str):
                yield location, _read_cells(entry, columns, optional, mend)
            elif entry.strip():
                yield location, _read_cells(parse_json(entry), columns, optional, mend)
        except ValueError as error:
            # the parser counts the lines of what it is given, which is one line of the file
            yield location, BadRecord(str(error).replace('line 1 column', 'column'))


def of_lines(
    lines: Lines,
    form: str,
    columns: Columns,
    optional: Collection[str],
    header: bool,
    path: str,
    mend: str = '',
) -> Iterator[tuple[int, Row]]:
    """Yield (number of its line, {role: its cell}) of each row of TSV or CSV.

    Args:
      lines: of the file.
      form: tsv or csv.
      columns: role -> its column, or its columns.
      optional: roles that are left out where their columns are absent.
      header: whether the first row has names and is no record.
      path: what errors call the file.
      mend: how the user names the column of a role, which is put in place of {}.

    Raises:
      UserError: the first row cannot be read, and so no other one; or the quotes of CSV went wrong.
    """
    # The first row, be it names or a record, settles the width and where the columns are.
    indices, width = None, 0
    for number, cells in cells_of_lines(lines, form, path):
        if isinstance(cells, BadRecord):
            if indices is None:
                raise UserError(f'{path}:{number}: {cells.reason}')
            yield number, cells
            continue
        if indices is None:
            indices, width = _find_columns(cells, columns, optional, header, path, mend), len(cells)
            if header:
                continue
        if len(cells) != width:
            hint = 'a tab inside a text?' if form == 'tsv' else 'a comma without quotes?'
            reason = f'{len(cells)} columns where the first line has {width} ({hint})'
            yield number, BadRecord(reason)
            continue
        row = {}
        for role, index in indices.items():
            row[role] = [cells[i] for i in index] if isinstance(index, list) else cells[index]
        yield number, row


def cells_of_lines(lines: Lines, form: str, path: str) -> Cells:
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


def _find_columns(
    first: list[str],
    columns: Columns,
    optional: Collection[str],
    header: bool,
    path: str,
    mend: str,
) -> dict[str, int | list[int]]:
    """Return role -> number or numbers of its columns, by the first row; see `of_lines`."""
    indices: dict[str, int | list[int]] = {}
    for role, wanted in columns.items():
        # A role of several columns (the endings of a choice) is there only with all of them.
        several = wanted if isinstance(wanted, list) else [wanted]
        present = []
        for column in several:
            if header and isinstance(column, str) and first.count(column) > 1:
                raise UserError(
                    f'{path}: {first.count(column)} columns are named {column!r}: '
                    'give the place of the one that is meant, from 0'
                )
            if isinstance(column, int) and -len(first) <= column < len(first):
                present.append(column)  # from the end, too: -1 is the last
            elif header and column in first:
                present.append(first.index(column))
            elif role not in optional:
                names = f': {", ".join(first)[:_SHOWN]}' if header else ' without names'
                raise UserError(
                    f'{path}: no column {column!r} for {role!r}; it has {len(first)}{names}'
                    + mend.format(role)
                )
        if len(present) == len(several):
            indices[role] = present if isinstance(wanted, list) else present[0]
    return indices


def _read_cells(
    record: Any, columns: Columns, optional: Collection[str], mend: str
) -> dict[str, Cell]:
    """Return {role: its cell} of a record of JSON or tensorflow-datasets.

    Args:
      record: its entries.
      columns: role -> its entry (`a.b` for b inside a), or a list of entries.
      optional: roles that are left out where their entry is absent or null.
      mend: as in `of_lines`.

    Raises:
      ValueError: an entry is absent, or is neither text nor number nor a list of these.
    """
    if not isinstance(record, Mapping):
        raise ValueError('not a JSON object')
    # Role by role, one column or several; all of a role's columns, or the role is absent.
    row: dict[str, Cell] = {}
    for role, wanted in columns.items():
        several = wanted if isinstance(wanted, list) else [wanted]
        values = [_get_entry(record, column) for column in several]
        if None not in values:
            value = values if isinstance(wanted, list) else values[0]
            is_list = isinstance(value, list)
            row[role] = (
                [_check_text(v, role) for v in value] if is_list else _check_text(value, role)
            )
        elif role not in optional:
            # Two mistakes that look alike: the entry is there and null, or it is not there.
            column = several[values.index(None)]
            if column in record:
                raise ValueError(f'{column!r} for {role!r} is null: must be a text')
            names = ', '.join(map(str, record))[:_SHOWN] or 'nothing'
            raise ValueError(f'no {column!r} for {role!r}; it has {names}' + mend.format(role))
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
