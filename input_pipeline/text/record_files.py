"""Texts for a trained model, one record at a time: lines, TSV, CSV or JSON lines.

They may be compressed. Owns how records of any number are streamed, and that a bad one is a record
of its own (tables.py has the words). A record is a dictionary of role -> text (or list of texts, in
JSON). Must not know what roles mean. Labelled examples of a task are tables.py's.
"""

from __future__ import annotations

import codecs
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from absl import logging
from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.text import encodings
from bert_jax.input_pipeline.text.encodings import plain_name
from bert_jax.input_pipeline.text.files import (
    changed,
    compute_crc32c,
    detect_compression,
    iterate_unpacked,
    open_file,
    read_state,
)
from bert_jax.input_pipeline.text.formats import detect_lines
from bert_jax.input_pipeline.text.tables import BadRecord, Wanted, read_lines, read_records

Records = Iterator[tuple[int, dict[str, Any] | BadRecord]]  # with the number of a record's line
FORMATS = ('text', 'tsv', 'csv', 'jsonl')
_SUFFIXES = {
    '.txt': 'text',
    '.tsv': 'tsv',
    '.csv': 'csv',
    '.jsonl': 'jsonl',
    '.ndjson': 'jsonl',
}


@dataclass
class Reader:
    """A file of records.

    Attributes:
      path: local or gs://; compressed by gzip, bzip2, xz or zstd where its first bytes say so.
      required: the roles that a record must have.
      optional: the roles that it may have.
      columns: role -> column name (or JSON key), or its number from 0; a role that it leaves out
        is called as its column.
      form: one of FORMATS; '' goes by the suffix. In `text` each line is the first required role.
      header: whether the first line of TSV or CSV names the columns.
      skips: whether bad records are left out; else a file in another encoding than UTF-8 is
        refused before its first record.
      position: bytes of the file that are read so far, of `size`.
    """

    path: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    columns: Mapping[str, str | int] | None = None
    form: str = ''
    header: bool = True
    skips: bool = False
    position: int = field(default=0, init=False)
    _form_given: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        # All that can be said without opening the file is said now: a job of hours must not begin
        # with a slip of the pen.
        roles = (*self.required, *self.optional)
        for role in self.columns or {}:
            if role not in roles:
                raise UserError(
                    f'--columns: {role!r} is no part of what this model reads: {", ".join(roles)}'
                )

        # The suffix before that of the compression: .tsv.gz is TSV.
        suffix = os.path.splitext(plain_name(self.path))[1]
        self._form_given = bool(self.form)
        form = self.form or _SUFFIXES.get(suffix, '')
        if form not in FORMATS:
            raise UserError(
                f'{self.path}: cannot tell the format from the name: end it in'
                f' {", ".join(_SUFFIXES)}, or say --format={"|".join(FORMATS)} where the command'
                ' has it'
            )
        if form == 'text' and len(self.required) > 1:
            raise UserError(
                f'{self.path}: this model reads {" and ".join(self.required)}, and a line of text'
                ' is one: use TSV, CSV or JSON lines'
            )
        self.form = form

    def __iter__(self) -> Records:
        """Yield (number of its line from 1, record) of each record.

        Empty lines are records of an empty text in `text`, and nothing elsewhere.

        Raises:
          UserError: there is no file, it is damaged or empty, or its columns are not there.
        """
        # A file without records is a mistake: an empty output would look like success.
        record = None
        for record in self._records():
            yield record
        if record is None:
            raise UserError(f'{self.path}: no records in it')

    @property
    def size(self) -> int:
        """Return the bytes of the file; UserError where there is none."""
        with reading(f'--input={self.path}'):
            return epath.Path(self.path).stat().length

    def identity(self) -> list[Any]:
        """Return JSON values that are equal where content and reading are the same as before.

        It is read for that: a size and a time of change do not tell an edited file from the old
        one.
        """
        # How the file is read belongs to it, for other columns give other records.
        with reading(f'--input={self.path}'), open_file(self.path) as file:
            content = f'crc32c {compute_crc32c(file):08x}'
        return [self.size, content, self.form, self.header, dict(self.columns or {})]

    def part(self, shard: tuple[int, int], skip: int) -> Records:
        """Return every N-th record from the I-th on, for `shard` (I, N), after the first `skip`."""
        # Counted over all records, so that a resumed shard goes on where it stopped.
        number, count = shard
        return itertools.islice(self, number + skip * count, None, count)

    def _lines(self, errors: str = 'strict') -> Iterator[tuple[int, str | BadRecord]]:
        r"""Yield (number, line without its end) of each line; only \n ends one.

        `errors` is as bytes.decode has it.
        """
        # Two messages: before, it is the flag that is wrong; while reading, it is the file.
        with reading(f'--input={self.path}'):
            if not self.skips:
                mend = 'let --on_bad_record=skip, where the command has it, leave them out'
                encodings.refuse_other(self.path, mend)
            file, before = open_file(self.path), read_state(self.path)
        with file, reading(self.path):
            # Cut by hand, because Python's own line reading also splits at \r, and cannot pass over
            # one bad line.
            number, unfinished = 0, b''
            for chunk in iterate_unpacked(file, detect_compression(file), self.path):
                if chunk and not self.position and self.form == 'text':
                    self._refuse_other(chunk)
                self.position = file.tell()
                *lines, unfinished = (unfinished + chunk).split(b'\n')
                for line in lines:
                    number += 1
                    yield number, self._decoded(line, number, errors)

            # The last line may lack its end.
            if unfinished:
                yield number + 1, self._decoded(unfinished, number + 1, errors)
            if read_state(self.path) != before:
                raise changed(self.path)

    def _decoded(self, line: bytes, number: int, errors: str) -> str | BadRecord:
        # The byte order mark of a file made on Windows, which also ends its lines with \r\n.
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            return line.removesuffix(b'\r').decode(errors=errors)
        except UnicodeDecodeError as error:
            reason = f'byte {error.start} of the line is not UTF-8'
            if not self.skips:
                reason += f': {encodings.word_advice(self.path)}'
            return BadRecord(reason)

    def _refuse_other(self, head: bytes) -> None:
        """Raise UserError for a file of text whose lines are no texts, by its first bytes."""
        kind = detect_lines(self.path, head, self.path)
        if kind != 'text' and not self._form_given:
            what = f'{kind}: end its name in .{kind.lower()}'
            if kind == 'docs':
                what = 'WikiExtractor output, and no text a line: write it as jsonl'
            raise UserError(
                f'{self.path}: is {what}'
                f' (and say --columns={self.required[0]}=NAME), or say --format=text to take whole'
                ' lines where the command has it'
            )

    def _records(self) -> Records:
        # A line that is no JSON, or lacks a column, is a bad record: its answer says so, and the
        # others are answered. Quotes around a bad byte still count.
        lines = self._lines('surrogateescape' if self.form == 'csv' else 'strict')
        if self.form == 'text':
            for number, line in lines:
                yield number, line if isinstance(line, BadRecord) else {self.required[0]: line}
            return

        # A role's column is the user's, or the one that is called as the role.
        given = self.columns or {}
        columns = {role: given.get(role, role) for role in (*self.required, *self.optional)}
        # An optional role may be absent, but not from a table where the user has named its column.
        optional = set(self.optional)
        if self.form != 'jsonl':
            optional -= set(given)
        mend = '; name it as in --columns={}=NAME'
        wanted = Wanted(self.path, columns, optional, self.header, mend)
        if self.form == 'jsonl':
            yield from read_records(lines, wanted)
        else:
            yield from read_lines(lines, self.form, wanted)


def parse_columns(text: str | Mapping[str, str | int]) -> dict[str, str | int]:
    """Return {'text': 'sentence', 'text_b': 1} of 'text=sentence,text_b=1', or of itself.

    Raises:
      UserError: it is anything else.
    """
    if isinstance(text, Mapping):
        return dict(text)
    columns: dict[str, str | int] = {}
    for part in filter(None, text.split(',')):
        role, equals, column = part.partition('=')
        if not (role and equals and column):
            raise UserError(
                f'--columns={text}: write ROLE=COLUMN, as in'
                ' --columns=text=sentence,text_b=question'
            )

        # a number, from the end too, or a name
        columns[role] = int(column) if column.lstrip('-').isdigit() else column
    return columns


def pass_over(fault: str, skip: bool) -> None:
    """Log a bad record that is left out; raise UserError unless bad records are to be skipped."""
    if not skip:
        raise UserError(f'{fault}; mend it, or leave such records out with --on_bad_record=skip')
    logging.warning('%s', fault)


def parse_shard(text: str) -> tuple[int, int]:
    """Return (0, 4) of '0/4': which share of the records one of several processes takes.

    Raises:
      UserError: it is anything else.
    """
    number, slash, count = text.partition('/')
    if not (slash and number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise UserError(f'--shard={text}: write I/N with I from 0 to N-1, as in --shard=0/4')
    return int(number), int(count)
