"""Which label a fine-tuned run gives to the examples of each label: counted from its predictions.

Owns the counting; the predictions and the truth are those of the run's folder and of its task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks import load_task
from bert_jax.reports.page.runs import Run

KINDS = ('classification', 'pair')


class Confusion(NamedTuple):
    """counts: [L, L], examples of a label (rows) that were given a label (columns)."""

    split: str
    labels: tuple[str, ...]
    counts: np.ndarray


def confusion(run: Run) -> Confusion | None:
    """The counts over the scored split of a run that is done; None where a task has no labels.

    UserError where the task's files are gone or hold other examples by now.
    """
    result = run.result
    if result is None:
        return None
    task = load_task(run.data['task'], run.data['data_dir'])
    if task.kind not in KINDS:
        return None

    # The predictions that were scored, beside the labels that they were scored by.
    split = result['split']
    examples = task.examples(split)
    file = run.workdir.predictions(split) / 'predictions.tsv'
    answers = task.read_predictions(str(file), examples).answers
    if {example.id for example in examples} != set(answers):
        raise UserError(f'the {split} split of {run.data["task"]} holds other examples by now')
    counts = np.zeros((len(task.labels), len(task.labels)), np.int64)
    places = {label: place for place, label in enumerate(task.labels)}
    for example in examples:
        counts[example.label, places[answers[example.id]]] += 1
    return Confusion(split, task.labels, counts)
