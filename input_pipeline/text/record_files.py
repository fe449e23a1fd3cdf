"""Texts to be read by a trained model, one record at a time: lines, TSV, CSV or JSON lines, plain
or compressed.

Owns how records of any number are streamed and what is said of a bad one. A record is a dictionary
of role -> text (or list of texts, in JSON). Must not know what roles mean. Labelled examples of a
task are tasks/tables.py's.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
from etils import epath

from configs.errors import UserError, reading
from input_pipeline.text.files import compression_of, decompressed

FORMATS = ('text', 'tsv', 'csv', 'jsonl')
_SUFFIXES = {'txt': 'text', 'tsv': 'tsv', 'csv': 'csv', 'jsonl': 'jsonl', 'ndjson': 'jsonl'}
_COMPRESSED = ('gz', 'bz2', 'xz', 'zst')
_SURROGATE = re.compile('[\ud800-\udfff]')


@dataclass(frozen=True)
class BadRecord:
    """What is wrong with a line, in words."""

    reason: str


@dataclass
class Reader:
    """A file of records.

    Attributes:
      path: local or gs://; compressed by gzip, bzip2, xz or zstd where its first bytes say so.
      required, optional: the roles that a record must and may have.
      columns: role -> column name (or JSON key), or place from 0; a role that it leaves out is
      called as its column.
      form: one of FORMATS; '' goes by the suffix. In `text` each line is the first required role.
      header: whether the first line of TSV or CSV names the columns.
      position: bytes of the file that are read so far, of `size`.
    """

    path: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    columns: Mapping[str, str | int] | None = None
    form: str = ''
    header: bool = True
    position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        roles = (*self.required, *self.optional)
        if unknown := [role for role in self.columns or {} if role not in roles]:
            raise UserError(
                f'--columns: {unknown[0]!r} is no part of what this model reads: {", ".join(roles)}'
            )
        name = self.path.rpartition('/')[2]
        suffixes = [part for part in name.split('.')[1:] if part not in _COMPRESSED]
        form = self.form or _SUFFIXES.get(suffixes[-1] if suffixes else '', '')
        if form not in FORMATS:
            raise UserError(
                f'{self.path}: cannot tell the format from the name: add'
                f' --format={"|".join(FORMATS)}'
            )
        if form == 'text' and len(self.required) > 1:
            raise UserError(
                f'{self.path}: this model reads {" and ".join(self.required)}, and a line of text'
                ' is one: use TSV, CSV or JSON lines'
            )
        self.form = form

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
        """(number of its line from 1, record) of each; empty lines are records of an empty text in
        `text`, and nothing elsewhere.

        UserError where there is no file, it is damaged or empty, or its columns are not there.
        """
        empty = True
        for item in {'text': self._texts, 'jsonl': self._objects}.get(self.form, self._table)():
            empty = False
            yield item
        if empty:
            raise UserError(f'{self.path}: no records in it')

    @property
    def size(self) -> int:
        """Bytes of the file. UserError where there is none."""
        with reading(f'--input={self.path}'):
            return epath.Path(self.path).stat().length

    def identity(self) -> list[Any]:
        """What says that the content and its reading are the same as before (JSON values).

        It is read for that: a size and a time of change do not tell an edited file from the old
        one.
        """
        checksum = google_crc32c.Checksum()
        with reading(f'--input={self.path}'), epath.Path(self.path).open('rb') as file:
            while chunk := file.read(1 << 24):
                checksum.update(chunk)
        content = f'crc32c {checksum.hexdigest().decode()}'
        return [self.size, content, self.form, self.header, dict(self.columns or {})]

    def part(
        self, shard: tuple[int, int], skip: int
    ) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
        """Every N-th record from the I-th on, for `shard` (I, N), without the first `skip` of
        those.
        """
        number, count = shard
        return itertools.islice(self, number + skip * count, None, count)

    def _lines(self, errors: str = 'strict') -> Iterator[tuple[int, str | BadRecord]]:
        """(number, line without its end) of each; only \\n ends a line. `errors` as bytes.decode
        has it.
        """
        with reading(f'--input={self.path}'):
            file = epath.Path(self.path).open('rb')
        with file, reading(self.path):
            number, rest = 0, b''
            for chunk in decompressed(file, compression_of(file), self.path):
                self.position = file.tell()
                *whole, rest = (rest + chunk).split(b'\n')
                for line in whole:
                    number += 1
                    yield number, _decoded(line, number, errors)
            if rest:
                yield number + 1, _decoded(rest, number + 1, errors)

    def _texts(self) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
        for number, line in self._lines():
            yield number, line if isinstance(line, BadRecord) else {self.required[0]: line}

    def _objects(self) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
        for number, line in self._lines():
            if isinstance(line, BadRecord):
                yield number, line
            elif line.strip():
                try:
                    yield number, self._record(json.loads(line))
                except RecursionError:
                    yield (
                        number,
                        BadRecord('not JSON that can be read: too many brackets in each other'),
                    )
                except ValueError as error:
                    yield number, BadRecord(f'not JSON ({error})')

    def _record(self, entries: Any) -> dict[str, Any] | BadRecord:
        if not isinstance(entries, dict):
            return BadRecord('not a JSON object')
        record = {}
        for role in (*self.required, *self.optional):
            column = (self.columns or {}).get(role, role)
            value = entries.get(column)
            if value is None:
                if role in self.required:
                    if column in entries:
                        return BadRecord(f'null in {column!r} for {role!r}: must be a text')
                    return BadRecord(
                        f'no {column!r} for {role!r}; it has'
                        f' {", ".join(entries)[:200] or "nothing"}'
                    )
                continue
            texts = value if isinstance(value, list) else [value]
            if not all(isinstance(text, str | int | float) for text in texts):
                return BadRecord(f'{column!r} is neither a text nor a list of texts')
            if any(_SURROGATE.search(str(text)) for text in texts):
                return BadRecord(f'{column!r} holds half of a surrogate pair, which no text does')
            record[role] = [str(text) for text in texts] if isinstance(value, list) else str(value)
        return record

    def _table(self) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
        places: dict[str, int] | None = None
        width = 0
        for number, cells in self._tsv_rows() if self.form == 'tsv' else self._csv_rows():
            if isinstance(cells, BadRecord):
                if places is None:
                    raise UserError(f'{self.path}:{number}: {cells.reason}')
                yield number, cells
                continue
            if places is None:
                places, width = self._places(cells), len(cells)
                if self.header:
                    continue
            if len(cells) != width:
                hint = 'a tab inside a text?' if self.form == 'tsv' else 'a comma without quotes?'
                yield (
                    number,
                    BadRecord(f'{len(cells)} columns where the first line has {width} ({hint})'),
                )
            else:
                yield number, {role: cells[place] for role, place in places.items()}

    def _places(self, first: list[str]) -> dict[str, int]:
        """Role -> place, from the first line."""
        places = {}
        for role in (*self.required, *self.optional):
            column = (self.columns or {}).get(role, role)
            if isinstance(column, int):
                found = column if -len(first) <= column < len(first) else None
            else:
                found = first.index(column) if self.header and column in first else None
            if found is not None:
                places[role] = found
            elif role in self.required or role in (self.columns or {}):
                there = (
                    f'{len(first)}: {", ".join(first)[:200]}'
                    if self.header
                    else f'{len(first)} without names'
                )
                raise UserError(
                    f'{self.path}: no column {column!r} for {role!r}; it has {there}; name it as in'
                    f' --columns={role}=NAME'
                )
        return places

    def _tsv_rows(self) -> Iterator[tuple[int, list[str] | BadRecord]]:
        for number, line in self._lines():
            if isinstance(line, BadRecord):
                yield number, line
            elif line:
                yield number, line.split('\t')

    def _csv_rows(self) -> Iterator[tuple[int, list[str] | BadRecord]]:
        """Rows by RFC 4180, at the number of their last line."""
        csv.field_size_limit(2**31 - 1)
        rows = csv.reader(self._csv_lines(), strict=True)
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:  # where a quote went wrong nothing after it can be trusted
                raise UserError(
                    f'{self.path}:{rows.line_num}: not CSV ({error}); a file without quoting is'
                    ' --format=tsv'
                ) from None
            if cells:
                found = any(_SURROGATE.search(cell) for cell in cells)
                yield rows.line_num, BadRecord('bytes that are not UTF-8 in it') if found else cells

    def _csv_lines(self) -> Iterable[str]:
        for _, line in self._lines('surrogateescape'):  # quotes around a bad byte still count
            yield f'{line}\n'


def _decoded(line: bytes, number: int, errors: str) -> str | BadRecord:
    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    try:
        return line.removesuffix(b'\r').decode(errors=errors)
    except UnicodeDecodeError as error:
        return BadRecord(f'byte {error.start} of the line is not UTF-8')


def parse_columns(text: str) -> dict[str, str | int]:
    """{'text': 'sentence', 'text_b': 1} of 'text=sentence,text_b=1'. UserError for anything
    else.
    """
    columns: dict[str, str | int] = {}
    for part in filter(None, text.split(',')):
        role, equals, column = part.partition('=')
        if not (role and equals and column):
            raise UserError(
                f'--columns={text}: write ROLE=COLUMN, as in'
                ' --columns=text=sentence,text_b=question'
            )
        columns[role] = int(column) if column.lstrip('-').isdigit() else column
    return columns


def parse_shard(text: str) -> tuple[int, int]:
    """(0, 4) of '0/4': the part of the records that one of several processes takes. UserError for
    anything else.
    """
    number, slash, count = text.partition('/')
    if not (slash and number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise UserError(f'--shard={text}: write I/N with I from 0 to N-1, as in --shard=0/4')
    return int(number), int(count)
