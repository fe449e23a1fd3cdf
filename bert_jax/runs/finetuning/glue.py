"""All of GLUE at once: many runs as the paper's table, and their test predictions as a submission.

Owns which run stands for a task, the table's columns, and the zip that the GLUE site takes. It must
not know how a model predicts (finetuning/evaluation.py), nor the tasks' files.
"""

from __future__ import annotations

import collections
import glob
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.configs.files.json_object import read_object
from bert_jax.input_pipeline.tasks.base import format_label_table
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.runs.finetuning import evaluation
from bert_jax.runs.finetuning.sweep import align, find_best
from bert_jax.runs.workdir.workdir import Workdir

# What eval/SPLIT.json says.
Result = dict[str, Any]
# Column of the paper's Table 1 -> task, split and metric of each number in it.
_COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    'MNLI-(m/mm)': (('mnli', 'dev', 'accuracy'), ('mnli', 'dev_mismatched', 'accuracy')),
    'QQP': (('qqp', 'dev', 'f1'),),
    'QNLI': (('qnli', 'dev', 'accuracy'),),
    'SST-2': (('sst2', 'dev', 'accuracy'),),
    'CoLA': (('cola', 'dev', 'matthews'),),
    'STS-B': (('stsb', 'dev', 'spearman'),),
    'MRPC': (('mrpc', 'dev', 'f1'),),
    'RTE': (('rte', 'dev', 'accuracy'),),
}
# File of a submission -> task, split and the rows that the site expects, the size of its test set;
# AX is answered by the MNLI model, WNLI by a model or by the majority.
_FILES = {
    'AX': ('ax', 'test', 1104),
    'CoLA': ('cola', 'test', 1063),
    'MNLI-m': ('mnli', 'test', 9796),
    'MNLI-mm': ('mnli', 'test_mismatched', 9847),
    'MRPC': ('mrpc', 'test', 1725),
    'QNLI': ('qnli', 'test', 5463),
    'QQP': ('qqp', 'test', 390_965),
    'RTE': ('rte', 'test', 3000),
    'SST-2': ('sst2', 'test', 1821),
    'STS-B': ('stsb', 'test', 1379),
    'WNLI': ('wnli', 'test', 146),
}
_SIMILARITY = (0.0, 5.0)  # what the site takes for STS-B
# Tasks of which there must be a run; AX and WNLI are answered without one.
_NEEDED = 'cola sst2 mrpc stsb qqp mnli qnli rte'.split()
_FOLDERS = {'ax': ('diagnostic', 'AX'), 'wnli': ('WNLI',)}  # as the GLUE download names them


class TaskRun(NamedTuple):
    """A finished run of a task.

    Attributes:
      folder: its workdir.
      result: what its eval/dev.json says.
      data_dir: the folder of the task's files.
    """

    folder: str
    result: Result
    data_dir: str


def find_runs(pattern: str) -> dict[str, TaskRun]:
    """Find for each task its run that is best on dev, of all finished runs that a glob matches.

    A sweep that matches stands for its runs.

    Raises:
      UserError: no folder that matches is a finished run.
    """
    by_task: dict[str, list[TaskRun]] = collections.defaultdict(list)
    for path in sorted(glob.glob(pattern)):
        # Both files are there only when the run is done.
        for folder in [path, *sorted(glob.glob(os.path.join(glob.escape(path), 'runs', '*')))]:
            workdir = Workdir(folder)
            if not workdir.result('dev').exists() or not workdir.data_file.exists():
                continue
            result, data = read_object(workdir.result('dev')), read_object(workdir.data_file)
            if 'task' in result:  # a workdir of bert-pretrain may have a split called dev
                by_task[result['task']].append(TaskRun(folder, result, data['data_dir']))
    if not by_task:
        raise UserError(
            f'--runs={pattern}: no folder that matches is a finished run or sweep of'
            ' bert-finetune (put the glob in quotes)'
        )

    # One run stands for a task: the best on dev that has learnt something.
    best = {}
    for task, runs in by_task.items():
        highest = find_best([run.result for run in runs])
        chosen = best[task] = next(run for run in runs if run.result is highest)
        metric = highest['metric']
        logging.info(
            f'{task}: {chosen.folder}, the best of {len(runs)} on dev ({metric}'
            f' {highest["metrics"][metric]:.4f})'
        )
        if highest.get('failed'):
            line = '%s: %s has learnt nothing (FAILED), and no other run has'
            logging.warning(line, task, chosen.folder)
    return best


def format_table(runs: dict[str, TaskRun]) -> str:
    """Write the row of the paper's Table 1 for these runs, on dev, in percent.

    `-` where there is no run, the mean where all are there.
    """
    # Percent, as the paper has it; MNLI's cell has two numbers, which the mean counts as two.
    cells, numbers = {}, []
    for column, entries in _COLUMNS.items():
        values = []
        for task, split, metric in entries:
            if task in runs:
                values.append(100 * read_or_score(runs[task], split)['metrics'][metric])
        numbers += values
        cells[column] = '/'.join(f'{value:.1f}' for value in values) or '-'

    # A mean of some of the tasks would look better or worse than it is.
    complete = len(numbers) == sum(map(len, _COLUMNS.values()))
    cells['Average'] = '-'
    if complete:
        cells['Average'] = f'{sum(numbers) / len(numbers):.1f}'
    return '\n'.join(align([list(cells), list(cells.values())]))


def submit(runs: dict[str, TaskRun], glue: str | None, output: str) -> None:
    """Write the zip with a file for each task, predicting the test splits that are not yet.

    Args:
      runs: the run of each task.
      glue: the folder of the GLUE download, for AX and WNLI; None: the one with the MNLI data.
      output: the zip.

    Raises:
      UserError: runs or test files are missing, or have other rows than the site's; it names all
        of them, before anything is predicted.
    """
    folders = find_folders(runs, glue)
    examples = read_test_examples(runs, glue, folders)

    # The predictions, which are made where a run has none yet: this is what takes long.
    texts = {}
    for name, (task, split, _) in _FILES.items():
        # WNLI without a run: the majority, as the paper submits it; AX by the model of MNLI.
        if task == 'wnli' and task not in runs:
            majority = find_majority(folders[task])
            answers: Result = {example.id: majority for example in examples[name]}
        elif task == 'ax':
            run = runs['mnli']
            answers = read_or_predict(run, task, split, folders[task])
        else:
            run = runs[task]
            answers = read_or_predict(run, task, split, None)

        # The regression may leave the scale, and the site takes no number beyond it.
        if task == 'stsb':
            answers = clip(answers)

        # The file must have every row of the test set, in its order.
        lacking = [example.id for example in examples[name] if example.id not in answers]
        if lacking:
            raise UserError(
                f'{run.folder}: its predictions of {task} {split} lack {len(lacking)} examples, the'
                f' first is {lacking[0]!r}: predict again (bert-evaluate --workdir={run.folder}'
                f' --split={split})'
            )
        texts[name] = format_label_table(
            {example.id: answers[example.id] for example in examples[name]}
        )

    # Last the zip, which is there whole or not at all.
    with (
        atomic_file(Path(output)) as file,
        zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, text in texts.items():
            archive.writestr(f'{name}.tsv', text)


def read_test_examples(
    runs: dict[str, TaskRun], glue: str | None, folders: dict[str, str]
) -> dict[str, list[Any]]:
    """Read the examples of each file of a submission; UserError names all that is missing."""
    # One message of all that is wrong: a download that takes hours is best done once.
    missing = [f'a run of {task}' for task in _NEEDED if task not in runs]
    for task, folder in folders.items():
        if not folder:
            parent = find_parent(runs, glue) or 'the GLUE folder (--data_dir)'
            missing.append(f'the folder {_FOLDERS[task][0]} in {parent}')
    data_dirs = {task: run.data_dir for task, run in runs.items()} | folders
    examples: dict[str, list[Any]] = {}
    others = []
    for name, (task, split, rows) in _FILES.items():
        if not data_dirs.get(task):
            continue
        try:
            examples[name] = load_task(task, data_dirs[task]).examples(split)
        except UserError as error:
            missing.append(str(error))
            continue

        # A dev set under the name of a test set, or a shortened one: the site would refuse it.
        count = len(examples[name])
        if count != rows:
            others.append(
                f'{name}: {count} rows in the {split} split of {task}, {rows} on the site'
            )
    problems = []
    if missing:
        problems.append(f'missing {"; ".join(missing)}')
    if others:
        problems.append(f"test files that are not the GLUE site's: {'; '.join(others)}")
    if problems:
        raise UserError(f'no submission: {"; and ".join(problems)}')
    return examples


def find_parent(runs: dict[str, TaskRun], glue: str | None) -> str:
    """Return the folder of the GLUE download: `glue`, or that of the MNLI data; '' if unknown."""
    if glue:
        return glue
    if 'mnli' not in runs:
        return ''
    mnli = runs['mnli'].data_dir
    if mnli.startswith('tfds:'):
        return mnli
    return os.path.dirname(mnli)


def find_folders(runs: dict[str, TaskRun], glue: str | None) -> dict[str, str]:
    """Return the data folder ('' where there is none) of each task that needs no run of its own."""
    # Of tfds there are no folders: the same prefix serves all tasks.
    parent = find_parent(runs, glue)
    if parent.startswith('tfds:'):
        return dict.fromkeys(_FOLDERS, parent)
    folders: dict[str, str] = {}
    for task, names in _FOLDERS.items():
        folders[task] = runs[task].data_dir if task in runs else ''
        for name in reversed(names):
            path = os.path.join(parent, name)
            if os.path.isdir(path):
                folders[task] = path
    return folders


def clip(answers: dict[str, float]) -> dict[str, float]:
    """Clip STS-B's numbers to 0 to 5, as the site wants them; log how many were beyond.

    Not for scores on dev.
    """
    low, high = _SIMILARITY
    within = {name: min(max(answer, low), high) for name, answer in answers.items()}
    changed = sum(within[name] != answer for name, answer in answers.items())
    if changed:
        line = 'STS-B: %d of %d predictions were beyond %g to %g and are clipped'
        logging.info(line, changed, len(within), low, high)
    return within


def find_majority(folder: str) -> str:
    """Return the commoner label of the WNLI training set.

    The paper submits it, because no model beats it (section 4.1).
    """
    task = load_task('wnli', folder)
    counts = collections.Counter(example.label for example in task.examples('train'))
    [(commonest, _)] = counts.most_common(1)
    return task.labels[commonest]


def read_or_score(
    run: TaskRun, split: str, task: str | None = None, data_dir: str | None = None
) -> Result:
    """Return eval/SPLIT.json of a run, made now where it is not there or is of other weights.

    With `task`, of another task's split in `data_dir`.
    """
    # A result is used again only where it is of the same weights and settings: a workdir may have
    # been trained on since.
    path = Workdir(run.folder).result(f'{task}-{split}' if task else split)
    if path.exists():
        result = read_object(path)
        if all(result[key] == run.result[key] for key in ('step', 'config_hash')):
            return result
    return evaluation.evaluate(run.folder, task, data_dir, split)


def read_or_predict(run: TaskRun, task: str, split: str, other_data: str | None) -> Result:
    """Return {example id: answer} of a run for a split of its task.

    With `other_data`, a folder, of another task.
    """
    # The predictions' file is made with the result, so that is asked for first.
    other = task if other_data else None
    read_or_score(run, split, other, other_data)
    loaded = load_task(task, other_data or run.data_dir)
    folder = Workdir(run.folder).predictions(f'{task}-{split}' if other else split)
    return loaded.read_predictions(os.path.join(folder, 'predictions.tsv'), []).answers
