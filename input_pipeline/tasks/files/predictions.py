"""Predictions as a table `index, prediction`, the form of a GLUE submission.

This file owns that format and the refusal of what does not fit the task. It must not know how a
task is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import E, Predictions, Task
from bert_jax.input_pipeline.text.tables import Table

_LARGEST = 3.4e38  # of float32, in which numbers are learnt


def label_table(answers: Mapping[str, Any]) -> str:
    """Return a header `index, prediction` and rows; labels as words, numbers with six digits."""
    rows = [
        f'{name}\t{answer:.6g}' if isinstance(answer, float) else f'{name}\t{answer}'
        for name, answer in answers.items()
    ]
    return '\n'.join(['index\tprediction', *rows]) + '\n'


def read(path: str, answer: Callable[[str, str], Any]) -> Predictions:
    """Read a file as `label_table` makes it, whoever wrote it.

    Args:
      path: the file.
      answer: gives what a text of it means; its second argument is where errors say that it is.

    Raises:
      UserError: it has an id twice, or what `answer` refuses.
    """
    # Every line is checked here, so that scoring can trust labels and numbers.
    answers: dict[str, Any] = {}
    for line, row in Table(path, {'id': 'index', 'answer': 'prediction'}, format='tsv').rows():
        if row['id'] in answers:
            raise UserError(f'{line}: id {row["id"]!r} again')
        answers[row['id']] = answer(row['answer'], line)
    return Predictions(answers)


def number(text: str, line: str) -> float:
    """Return the finite number that a text spells; `line` is where errors say it is."""
    try:
        value = float(text)
    except ValueError as error:
        raise UserError(f'{line}: {text!r} is not a number') from error

    # in these words it is true of nan, too
    if not abs(value) <= _LARGEST:
        raise UserError(f'{line}: {text!r} is not finite in 32 bits')
    return value


def require_labels(task: Task[E], examples: Sequence[E]) -> None:
    """Raise UserError where labels are missing."""
    if unknown := sum(not task.labelled([example]) for example in examples):
        count = f'{unknown} of {len(examples)} examples have'
        what = 'this split has' if unknown == len(examples) else count
        raise UserError(f'task {task.name}: {what} no labels, so it cannot be scored')


def complete(task: Task[E], examples: Sequence[E], predictions: Predictions) -> list[Any]:
    """Return the answer to each example.

    Raises:
      UserError: labels are missing, or predictions, or there are some of other examples.
    """
    require_labels(task, examples)

    # Both ways: all examples answered, and nothing answered that is not an example, for that is a
    # file of another split.
    missing = [example.id for example in examples if example.id not in predictions.answers]
    if missing:
        raise UserError(
            f'task {task.name}: no prediction for {len(missing)} of {len(examples)} examples, the'
            f' first is {missing[0]!r}'
        )

    # none is missing, so more answers than examples means strangers among them
    if len(predictions.answers) > len(examples):
        ids = {example.id for example in examples}
        others = [name for name in predictions.answers if name not in ids]
        raise UserError(
            f'task {task.name}: {len(others)} predictions are of examples that the split does not '
            f'have, the first is {others[0]!r}: are they of another split?'
        )
    return [predictions.answers[example.id] for example in examples]
