"""What a file is, by its name and its first bytes, and the text of a record in it.

Owns the signs of each format, the words for files that are no text and for records without one, and
the kinds that such records are counted by. Must not know how a format is read, nor whether a bad
record stops the reading (text/lines.py does).
"""

from __future__ import annotations

import csv
import html
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text import encodings
from bert_jax.input_pipeline.text.lines import PASS_OVER

HEAD_BYTES = 1 << 16  # of a file's beginning, unpacked, by which it is judged
_LONGEST_LINE = 4096  # bytes, on average, of lines that end in CR alone: one may stand in any
_CONTROLS = bytes([*range(1, 8), *range(14, 27), *range(28, 32), 127])  # in no encoding of text
# What a file of markup begins with; a text may mention any of it further on.
_DUMP = re.compile(rb'<mediawiki\b|<page>\s*<title>|<siteinfo>')
_XML = re.compile(rb'<\?xml\b|<!doctype\b', re.I)
_HTML = re.compile(rb'<!doctype\s+html\b', re.I)
_OF_HTML = frozenset(b'html head body meta title script style div table p span'.split())
_TAG = re.compile(rb'</?([a-z][\w:.-]*)(\s+[\w:.-]+\s*=[^<>]*|\s*/)?\s*>', re.I)
_CLOSING = re.compile(rb'</([a-z][\w:.-]*)\s*>', re.I)
_BEFORE_MARKUP = re.compile(rb'(?:\s+|<!--.*?-->|<\?xml\b.*?\?>)*', re.S | re.I)
_NAME = re.compile(r'(?!\d)[\w.-]{0,30}')  # of a column, as programs write them
_FEWEST_ROWS = 3  # by which a table is known

Format = Literal['text', 'jsonl', 'wikiextractor', 'parquet', 'tfds', 'hf']


def detect_format(name: str, head: bytes, path: str, any_bytes: bool = False) -> Format:
    """Tell what a file is by its name and first bytes.

    Raises UserError where it is no text at all, or holds its text among other things.
    `any_bytes`: the user wants lines that are not UTF-8 to be passed over, however many.
    """
    # What has a signature: parquet is read, other encodings and formats are refused by name,
    # because decoded as UTF-8 they would be a corpus of rubbish.
    if head.startswith(b'PAR1'):
        return 'parquet'
    if head.startswith((b'\xff\xfe', b'\xfe\xff', b'\0\0\xfe\xff')):
        raise UserError(f'{path}: is not UTF-8: {encodings.word_advice(path)}')
    if head.startswith(b'PK\x03\x04') or head[257:262] == b'ustar':
        raise UserError(f'{path}: is an archive: unpack it, and give the files in it')

    controls = len(head) - len(head.translate(None, _CONTROLS))
    if head.startswith((b'%PDF-', b'{\\rtf')):
        raise UserError(f'{path}: is a document of its own format: give the text that is in it')

    # No signature, but bytes that text hardly has: a stray control character is no reason to refuse
    # it, a share of them is.
    many_controls = head.count(b'\0') > len(head) // 8 or controls > max(8, len(head) // 100)
    if many_controls:
        raise UserError(
            f'{path}: is not text: give text, jsonl or WikiExtractor files, '
            'plain or compressed by gzip, bzip2, xz or zstd, or parquet files'
        )

    # As UTF-8 some lines may be broken, but not a third of the bytes.
    invalid = len(head) - len(head.decode(errors='ignore').encode())
    if invalid > max(8, len(head) * 0.3) and not any_bytes:
        raise UserError(
            f'{path}: is not UTF-8: {encodings.word_advice(path)}, if it is text at all; or'
            f' {PASS_OVER}'
        )
    if b'\n' not in head and head.count(b'\r') > len(head) // _LONGEST_LINE:
        raise UserError(f"{path}: its lines end in CR alone: convert them (tr '\\r' '\\n')")

    # It is text; which kind, its name or its first lines say.
    kind = detect_lines(name, head, path)
    if kind == 'docs':
        return 'wikiextractor'
    if kind == 'jsonl' or re.search(r'\.(jsonl|ndjson|json)(\.\w+)?$', name):
        return 'jsonl'
    if kind in ('TSV', 'CSV'):
        tabs = ''
        if kind == 'TSV':
            tabs = ' put blanks in place of its tabs, or'
        raise UserError(
            f'{path}: is {kind}, whose other columns would be read as text: write it as jsonl or'
            f' parquet, or give its folder as hf:{os.path.dirname(path) or "."}:train, and name the'
            f' column that holds the text with --text_column; where all of it is text,{tabs} write'
            ' it as jsonl, as {"text": "..."}'
        )
    return 'text'


def detect_lines(
    name: str, head: bytes, path: str
) -> Literal['text', 'jsonl', 'docs', 'TSV', 'CSV']:
    """Tell what the lines of a text file are; UserError for XML and HTML."""
    head = head[:HEAD_BYTES].removeprefix(b'\xef\xbb\xbf').lstrip()
    if head.startswith(b'<doc '):
        return 'docs'
    if head.startswith(b'<'):
        _refuse_markup(head, path)
    if head.startswith(b'{') and _is_json(head.split(b'\n', 1)[0]):
        return 'jsonl'
    named = re.search(r'\.(csv|tsv)(\.\w+)?$', name, re.IGNORECASE)
    if named is None:
        return _detect_table(head.decode(errors='replace'))
    if named[1].lower() == 'csv':
        return 'CSV'
    return 'TSV'


def _refuse_markup(head: bytes, path: str) -> None:
    """Raise UserError for XML and HTML, whose tags would be read as text."""
    begin = _BEFORE_MARKUP.sub(b'', head, count=1)
    if _DUMP.match(begin):
        raise UserError(
            f'{path}: is a MediaWiki XML dump: take the text out of it with WikiExtractor'
            ' (python -m wikiextractor.WikiExtractor DUMP -o FOLDER), and give that folder'
        )

    # By its first line or first tag, or of XML by a tag at the begin of every other line. A name
    # that is never closed is none: <unk> and <anna> stand in text.
    closed = {name.lower() for name in _CLOSING.findall(head)}
    lines = [line.lstrip() for line in begin.split(b'\n') if line.strip()]
    tags = [_TAG.match(line) for line in lines]
    real = 0
    for tag in tags:
        if tag is not None and (tag[2] or tag[1].lower() in closed):
            real += 1
    first = tags[0] if tags else None
    begins_html = first and first[1].lower() in _OF_HTML and (first[2] or closed & _OF_HTML)
    many_tags = first and len(lines) >= _FEWEST_ROWS and 2 * real >= len(lines)
    kind = ''
    if _HTML.match(begin) or begins_html:
        kind = 'HTML'
    elif _XML.match(head) or _XML.match(begin) or many_tags:
        kind = 'XML'
    if kind:
        raise UserError(f'{path}: is {kind}: give the text that is in it, without the tags')


def _detect_table(text: str) -> Literal['text', 'TSV', 'CSV']:
    """Tell the kind of table that a text is, by its rows."""
    # Without comments, which some tables have; the last line may be cut.
    lines = [line for line in text.split('\n') if line.strip() and not line.startswith('#')]
    lines = lines[:-1] if len(lines) > _FEWEST_ROWS else lines
    if len(lines) < _FEWEST_ROWS:
        return 'text'

    # Nearly all lines with as many tabs between words.
    (tabs, count), *_ = Counter(line.strip().count('\t') for line in lines).most_common(1)
    if tabs and count >= 0.9 * len(lines):
        return 'TSV'
    if _has_rows(lines, ',') or _has_rows(lines, ';'):
        return 'CSV'
    return 'text'


def _has_rows(lines: list[str], delimiter: str) -> bool:
    """Tell whether lines are CSV: names or quotes first, and cells as many in each row.

    Text has a blank behind its commas.
    """
    # The first line alone first, which of most texts says enough.
    names = lines[0].strip().split(delimiter)
    is_named = len({*names}) == len(names)
    for name in names:
        is_named = is_named and bool(_NAME.fullmatch(name.strip('"')))
    is_quoted = f'{delimiter}"' in lines[0] or f'"{delimiter}' in lines[0]
    if len(names) < 2 or not (is_named or is_quoted):
        return False
    try:
        rows = list(csv.reader((f'{line}\n' for line in lines), delimiter=delimiter))
    except csv.Error:
        return False

    # The last row may have lost the end of its quotes.
    rows = rows[:-1] if len(rows) > _FEWEST_ROWS else rows
    cells = [cell for row in rows for cell in row[1:]]
    return (
        len(rows) >= _FEWEST_ROWS
        and len(rows[0]) > 1
        and len({len(row) for row in rows}) == 1
        and not any(cell.startswith(' ') for cell in cells)
    )


def _is_json(line: bytes) -> bool:
    """Tell whether a file's first line is a JSON object with something in it.

    `WikiExtractor --json` writes such lines into files without extension.
    """
    try:
        return bool(json.loads(line))
    except RecursionError:
        return True  # the reader refuses it, with its line
    except ValueError:
        return False


_TYPES = {
    bool: 'true or false',
    int: 'a number',
    float: 'a number',
    str: 'a text',
    list: 'a list',
    dict: 'an object',
    type(None): 'null',
}
_WIKIEXTRACTOR = {'id', 'url', 'title', 'text'}  # fields of its --json


class NoText(NamedTuple):
    """A record that holds no text, in words; `kind` is what it is counted under."""

    kind: str
    words: str


def get_text_of_json(line: str, column: str) -> str | NoText | None:
    """Return the text in that column of the object on a line, as `get_text`."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        # the library counts the lines of what it is given, which is one line of the file
        reason = str(error).replace('line 1 column', 'column')
        return NoText('not JSON', f'not valid JSON ({reason}): jsonl has one object a line')
    if not isinstance(record, dict):
        what = _TYPES[type(record)]
        return NoText('no object', f'no object but {what}: jsonl has one object a line')
    return get_text(record, column)


def get_text(record: Mapping[str, Any], column: str) -> str | NoText | None:
    """Return the text in that column of a record, None for null, or why there is none."""
    if column not in record:
        return NoText('no such column', word_missing_column(column, sorted(record)))
    value = record[column]
    if isinstance(value, str) and record.keys() >= _WIKIEXTRACTOR:
        return _cut_title(value, record)
    if value is None or isinstance(value, str):
        return value
    what = _TYPES.get(type(value)) or type(value).__name__
    return NoText(
        'no text',
        f'no text in column {column!r}: it is {what}: name another column with --text_column',
    )


def spell_titles(raw: str) -> tuple[str, str]:
    """Return how WikiExtractor may spell a title above its article: raw, or unescaped."""
    return raw, html.unescape(raw)


def _cut_title(text: str, record: Mapping[str, Any]) -> str:
    """Return the text of an article without the title that `WikiExtractor --json` repeats."""
    above = ('', *spell_titles(str(record['title']).strip()))
    lines = text.split('\n')
    first = 0
    while first < len(lines) and lines[first].strip() in above:
        first += 1
    return '\n'.join(lines[first:])


def word_missing_column(column: str, columns: list[str]) -> str:
    """Word the error for a column that --text_column names and nothing has."""
    names = ', '.join(columns[:20]) + (' ...' if len(columns) > 20 else '')
    return f'no text in column {column!r} (it has {names}): name the column with --text_column'
