"""Tasks to fine-tune on: read examples, make features, decode model outputs, score.

One file per task family. `load_task` is the way in: it takes one of the paper's tasks by
name, or a JSON task file (docs: `from_description` of the family's file).
"""

from __future__ import annotations

import os
from typing import Any

from bert_jax.configs.errors import UserError, suggest
from bert_jax.input_pipeline.tasks import (
    classification,
    embedding,
    multilabel,
    multiple_choice,
    squad,
    tagging,
    task_file,
)
from bert_jax.input_pipeline.tasks.base import Task
from bert_jax.input_pipeline.text.encodings import located, plain_name

# The families of tasks: the paper's by name, those of JSON task files by kind.
BY_NAME = {
    name: family
    for family in (classification, squad, multiple_choice, tagging)
    for name in family.NAMES
}
BY_KIND = {
    kind: family
    for family in (classification, squad, multiple_choice, tagging, embedding, multilabel)
    for kind in family.KINDS
}


def load_task(name_or_json: str, data_dir: str = '') -> Task:
    """Return the task of that name, or the one that a JSON task file describes.

    Args:
      name_or_json: a name such as 'mrpc', or a path that ends in .json.
      data_dir: the folder with the task's own files, or tfds: for tensorflow-datasets (GLUE,
        SQuAD); for a JSON task '' means the folder of the JSON file.

    Raises:
      UserError: the name is unknown, a folder is needed, or the task file is bad.
    """
    # A path ends in .json and a name does not, so no task can be mistaken for a file.
    if task_file.is_task_file(name_or_json):
        return _load_json(name_or_json, data_dir)
    if name_or_json not in BY_NAME:
        of_run = (
            ' of a task file, such as a run keeps of a table as task/NAME.json'
            if os.path.splitext(name_or_json)[1]
            else ''
        )
        raise UserError(
            f'--task={name_or_json}: unknown; use one of {", ".join(BY_NAME)}, or a path ending in'
            f' .json{of_run}{suggest(name_or_json, BY_NAME)}'
        )
    if not data_dir:
        raise UserError(f'--task={name_or_json} needs --data_dir, the folder that holds its files')

    # The other tasks' official files are not in tensorflow-datasets under a name of ours.
    if data_dir.startswith('tfds:') and BY_NAME[name_or_json] not in (classification, squad):
        raise UserError(
            f'--data_dir={data_dir}: only GLUE and SQuAD are read from tensorflow-datasets by name;'
            f' describe {name_or_json} in JSON'
        )
    return BY_NAME[name_or_json].by_name(name_or_json, data_dir)


def score_file(
    predictions: str, task: str, data_dir: str = '', split: str = 'dev'
) -> dict[str, Any]:
    """Score a file of predictions, in the task's official format, on a split, without any model.

    Returns:
      {'task', 'split', 'metrics', 'examples'}.

    Raises:
      UserError: the file does not fit the split.
    """
    if located(predictions) is None:
        raise UserError(f'--predictions={predictions}: no such file')

    # The examples in their order give each line of the file its label.
    loaded = load_task(task, data_dir)
    examples = loaded.examples(split)
    answers = loaded.read_predictions(predictions, examples)
    return {
        'task': loaded.name,
        'split': split,
        'metrics': loaded.score(examples, answers),
        'examples': len(examples),
    }


def _load_json(path: str, data_dir: str) -> Task:
    """Read a JSON task file; its kind picks the family."""
    description = task_file.read(path)
    if description['kind'] not in BY_KIND:
        raise UserError(
            f'--task={path}: kind {description["kind"]!r} is none of {", ".join(BY_KIND)}'
        )

    # Results are filed under the file's own name. Its data are in its folder, or in data_dir.
    name = os.path.splitext(os.path.basename(plain_name(path)))[0]
    return BY_KIND[description['kind']].from_description(
        name, description, data_dir or os.path.dirname(path) or '.'
    )
