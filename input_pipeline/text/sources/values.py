"""The text of one record: of a line of JSON, or of named values.

Owns the words for a record without one, and the kinds that such records are counted by. It must not
know where records come from, nor whether a bad one stops the reading (text/lines.py does).
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

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


def of_json(line: str, column: str) -> str | NoText | None:
    """Return the text in that column of the object on a line, as `text_of`."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        # the library counts the lines of what it is given, which is one line of the file
        reason = str(error).replace('line 1 column', 'column')
        return NoText('not JSON', f'not valid JSON ({reason}): jsonl has one object a line')
    if not isinstance(record, dict):
        what = _TYPES[type(record)]
        return NoText('no object', f'no object but {what}: jsonl has one object a line')
    return text_of(record, column)


def text_of(record: Mapping[str, Any], column: str) -> str | NoText | None:
    """Return the text in that column of a record, None for null, or why there is none."""
    if column not in record:
        return NoText('no such column', missing(column, sorted(record)))
    value = record[column]
    if isinstance(value, str):
        return _without_title(value, record) if record.keys() >= _WIKIEXTRACTOR else value
    if value is None:
        return None
    what = _TYPES.get(type(value)) or type(value).__name__
    return NoText(
        'no text',
        f'no text in column {column!r}: it is {what}: name another column with --text_column',
    )


def titles(raw: str) -> tuple[str, str]:
    """Return how WikiExtractor may spell a title above its article: raw, or unescaped."""
    return raw, html.unescape(raw)


def _without_title(text: str, record: Mapping[str, Any]) -> str:
    """Return the text of an article without the title that `WikiExtractor --json` repeats."""
    above = ('', *titles(str(record['title']).strip()))
    lines = text.split('\n')
    first = next((i for i, line in enumerate(lines) if line.strip() not in above), len(lines))
    return '\n'.join(lines[first:])


def missing(column: str, columns: list[str]) -> str:
    """Word the error for a column that --text_column names and nothing has."""
    names = ', '.join(columns[:20]) + (' ...' if len(columns) > 20 else '')
    return f'no text in column {column!r} (it has {names}): name the column with --text_column'
