"""Tasks to fine-tune on: read examples, make features, decode model outputs, score.

A class for each family of tasks, which says what is in its JSON task files. `load_task` is the way
in: it takes one of the paper's tasks by name, or a JSON task file.
"""

from __future__ import annotations

import os
from typing import Any

from bert_jax.configs.errors import UserError, suggest
from bert_jax.input_pipeline.tasks.base import Task
from bert_jax.input_pipeline.tasks.classification import TextTask
from bert_jax.input_pipeline.tasks.embedding import EmbeddingTask
from bert_jax.input_pipeline.tasks.multilabel import MultiLabelTask
from bert_jax.input_pipeline.tasks.multiple_choice import ChoiceTask
from bert_jax.input_pipeline.tasks.ranking import RankingTask
from bert_jax.input_pipeline.tasks.squad import SpanTask
from bert_jax.input_pipeline.tasks.tagging import TaggingTask
from bert_jax.input_pipeline.tasks.task_file import TaskFile, is_task_file
from bert_jax.input_pipeline.text.encodings import located

TASKS: tuple[type[Task], ...] = (
    TextTask,
    SpanTask,
    ChoiceTask,
    TaggingTask,
    EmbeddingTask,
    MultiLabelTask,
    RankingTask,
)
# The paper's tasks by name, those of JSON task files by kind.
BY_NAME = {name: task for task in TASKS for name in task.names}
BY_KIND = {kind: task for task in TASKS for kind in task.kinds}


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
    if is_task_file(name_or_json):
        file = TaskFile.read(name_or_json, data_dir)
        kind = file.get('kind')
        if kind not in BY_KIND:
            raise UserError(f'--task={name_or_json}: kind {kind!r} is none of {", ".join(BY_KIND)}')
        return BY_KIND[kind].from_task_file(file)
    if name_or_json not in BY_NAME:
        of_run = ''
        if os.path.splitext(name_or_json)[1]:
            of_run = ' of a task file, such as a run keeps of a table as task/NAME.json'
        raise UserError(
            f'--task={name_or_json}: unknown; use one of {", ".join(BY_NAME)}, or a path ending in'
            f' .json{of_run}{suggest(name_or_json, BY_NAME)}'
        )
    if not data_dir:
        raise UserError(f'--task={name_or_json} needs --data_dir, the folder that holds its files')

    # The other tasks' official files are not in tensorflow-datasets under a name of ours.
    if data_dir.startswith('tfds:') and BY_NAME[name_or_json] not in (TextTask, SpanTask):
        raise UserError(
            f'--data_dir={data_dir}: only GLUE and SQuAD are read from tensorflow-datasets by name;'
            f' describe {name_or_json} in JSON'
        )
    return BY_NAME[name_or_json].from_name(name_or_json, data_dir)


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
