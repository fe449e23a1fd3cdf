"""Questions, contexts and answers as they lie in files, and the official files of predictions.

Files are in the SQuAD format, or tables with a question a row.

This file owns these layouts and what is wrong with a file. It must not know how questions are
answered.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Example, Predictions
from bert_jax.input_pipeline.text.encodings import located, read_json, well_formed
from bert_jax.input_pipeline.text.tables import Table, unique_id

_HINT = 'use squad_v2, or "unanswerable": true in a task file'


@dataclass(frozen=True)
class SpanExample(Example):
    """A question, its context, and its true answers as (text, character offset).

    No answers, (), where the question has none; None where it is not known.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None

    respelled = ('question',)


class _Question(NamedTuple):
    """A question as its file has it: where that is, and its `is_impossible`, None without one."""

    line: str
    example: SpanExample
    impossible: bool | None


def settle_format(task: str, table: Table) -> Table:
    """Return the table with its format settled: the SQuAD format where no columns are named.

    Raises:
      UserError: some columns are missing.
    """
    if not table.format and not table.tfds and not table.columns:
        table = dataclasses.replace(table, format='squad')
    if table.only and table.format == 'squad':
        raise UserError(f'task {task}: {table.where}: "only" is for tables with columns')
    missing = [role for role in ('question', 'context', 'answer') if role not in table.columns]
    if table.format != 'squad' and missing:
        raise UserError(
            f'task {task}: {table.where}: "columns" does not say which column is {missing}'
        )
    return table


def read(tables: Sequence[Table], unanswerable: bool, split: str) -> list[SpanExample]:
    """Read the questions of a split's files. Of a test split the answers may be unknown.

    Where no question of a split has an answer, and none is marked as having none, nothing is known.
    A question that is marked and lists answers is trained on by its mark, as in run_squad.py, and
    scored by its answers, as in evaluate-v2.0.py.

    Raises:
      UserError: answers are missing in another split, a question has none where not
        `unanswerable`, or the layout is another one.
    """
    # All files of the split, then what they say as a whole: is anything known of the answers?
    questions: list[_Question] = []
    for table in tables:
        if table.format == 'squad':
            questions += _read_squad(table.path)
        else:
            questions += _read_table(table, split)
    test, train = split.startswith('test'), split == 'train'
    files = ', '.join(table.where for table in tables)

    # No answer at all: unknown in a test split, a mistake elsewhere.
    if questions and not any(q.example.answers or q.impossible for q in questions):
        if not test:
            marked = ' or is marked "is_impossible"' if unanswerable else ''
            raise UserError(
                f'{files}: no labels: none of the {len(questions)} questions of split {split} has'
                f' an answer{marked}; only a test split may come without'
            )
        return [dataclasses.replace(question.example, answers=None) for question in questions]
    _check_answers(questions, unanswerable, test)

    # Where mark and answers contradict each other, the two original programs differ.
    examples: list[SpanExample] = []
    odd: list[str] = []
    for _, example, impossible in questions:
        if example.answers is not None and impossible == bool(example.answers):
            odd.append(example.id)
        if impossible and (train or example.answers is None):
            example = dataclasses.replace(example, answers=())
        examples.append(example)
    if odd:
        used = 'trained on as unanswerable' if train else 'scored by their answers'
        message = '%s: %d of %d questions list answers and are marked is_impossible, or neither: %s'
        message += ' (the first is %r)'
        logging.warning(message, files, len(odd), len(questions), used, odd[0])
    return examples


def _check_answers(questions: Sequence[_Question], unanswerable: bool, test: bool) -> None:
    """Raise UserError for a question that has no answer, or is marked so, where it may not."""
    for line, example, impossible in questions:
        if example.answers is None and not impossible and not test:
            raise UserError(
                f'{line}: question {example.id!r} has no "answers"; only in a test split may they '
                'be missing'
            )
        if (example.answers == () or impossible) and not unanswerable:
            raise UserError(f'{line}: question {example.id!r} has no answer; {_HINT}')


def select_usable(task: str, questions: Sequence[SpanExample], files: str) -> list[SpanExample]:
    """Return the training questions whose first answer is where run_squad.py finds it.

    That answer is then as the context spells it. The log says how many were left out and why, and
    of which task.

    Raises:
      UserError: that leaves none; it names the `files`.
    """
    # Training needs one place; scoring uses all of them.
    several = sum(len(example.answers or ()) > 1 for example in questions)
    if several:
        message = '%s train: %d of %d questions have several answers; the first is used'
        logging.info(message, task, several, len(questions))

    # Kept as it is, kept at a place nearby, or left out, by whether the answer is elsewhere at all.
    kept, moved, elsewhere, nowhere = [], 0, 0, 0
    for example in questions:
        if not example.answers:
            kept.append(example)
            continue
        text, start = example.answers[0]
        answer = find_answer(example.context, text, start)
        if answer is not None:
            moved += answer[1] != start
            kept.append(dataclasses.replace(example, answers=(answer, *example.answers[1:])))
        elif _occurs(text, example.context):
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
    reason = f'{elsewhere} have it at another offset, {nowhere} not in the context at all'
    if not kept:
        raise UserError(f'{files}: no question has its answer at its offset: {reason}')
    left_out = elsewhere + nowhere
    if left_out:
        logging.warning(
            '%s train: left out %d of %d questions whose answer is not at its offset: %s',
            *(task, left_out, len(questions), reason),
        )
    return kept


def find_answer(context: str, text: str, start: int) -> tuple[str, int] | None:
    """Return a training answer as the context spells it, and where; None if run_squad.py drops it.

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

    # Any white space in the context counts as any in the answer.
    match = re.compile(r'\s+'.join(map(re.escape, words))).search(context, begin, end)
    return (match[0], match.start()) if match else None


def _occurs(text: str, context: str) -> bool:
    """Tell whether a text that is not blank is anywhere in the context, white space apart."""
    words = ' '.join(text.split())
    return bool(words) and words in ' '.join(context.split())


def _read_squad(path: str) -> Iterator[_Question]:
    """Yield the questions of a file in the SQuAD format."""
    # Places in the file are kept for errors: a person finds data[3].paragraphs[1] and not an id.
    data = read_json(path)
    for i, article in enumerate(_get_entry(data, 'data', list, path, '')):
        outer = f'data[{i}]'
        for j, paragraph in enumerate(_get_entry(article, 'paragraphs', list, path, outer)):
            inner = f'{outer}.paragraphs[{j}]'
            context = _get_entry(paragraph, 'context', str, path, inner)
            for k, question in enumerate(_get_entry(paragraph, 'qas', list, path, inner)):
                yield _read_question(question, context, path, f'{inner}.qas[{k}]')


def _read_question(question: Any, context: str, path: str, outer: str) -> _Question:
    """Read an entry of `qas`; no "answers", or null, means that they are unknown."""
    text = _get_entry(question, 'question', str, path, outer)
    # KLUE calls it guid
    key = 'guid' if 'guid' in question and 'id' not in question else 'id'
    name = str(_get_entry(question, key, (str, int), path, outer))

    # Offsets and texts are checked here for their type, and later for what they point to.
    answers = None
    if question.get('answers') is not None:
        inner = f'{outer}.answers'
        answers = tuple(
            (_get_entry(answer, 'text', str, path, inner), _get_offset(answer, path, inner))
            for answer in _get_entry(question, 'answers', list, path, outer)
        )
    impossible = None
    if question.get('is_impossible') is not None:
        impossible = _get_entry(question, 'is_impossible', bool, path, outer)
    return _Question(path, SpanExample(name, text, context, answers), impossible)


def _get_entry(record: Any, name: str, kind: type | tuple[type, ...], path: str, outer: str) -> Any:
    """Return record[name], which is of that type; UserError says where in the file it is not."""
    value = record.get(name) if isinstance(record, dict) else None
    # type, not isinstance: true is an int there
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        wanted = ' or '.join(_NAMES[each] for each in kinds)
        raise UserError(
            f'{path}: not in the SQuAD format ({outer or "the file"}: {name!r} must be {wanted})'
        )
    if isinstance(value, str) and not well_formed(value):
        raise UserError(f'{path}: {outer}: {name!r} holds half a character')
    return value


# What JSON calls a type.
_NAMES = {list: 'a list', str: 'a text', int: 'a whole number', bool: 'true or false'}


def _get_offset(answer: dict[str, Any], path: str, outer: str) -> int:
    """Return where an answer begins: a whole number, though JSON may spell it "5" or 5.0."""
    value = answer.get('answer_start')
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _get_entry(answer, 'answer_start', int, path, outer)


def _read_table(table: Table, split: str) -> Iterator[_Question]:
    """Yield a table's questions; an answer without a start is at its first occurrence."""
    optional = frozenset({'start', 'answer'} if split.startswith('test') else {'start'})
    lines: dict[str, str] = {}
    for line, row in table.rows(optional, lists=frozenset({'answer', 'start'})):
        # Empty cells are no answers.
        texts = [text for text in _listed(row.get('answer', [])) if text]
        starts = [start for start in _listed(row.get('start', [])) if start]
        if starts and texts and len(starts) != len(texts):
            raise UserError(f'{line}: {len(texts)} answers but {len(starts)} starts')

        # A text that is nowhere gets -1, which `find_answer` refuses.
        try:
            places = list(map(int, starts)) or [row['context'].find(text) for text in texts]
        except ValueError as error:
            raise UserError(
                f'{line}: the start of an answer is not a whole number ({error})'
            ) from error

        # No column of answers means unknown; an empty cell means that there is none.
        answers = tuple(zip(texts, places, strict=False)) if 'answer' in row else None
        name = unique_id(row, line, lines)
        yield _Question(line, SpanExample(name, row['question'], row['context'], answers), None)


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def read_predictions(path: str, extras: bool) -> Predictions:
    """Read the answers in a file of question id -> text.

    With `extras` a file called predictions.json brings the nbest.json and null_odds.json of its
    folder.

    Raises:
      UserError: a file holds something else.
    """
    answers = _read_object(path, 'answer text', lambda answer: isinstance(answer, str))

    # Only under its official name are the files of its folder known to be of the same predictions.
    by_stem: dict[str, dict[str, Any]] = {}
    if extras and os.path.basename(path) == 'predictions.json':
        for stem, (what, fits) in _EXTRAS.items():
            extra = os.path.join(os.path.dirname(path), f'{stem}.json')
            if located(extra):
                by_stem[stem] = _read_object(extra, what, fits)
    return Predictions(answers, by_stem)


def _read_object(path: str, what: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
    """Read question id -> what fits; UserError where the file holds something else."""
    values = read_json(path, unique=True)
    wrong = ['it']
    if isinstance(values, dict):
        wrong = [name for name, value in values.items() if not fits(value)]
    if wrong:
        raise UserError(
            f'{path}: expected a JSON object of question id -> {what}: {wrong[0]!r} has something'
            ' else'
        )
    return values


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _lists_texts(value: Any) -> bool:
    # Anything else besides the texts (scores, probabilities) is the writer's own.
    if not isinstance(value, list):
        return False
    return all(isinstance(item, dict) and isinstance(item.get('text'), str) for item in value)


# The answers of a question, best first; how much better no answer is than the best answer.
_EXTRAS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'nbest': ('list of {"text": answer, ...}', _lists_texts),
    'null_odds': ('finite number', _is_finite),
}
