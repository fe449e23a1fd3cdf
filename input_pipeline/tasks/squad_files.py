"""Questions, contexts and answers as they lie in files: the SQuAD format, or tables with a question a row.

This file owns both layouts and what is wrong with a file. It must not know how questions are answered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from configs.errors import UserError
from input_pipeline.tasks.base import Example, read_json
from input_pipeline.tasks.tables import Table, unique_id

_HINT = 'use squad_v2, or "unanswerable": true in a task file'


@dataclass(frozen=True)
class SpanExample(Example):
    """A question, its context, and its true answers as (text, character offset); none where it has no answer."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


def with_format(task: str, table: Table) -> Table:
    """The table with its format settled: the SQuAD format where no columns are named. UserError where some are missing."""
    if not table.format and not table.tfds and not table.columns:
        table = dataclasses.replace(table, format='squad')
    if table.format != 'squad' and (missing := [role for role in ('question', 'context', 'answer') if role not in table.columns]):
        raise UserError(f'task {task}: {table.where}: "columns" does not say which column is {missing}')
    return table


def read(table: Table, unanswerable: bool, split: str) -> Iterator[SpanExample]:
    """Yields the questions of a file; in a test split they may come without answers.

    Raises UserError for a question without an answer where not `unanswerable`, and for other layouts.
    """
    yield from _read_squad(table.path, unanswerable) if table.format == 'squad' else _read_rows(table, unanswerable, split)


def _read_squad(path: str, unanswerable: bool) -> Iterator[SpanExample]:
    data = read_json(path)
    try:
        for article in data['data']:
            for paragraph in article['paragraphs']:
                for question in paragraph['qas']:
                    name = str(question['id'] if 'id' in question else question['guid'])  # KLUE calls it guid
                    answers = tuple((answer['text'], int(answer['answer_start'])) for answer in question.get('answers') or ())
                    if not answers and not unanswerable and 'answers' in question:
                        raise UserError(f'{path}: question {name!r} has no answer; {_HINT}')
                    if question.get('is_impossible'):
                        answers = ()
                    yield SpanExample(name, question['question'], paragraph['context'], answers)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f'{path}: not in the SQuAD format ({type(error).__name__}: {error})') from error


def _read_rows(table: Table, unanswerable: bool, split: str) -> Iterator[SpanExample]:
    optional = frozenset({'start', 'answer'} if split.startswith('test') else {'start'})
    lines: dict[str, str] = {}
    for where, row in table.rows(optional, lists=frozenset({'answer', 'start'})):
        texts = [text for text in _listed(row.get('answer', [])) if text]
        if not texts and not unanswerable and 'answer' in row:
            raise UserError(f'{where}: no answer; {_HINT}')
        starts = _listed(row.get('start', []))
        if starts and texts and len(starts) != len(texts):
            raise UserError(f'{where}: {len(texts)} answers but {len(starts)} starts')
        try:
            places = [int(start) for start in starts] or [row['context'].find(text) for text in texts]
        except ValueError as error:
            raise UserError(f'{where}: the start of an answer is not a whole number ({error})') from error
        yield SpanExample(unique_id(row, where, lines), row['question'], row['context'], tuple(zip(texts, places, strict=False)))


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]
