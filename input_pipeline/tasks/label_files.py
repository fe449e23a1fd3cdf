"""Predictions as a table `index, prediction`, the form of a GLUE submission, for every task with one answer an example.

This file owns that format and the refusal of what does not fit the task. It must not know how a task is scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import UserError
from input_pipeline.tasks.base import Example, Predictions, Task, write_text
from input_pipeline.tasks.tables import Table


def label_table(answers: Mapping[str, Any]) -> str:
    """A header `index, prediction`; labels as words, numbers with six digits."""
    rows = [f'{name}\t{answer:.6g}' if isinstance(answer, float) else f'{name}\t{answer}' for name, answer in answers.items()]
    return '\n'.join(['index\tprediction', *rows]) + '\n'


def write_labels(path: str, predictions: Predictions) -> None:
    """Writes `label_table`, whole or not at all."""
    write_text(path, label_table(predictions.answers))


def read_labels(task: Task, path: str) -> Predictions:
    """Reads what `write_labels` wrote, or anyone else. Raises UserError for unknown labels, words for numbers, and repeated ids."""
    answers: dict[str, Any] = {}
    for where, row in Table(path, {'id': 'index', 'answer': 'prediction'}, format='tsv').rows():
        name, answer = row['id'], row['answer']
        if name in answers:
            raise UserError(f'{where}: id {name!r} again')
        if not task.labels:
            answers[name] = number(answer, where)
        elif answer in task.labels:
            answers[name] = answer
        else:
            raise UserError(f'{where}: unknown label {answer!r}; task {task.name} has {", ".join(task.labels)}')
    return Predictions(answers)


def number(text: str, where: str) -> float:
    """The finite number that a text spells."""
    try:
        value = float(text)
    except ValueError as error:
        raise UserError(f'{where}: the label {text!r} is not a number') from error
    if not abs(value) < float('inf'):
        raise UserError(f'{where}: the label {text!r} is not finite')
    return value


def complete(task: Task, examples: Sequence[Example], predictions: Predictions) -> list[Any]:
    """The answer to each example. Raises UserError where the split has no labels, or a prediction is missing."""
    if not task.labelled(examples):
        raise UserError(f'task {task.name}: this split has no labels, so it cannot be scored')
    missing = [example.id for example in examples if example.id not in predictions.answers]
    if missing:
        raise UserError(f'task {task.name}: no prediction for {len(missing)} of {len(examples)} examples, the first is {missing[0]!r}')
    return [predictions.answers[example.id] for example in examples]
