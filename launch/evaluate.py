"""Scores a fine-tuned model on a split, a predictions file, a model's vectors, held-out records.

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
the vectors of texts (docs/sentence_embeddings.md), of any model:
  bert-evaluate --init_from=MODEL --retrieval=DIR [--split=test] [--output=JSON]
  bert-evaluate --init_from=MODEL --sts=FILE [--columns=text=a,text_b=b,score=s]
  bert-evaluate --init_from=MODEL --pairs=FILE
  bert-evaluate --init_from=MODEL --translations=en=FILE --translations=de=FILE
anyone's ranking, a run of six columns as trec_eval reads it:
  bert-evaluate --predictions=RUN --retrieval=DIR

Every setting that the workdir knows is read from it. Results go to eval/SPLIT.json in the workdir,
those of vectors to eval/TASK-NAME.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Literal

from bert_jax.cli import app
from bert_jax.configs.options import option
from bert_jax.runs.calls.vectors import VectorOptions


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
    split: str | None = option(
        None, 'the split to score; default: dev, of records those held out (eval)'
    )
    doc_stride: int | None = option(
        None,
        'score texts that are longer than a row by windows that begin so many word pieces after'
        ' each other, the mean of their scores; default: classifiers cut them',
        bounds=(1, None),
    )
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
    output: str | None = option(
        None,
        'with --suite: the zip to write, by default glue_submission.zip; of vectors: a JSON file',
    )
    init_from: str | None = option(
        None, 'in place of --workdir, to score vectors: a directory, checkpoint or name of a model'
    )
    vectors: VectorOptions = dataclasses.field(default_factory=VectorOptions)


def main(options: Options) -> None:
    """Print the scores as one JSON object, or the table of a suite."""
    from bert_jax.runs.calls.evaluation import evaluate

    result = evaluate(**vars(options))
    # Of scores the text is beside the result, which programs read.
    if result.text:
        print(result.text, file=sys.stderr if result.report else sys.stdout)
    if result.report:
        print(json.dumps(result.report, indent=2))


if __name__ == '__main__':
    app.run(main, Options)
