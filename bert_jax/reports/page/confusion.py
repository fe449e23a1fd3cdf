"""Which label a fine-tuned run gives to the examples of each label: counted from its predictions.

Owns the counting; the predictions and the truth are those of the run's folder and of its task.
"""

from __future__ import annotations

from collections import Counter

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks import load_task
from bert_jax.reports.page.parts import Share, Table
from bert_jax.reports.page.runs import Run


def confusion(run: Run) -> Table | None:
    """Return the counts over the scored split of a run that is done.

    Returns:
      A row for each label, a column for each answer; None where a task has no labels.

    Raises:
      UserError: the task's files are gone or hold other examples by now.
    """
    result = run.result
    assert result is not None, 'only a run that is done has predictions'
    task = load_task(run.data['task'], run.data['data_dir'])
    if task.kind not in ('classification', 'pair'):
        return None

    # The predictions that were scored, and the labels that they were scored by.
    split = result['split']
    examples = task.examples(split)
    file = run.workdir.predictions(split) / 'predictions.tsv'
    answers = task.read_predictions(str(file), examples).answers
    if {example.id for example in examples} != set(answers):
        raise UserError(f'the {split} split of {run.data["task"]} holds other examples by now')
    counts = Counter((task.labels[each.label], answers[each.id]) for each in examples)

    # A cell is the darker the larger its share of the row, as the eye reads a matrix.
    rows = []
    for label in task.labels:
        row = [counts[label, answer] for answer in task.labels]
        cells = [Share(count, count / max(1, sum(row))) for count in row]
        rows.append([label, *cells, f'{sum(row):,}'])
    caption = f'{run.task} {split}: rows are the labels, columns what the run answered'
    return Table(caption, ['label', *task.labels, 'all'], rows, 'matrix')
