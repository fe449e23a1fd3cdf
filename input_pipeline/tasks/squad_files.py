"""Questions, contexts and answers as they lie in files, and the official files of predictions.

Files are in the SQuAD format, or tables with a question a row.

This file owns these layouts and what is wrong with a file. It must not know how questions are
answered.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Example, Predictions
from bert_jax.input_pipeline.text.tables import Table, unique_id
from bert_jax.input_pipeline.text.whole_text import located, read_json, well_formed

_HINT = 'use squad_v2, or "unanswerable": true in a task file'


@dataclass(frozen=True)
class SpanExample(Example):
    """A question, its context, and its true answers as (text, character offset).

    No answers, (), where the question has none; None where it is not known.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None


class _Question(NamedTuple):
    """A question as its file has it: where that is, and its `is_impossible`, None without one."""

    where: str
    example: SpanExample
    impossible: bool | None


def with_format(task: str, table: Table) -> Table:
    """The table with its format settled: the SQuAD format where no columns are named.

    UserError where some are missing.
    """
    if not table.format and not table.tfds and not table.columns:
        table = dataclasses.replace(table, format='squad')
    if table.only and table.format == 'squad':
        raise UserError(f'task {task}: {table.where}: "only" is for tables with columns')
    if table.format != 'squad' and (
        missing := [role for role in ('question', 'context', 'answer') if role not in table.columns]
    ):
        raise UserError(
            f'task {task}: {table.where}: "columns" does not say which column is {missing}'
        )
    return table


def read(tables: Sequence[Table], unanswerable: bool, split: str) -> list[SpanExample]:
    """The questions of a split's files. Of a test split the answers may be unknown.

    Where no question of a split has an answer, and none is marked as having none, nothing is known.
    A question that is marked and lists answers is trained on by its mark, as in run_squad.py, and
    scored by its answers, as in evaluate-v2.0.py.

    Raises UserError where answers are missing in another split, for a question without an answer
    where not `unanswerable`, and for other layouts.
    """
    # All files of the split, then what they say as a whole: is anything known of the answers?
    questions = [
        question
        for table in tables
        for question in (_squad(table.path) if table.format == 'squad' else _rows(table, split))
    ]
    test = split.startswith('test')

    # No answer at all: unknown in a test split, a mistake elsewhere.
    known = any(question.example.answers or question.impossible for question in questions)
    if questions and not known:
        if not test:
            files = ', '.join(table.where for table in tables)
            marked = ' or is marked "is_impossible"' if unanswerable else ''
            raise UserError(
                f'{files}: no labels: none of the {len(questions)} questions of split {split} has'
                f' an answer{marked}; only a test split may come without'
            )
        return [dataclasses.replace(question.example, answers=None) for question in questions]

    # Some answers are known, so each question must have one, or be marked as having none, where
    # that is allowed.
    for where, example, impossible in questions:
        if example.answers is None and not impossible and not test:
            raise UserError(
                f'{where}: question {example.id!r} has no "answers"; only in a test split may they '
                'be missing'
            )
        if (example.answers == () or impossible) and not unanswerable:
            raise UserError(f'{where}: question {example.id!r} has no answer; {_HINT}')

    # Where mark and answers contradict each other, the two original programs differ.
    train = split == 'train'
    odd = [
        question.example.id
        for question in questions
        if question.example.answers is not None
        and question.impossible == bool(question.example.answers)
    ]
    if odd:
        logging.warning(
            '%s: %d of %d questions list answers and are marked is_impossible, or neither: %s (the'
            ' first is %r)',
            ', '.join(table.where for table in tables),
            len(odd),
            len(questions),
            'trained on as unanswerable' if train else 'scored by their answers',
            odd[0],
        )
    return [
        dataclasses.replace(example, answers=(() if train else example.answers or ()))
        if impossible
        else example
        for _, example, impossible in questions
    ]


def usable(task: str, questions: Sequence[SpanExample], where: str) -> list[SpanExample]:
    """The training questions whose first answer is where run_squad.py finds it.

    That answer is then as the context spells it. The log says how many were left out and why, and
    of which task. UserError, which begins with `where`, if that leaves none.
    """
    # Training needs one place; scoring uses all of them.
    several = sum(len(example.answers or ()) > 1 for example in questions)
    if several:
        logging.info(
            '%s train: %d of %d questions have several answers; the first is used',
            task,
            several,
            len(questions),
        )

    # Kept as it is, kept at a place nearby, or left out, by whether the answer is elsewhere at all.
    kept, moved, elsewhere, nowhere = [], 0, 0, 0
    for example in questions:
        if not example.answers:
            kept.append(example)
        elif answer := answer_in_context(example.context, *example.answers[0]):
            moved += answer[1] != example.answers[0][1]
            kept.append(dataclasses.replace(example, answers=(answer, *example.answers[1:])))
        elif _occurs(example.answers[0][0], example.context):
            elsewhere += 1
        else:
            nowhere += 1

    # Each of these says something about the file that is worth a look.
    if moved:
        logging.warning(
            '%s train: %d of %d questions have their answer beside its offset, within the words'
            ' that it touches: taken there, as run_squad.py does',
            *(task, moved, len(questions)),
        )
    if left_out := elsewhere + nowhere:
        logging.warning(
            '%s train: left out %d of %d questions whose answer is not at its offset: '
            '%d have it at another offset, %d not in the context at all',
            *(task, left_out, len(questions), elsewhere, nowhere),
        )
    if not kept:
        raise UserError(
            f'{where}: no question has its answer at its offset: {elsewhere} have it at '
            f'another offset, {nowhere} not in the context at all'
        )
    return kept


def answer_in_context(context: str, text: str, start: int) -> tuple[str, int] | None:
    """Where a training answer is, and as the context spells it; None where run_squad.py drops it.

    That is at its offset or, as there (:274-296), at another place within the words that
    [start, start + len(text)) touches; white space counts as equal.
    """
    # The usual case: the text is where the file says.
    words, end = text.split(), start + len(text)
    if not words or start < 0 or end > len(context):
        return None
    if context[start:end].split() == words:
        return text, start

    # Else within whole words around the offset: an answer `1998` at the offset of `(1998)`.
    begin = start
    while begin > 0 and context[begin].isspace():  # a blank belongs to the word before it
        begin -= 1
    while begin > 0 and not context[begin - 1].isspace():
        begin -= 1
    while end < len(context) and not context[end - 1].isspace() and not context[end].isspace():
        end += 1

    # Any white space in the context stands for any in the answer.
    match = re.compile(r'\s+'.join(map(re.escape, words))).search(context, begin, end)
    return (match[0], match.start()) if match else None


def _occurs(text: str, context: str) -> bool:
    """Whether a text that is not blank stands anywhere in the context, white space apart."""
    words = ' '.join(text.split())
    return bool(words) and words in ' '.join(context.split())


def _squad(path: str) -> Iterator[_Question]:
    # Places in the file are kept for errors: a person finds data[3].paragraphs[1] and not an id.
    data = read_json(path)
    for i, article in enumerate(_entry(data, 'data', list, path, '')):
        place = f'data[{i}]'
        for j, paragraph in enumerate(_entry(article, 'paragraphs', list, path, place)):
            inner = f'{place}.paragraphs[{j}]'
            context = _entry(paragraph, 'context', str, path, inner)
            for k, question in enumerate(_entry(paragraph, 'qas', list, path, inner)):
                yield _question(question, context, path, f'{inner}.qas[{k}]')


def _question(question: Any, context: str, path: str, place: str) -> _Question:
    """An entry of `qas`; no "answers", or null, means that they are unknown."""
    # KLUE calls it guid
    by_guid = isinstance(question, dict) and 'id' not in question and 'guid' in question
    key = 'guid' if by_guid else 'id'
    name = str(_entry(question, key, (str, int), path, place))
    text = _entry(question, 'question', str, path, place)

    # Offsets and texts are checked here for their type, and later for what they point to.
    answers = None
    if question.get('answers') is not None:
        inner = f'{place}.answers'
        answers = tuple(
            (_entry(answer, 'text', str, path, inner), _offset(answer, path, inner))
            for answer in _entry(question, 'answers', list, path, place)
        )
    impossible = None
    if question.get('is_impossible') is not None:
        impossible = _entry(question, 'is_impossible', bool, path, place)
    return _Question(path, SpanExample(name, text, context, answers), impossible)


# What JSON calls a type.
_NAMES = {
    dict: 'an object',
    list: 'a list',
    str: 'a text',
    int: 'a whole number',
    bool: 'true or false',
    type(None): 'null',
}


def _entry(record: Any, name: str, kind: type | tuple[type, ...], path: str, place: str) -> Any:
    """record[name], which is of that type. UserError that says where in the file it is not."""
    # One of four ways not to be what it must be, each in words; the last branch is the good one.
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(record, dict):
        problem = f'{_NAMES.get(type(record), "a number")}, where an object is expected'
    elif name not in record:
        problem = f'{name!r} is missing'
    elif type(record[name]) not in kinds:
        wanted = ' or '.join(_NAMES[one] for one in kinds)
        actual = _NAMES.get(type(record[name]), 'a number')
        problem = f'{name!r} is {actual}, where {wanted} is expected'
    elif isinstance(record[name], str) and not well_formed(record[name]):
        problem = f'{name!r} holds half a character'
    else:
        return record[name]
    raise UserError(f'{path}: not in the SQuAD format ({place}{": " if place else ""}{problem})')


def _offset(answer: dict[str, Any], path: str, place: str) -> int:
    """Where an answer begins: a whole number, whether or not JSON spells it as one ("5", 5.0)."""
    value = answer.get('answer_start')
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _entry(answer, 'answer_start', int, path, place)


def _rows(table: Table, split: str) -> Iterator[_Question]:
    # Tables: an answer with its start, or without one its first occurrence in the context.
    optional = frozenset({'start', 'answer'} if split.startswith('test') else {'start'})
    lines: dict[str, str] = {}
    for where, row in table.rows(optional, lists=frozenset({'answer', 'start'})):
        # Empty cells are no answers.
        texts = [text for text in _listed(row.get('answer', [])) if text]
        starts = [start for start in _listed(row.get('start', [])) if start]
        if starts and texts and len(starts) != len(texts):
            raise UserError(f'{where}: {len(texts)} answers but {len(starts)} starts')

        # A text that is nowhere gets -1, which `answer_in_context` refuses.
        try:
            places = [int(start) for start in starts] or [
                row['context'].find(text) for text in texts
            ]
        except ValueError as error:
            raise UserError(
                f'{where}: the start of an answer is not a whole number ({error})'
            ) from error

        # No column of answers means unknown; an empty cell means that there is none.
        answers = tuple(zip(texts, places, strict=False)) if 'answer' in row else None
        name = unique_id(row, where, lines)
        yield _Question(where, SpanExample(name, row['question'], row['context'], answers), None)


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def read_predictions(path: str, extras: bool) -> Predictions:
    """The answers in a file of question id -> text.

    With `extras` a file called predictions.json brings the nbest.json and null_odds.json beside
    it. UserError where a file holds something else.
    """
    answers, what = read_json(path, unique=True), 'a JSON object of question id -> answer text'
    _require(isinstance(answers, dict), path, what)
    for name, answer in answers.items():
        _require(isinstance(answer, str), path, what, name)

    # Only under its official name are the files beside it known to be of the same predictions.
    if not extras or os.path.basename(path) != 'predictions.json':
        return Predictions(answers)
    by_stem: dict[str, dict[str, Any]] = {}
    for stem, read_extra in (('nbest', _read_nbest), ('null_odds', _read_null_odds)):
        beside = os.path.join(os.path.dirname(path), f'{stem}.json')
        if located(beside):
            by_stem[stem] = read_extra(beside)
    return Predictions(answers, by_stem)


def _require(fits: bool, path: str, what: str, name: str | None = None) -> None:
    """Raises UserError where a file of predictions, or its entry `name`, is not what it must be."""
    if not fits:
        entry = '' if name is None else f': {name!r} has something else'
        raise UserError(f'{path}: expected {what}{entry}')


def _read_null_odds(path: str) -> dict[str, float]:
    """Question id -> how much better no answer is than the best answer."""
    odds, what = read_json(path, unique=True), 'a JSON object of question id -> finite number'
    _require(isinstance(odds, dict), path, what)
    for name, value in odds.items():
        _require(type(value) in (int, float) and abs(value) < float('inf'), path, what, name)
    return odds


def _read_nbest(path: str) -> dict[str, list[dict[str, Any]]]:
    """Question id -> its answers, best first."""
    # Anything else beside the texts (scores, probabilities) is the writer's own.
    nbest = read_json(path, unique=True)
    what = 'a JSON object of question id -> list of {"text": answer, ...}'
    _require(isinstance(nbest, dict), path, what)
    for name, items in nbest.items():
        has_text = lambda item: isinstance(item, dict) and isinstance(item.get('text'), str)
        _require(isinstance(items, list) and all(map(has_text, items)), path, what, name)
    return nbest
