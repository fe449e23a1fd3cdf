"""Scores a fine-tuned model on a split, a predictions file, or a pre-trained model on records.

a workdir of bert-finetune:
  bert-evaluate --workdir=DIR [--split=dev] [--task=NAME --data_dir=DIR]
the same with typos in 5, 10 and 20 % of the words (docs/embeddings.md):
  bert-evaluate --workdir=DIR --noise=typos:0.05,0.1,0.2
anyone's answers:
  bert-evaluate --predictions=FILE --task=NAME --data_dir=DIR [--split=dev]
held-out MLM and NSP:
  bert-evaluate --workdir=DIR --data=RECORDS
GLUE's table and submission:
  bert-evaluate --suite=glue --runs="runs/*" [--output=ZIP]

Every setting that the workdir knows is read from it. Results go to eval/SPLIT.json in the workdir.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option


@dataclass(frozen=True)
class Options:
    """What is scored: a model, a file of predictions, or the runs of a suite."""

    workdir: str | None = option(None, 'folder of a run of bert-finetune or bert-pretrain')
    task: str | None = option(
        None,
        "a task's name or a path ending in .json; default: the one the workdir was fine-tuned on",
    )
    data_dir: str | None = option(
        None, "the folder that holds the task's own files; default: as in fine-tuning"
    )
    split: str | None = option(None, 'the split to score; default: dev, of records eval')
    predictions: str | None = option(
        None, "score this file, in the task's official format, instead of a model"
    )
    data: str | None = option(None, 'records directory, for a workdir of bert-pretrain')
    noise: str | None = option(
        None,
        'scores with typos: KINDS:SHARE,SHARE,..., shares of the words from 0 to 1; KINDS is typos'
        ' (all of them), or of insertion, deletion, swap, keyboard, homoglyph and leet, with +',
    )
    noise_seed: int = option(
        0, 'with --noise: which words have a typo, and which typo', within='[0, 4294967295]'
    )
    suite: Literal['glue'] | None = option(
        None, 'all tasks of a benchmark: prints the table and writes the submission'
    )
    runs: str | None = option(
        None,
        'with --suite: a glob of workdirs of bert-finetune, sweeps too; the best on dev stands'
        ' for its task',
    )
    output: str = option('glue_submission.zip', 'with --suite: the zip to write')


# Each with what does not go with it.
_APART = {
    'suite': ('workdir', 'predictions', 'data', 'task', 'split', 'noise'),
    'predictions': ('workdir', 'data', 'noise'),
    'data': ('task', 'data_dir', 'noise'),
}

flags.define(Options)


def main(argv: Sequence[str]) -> None:
    """Print the scores as one JSON object, or the table of a suite."""
    del argv
    options = flags.read(Options)
    check_flags(options)
    task, data_dir, split = options.task, options.data_dir, options.split

    # Each branch imports only what it needs: a file of answers needs no model, and so no jax.
    report: dict[str, Any] = {}
    if options.suite:
        from bert_jax.runs.finetuning import glue

        runs = glue.find_runs(options.runs or '')
        # The table at once: to make the submission may predict test sets for hours.
        print(glue.table(runs), flush=True)
        glue.submit(runs, data_dir, options.output)
        print(f'wrote {options.output}')
    elif options.predictions:
        from bert_jax.input_pipeline.tasks import score_file

        report = score_file(options.predictions, task or '', data_dir or '', split or 'dev')
    elif options.data:
        from bert_jax.runs.pretraining import held_out

        report = held_out.evaluate(options.workdir or '', options.data, split or 'eval')
    elif options.noise:
        from bert_jax.runs.robustness import noise

        # A table, as of a suite; the same numbers are in the workdir.
        typos = noise.parse(options.noise)
        workdir = options.workdir or ''
        print(noise.measure(workdir, task, data_dir, split, typos, options.noise_seed))
    else:
        from bert_jax.runs.finetuning import evaluation

        report = evaluation.evaluate(options.workdir or '', task, data_dir, split)
    if report:
        print(json.dumps(report, indent=2))


def check_flags(options: Options) -> None:
    """Raise UserError for a flag that is missing, or that what is scored does not read."""
    if not options.suite and (lone := flags.present('runs', 'output')):
        raise UserError(f'{lone[0]} needs --suite=glue')
    if not options.noise and flags.present('noise_seed'):
        raise UserError('--noise_seed needs --noise')
    for what, others in _APART.items():
        if getattr(options, what) and (strange := flags.present(*others)):
            raise UserError(f'{strange[0]} does not go with --{what}: leave one of them out')
    if options.suite and not options.runs:
        raise UserError('--suite needs --runs, a glob of workdirs of bert-finetune')
    if options.predictions and not options.task:
        raise UserError('--predictions needs --task')
    if options.workdir:
        from bert_jax.runs.workdir.workdir import Workdir

        Workdir(options.workdir).check(flag='workdir')
    elif not options.suite and not options.predictions:
        raise UserError('name --workdir, or --predictions with --task and --data_dir')


if __name__ == '__main__':
    app.run(main)
