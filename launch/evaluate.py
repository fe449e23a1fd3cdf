"""Scores a fine-tuned model on a split, a predictions file, or a pre-trained model on held-out
records.

a workdir of launch.finetune:
  python -m launch.evaluate --workdir=DIR [--split=dev] [--task=NAME --data_dir=DIR]
anyone's answers:
  python -m launch.evaluate --predictions=FILE --task=NAME --data_dir=DIR [--split=dev]
held-out MLM and NSP:
  python -m launch.evaluate --workdir=DIR --data=RECORDS
GLUE's table and submission:
  python -m launch.evaluate --suite=glue --runs="runs/*" [--output=ZIP]

Every setting that the workdir knows is read from it. Results go to eval/SPLIT.json in the workdir.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from absl import flags

from configs.errors import UserError
from launch import app

_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'folder of a run of launch.finetune or launch.pretrain'
)
_TASK = flags.DEFINE_string(
    'task',
    None,
    "a task's name or a path ending in .json; default: the one the workdir was fine-tuned on",
)
_DATA_DIR = flags.DEFINE_string(
    'data_dir', None, "the folder that holds the task's own files; default: as in fine-tuning"
)
_SPLIT = flags.DEFINE_string('split', None, 'the split to score; default: dev, of records eval')
_PREDICTIONS = flags.DEFINE_string(
    'predictions', None, "score this file, in the task's official format, instead of a model"
)
_DATA = flags.DEFINE_string('data', None, 'records directory, for a workdir of launch.pretrain')
_SUITE = flags.DEFINE_enum(
    'suite', None, ['glue'], 'all tasks of a benchmark: prints the table and writes the submission'
)
_RUNS = flags.DEFINE_string(
    'runs',
    None,
    'with --suite: a glob of workdirs of launch.finetune, sweeps too; the best on dev stands for'
    ' its task',
)
_OUTPUT = flags.DEFINE_string('output', 'glue_submission.zip', 'with --suite: the zip to write')


def main(argv: Sequence[str]) -> None:
    """Prints the scores as one JSON object, or the table of a suite."""
    del argv
    if _SUITE.value:
        if not _RUNS.value:
            raise UserError('--suite needs --runs, a glob of workdirs of launch.finetune')
        from launch.finetuning import glue

        runs = glue.find_runs(_RUNS.value)
        print(glue.table(runs), flush=True)
        glue.submit(runs, _DATA_DIR.value, _OUTPUT.value)
        print(f'wrote {_OUTPUT.value}')
        return
    if _WORKDIR.value:
        from launch.finetuning import results

        results.refuse_sweep(_WORKDIR.value)
    if _PREDICTIONS.value:
        report = score_file(
            _PREDICTIONS.value, _TASK.value, _DATA_DIR.value or '', _SPLIT.value or 'dev'
        )
    elif not _WORKDIR.value:
        raise UserError('name --workdir, or --predictions with --task and --data_dir')
    elif _DATA.value:
        from launch.pretraining import held_out

        report = held_out.evaluate(_WORKDIR.value, _DATA.value, _SPLIT.value or 'eval')
    else:
        from launch.finetuning import evaluation

        report = evaluation.evaluate(_WORKDIR.value, _TASK.value, _DATA_DIR.value, _SPLIT.value)
    print(json.dumps(report, indent=2))


def score_file(path: str, task_name: str | None, data_dir: str, split: str) -> dict:
    """The scores of a file of predictions, in the task's official format, on one of its splits.

    -> {'task', 'split', 'metrics', 'examples'}. UserError where the file does not fit the split.
    """
    from input_pipeline.tasks import load_task
    from input_pipeline.text.whole_text import located

    if not task_name:
        raise UserError('--predictions needs --task')
    if located(path) is None:
        raise UserError(f'--predictions={path}: no such file')
    task = load_task(task_name, data_dir)
    examples = task.examples(split)
    predictions = task.read_predictions(path, examples)
    return {
        'task': task.name,
        'split': split,
        'metrics': task.score(examples, predictions),
        'examples': len(examples),
    }


if __name__ == '__main__':
    app.run(main)
