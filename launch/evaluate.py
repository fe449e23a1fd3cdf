"""Scores a fine-tuned model on a split, a predictions file, a model's vectors, held-out records.

a workdir of bert-finetune:
  bert-evaluate --workdir=DIR [--split=dev] [--task=NAME --data_dir=DIR]
the same with typos in 5, 10 and 20 % of the words (docs/typos.md):
  bert-evaluate --workdir=DIR --noise=typos:0.05,0.1,0.2
anyone's answers:
  bert-evaluate --predictions=FILE --task=NAME --data_dir=DIR [--split=dev]
held-out MLM and NSP:
  bert-evaluate --workdir=DIR --data=RECORDS
GLUE's table and submission:
  bert-evaluate --suite=glue --runs="runs/*" [--output=ZIP]
the vectors of texts (docs/retrieval.md), of any model:
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

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.cli import app, flags
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Pooling
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
    retrieval: str | None = option(
        None, 'score vectors: a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (BEIR)'
    )
    sts: str | None = option(
        None,
        'score vectors: a file of pairs with a score; columns sentence1, sentence2 and score',
    )
    pairs: str | None = option(
        None,
        'score vectors: a file of pairs that match (1) or not (0); columns sentence1, sentence2 and'
        ' label',
    )
    translations: tuple[str, ...] = option(
        (), 'score vectors: LANGUAGE=FILE for each language, files as of bert-translations'
    )
    columns: str = option(
        '', 'of --sts and --pairs: where columns are called otherwise: "text=a,text_b=b,label=c"'
    )
    header: bool = option(True, 'of --sts and --pairs: whether the first line names the columns')
    score_range: str = option('0,5', 'with --sts: the least and the greatest score that may be')
    pool: Pooling | None = option(None, "of vectors; default: the model's own, or mean")
    truncate_dim: int | None = option(
        None, "of vectors: how many of their first numbers; default: the model's own, or all"
    )
    max_seq_length: int | None = option(
        None, "of vectors: word pieces of the longest row; default: the model's own"
    )
    bootstrap: int = option(
        1000, 'of vectors: draws for the 95 % intervals; 0: no intervals', bounds=(0, None)
    )
    bootstrap_seed: int = option(0, 'of vectors: seed of the draws', within='[0, 4294967295]')


_VECTORS = ('retrieval', 'sts', 'pairs', 'translations')
# Each with what does not go with it.
_APART: dict[str, tuple[str, ...]] = {
    'suite': ('workdir', 'predictions', 'data', 'task', 'split', 'noise', 'doc_stride'),
    'predictions': ('workdir', 'init_from', 'data', 'noise', 'sts', 'pairs', 'translations'),
    'data': ('task', 'data_dir', 'noise'),
    'doc_stride': ('predictions', 'data', 'noise', *_VECTORS),
}
_APART |= {
    what: ('suite', 'data', 'noise', 'task', 'data_dir', *_VECTORS[number + 1 :])
    for number, what in enumerate(_VECTORS)
}
_APART |= {what: (*_APART[what], 'split') for what in _VECTORS if what != 'retrieval'}
# Each flag with those that read it.
_READ_BY = {
    'runs': ('suite',),
    'output': ('suite', *_VECTORS),
    'noise_seed': ('noise',),
    'columns': ('sts', 'pairs'),
    'header': ('sts', 'pairs'),
    'score_range': ('sts',),
    **dict.fromkeys(('init_from', 'pool', 'truncate_dim', 'max_seq_length'), _VECTORS),
    **dict.fromkeys(('bootstrap', 'bootstrap_seed'), _VECTORS),
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
        output = options.output or 'glue_submission.zip'
        glue.submit(runs, data_dir, output)
        print(f'wrote {output}')
    elif any(getattr(options, what) for what in _VECTORS):
        report = _of_vectors(options)
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

        # Beside the result, which programs read.
        show = functools.partial(print, file=sys.stderr)
        stride = options.doc_stride
        report = evaluation.evaluate(options.workdir or '', task, data_dir, split, show, stride)
    if report:
        print(json.dumps(report, indent=2))


def check_flags(options: Options) -> None:
    """Raise UserError for a flag that is missing, or that what is scored does not read."""
    for flag, readers in _READ_BY.items():
        if flags.present(flag) and not any(getattr(options, reader) for reader in readers):
            needed = ' or '.join(f'--{reader}' for reader in readers)
            needed = needed.replace('--suite', '--suite=glue')
            raise UserError(f'--{flag} needs {needed}')
    for what, others in _APART.items():
        if getattr(options, what) and (strange := flags.present(*others)):
            raise UserError(f'{strange[0]} does not go with --{what}: leave one of them out')
    if options.suite and not options.runs:
        raise UserError('--suite needs --runs, a glob of workdirs of bert-finetune')
    if options.predictions and not (options.task or options.retrieval):
        raise UserError('--predictions needs --task')
    if options.workdir and options.init_from:
        raise UserError('name either --workdir or --init_from')
    if options.workdir:
        from bert_jax.runs.workdir.workdir import Workdir

        Workdir(options.workdir).check(flag='workdir')
    elif not options.suite and not options.predictions and not options.init_from:
        raise UserError('name --workdir, or --predictions with --task and --data_dir')


def _of_vectors(options: Options) -> dict[str, Any]:
    """Return the scores of a model's vectors, or of a run, and write them where they are kept."""
    # What is wrong with the flags and the parallel files, before a model is read.
    from bert_jax.input_pipeline.text.record_files import parse_columns
    from bert_jax.runs.crosslingual.parallel import read_parallel

    columns, span = parse_columns(options.columns), _span(options.score_range)
    if options.output:
        app.check_output_file('output', options.output)
    texts = read_parallel(options.translations, 'translations') if options.translations else {}

    from etils import epath

    from bert_jax.configs.files.store import write_note
    from bert_jax.configs.model.sentence import SentenceConfig
    from bert_jax.inference import Bert
    from bert_jax.runs.finetuning.evaluation import check_writable
    from bert_jax.runs.sentences import evaluation
    from bert_jax.runs.workdir.workdir import Workdir

    split, path = options.split or 'test', options.retrieval or options.sts or options.pairs or ''
    drawn: dict[str, Any] = {'draws': options.bootstrap, 'seed': options.bootstrap_seed}
    model = options.workdir or options.init_from
    if options.workdir:
        check_writable(Workdir(options.workdir))
    if model:
        bert = Bert.load(model)
        drawn['compare'] = (bert.source.bert.sentence or SentenceConfig()).similarity

    def embedder(given: Sequence[str], prompt: str | None) -> Any:
        length, kept = options.max_seq_length, options.truncate_dim
        return bert.embed(given, (-1,), options.pool, length, prompt, kept)

    if options.predictions:
        report = evaluation.evaluate_run(options.predictions, path, split, **drawn)
    elif options.retrieval:
        report = evaluation.evaluate_retrieval(embedder, path, split, **drawn)
    elif options.sts:
        report = evaluation.evaluate_similarity(
            embedder, path, columns, options.header, span, **drawn
        )
    elif options.pairs:
        report = evaluation.evaluate_pairs(embedder, path, columns, options.header, **drawn)
    else:
        report = evaluation.evaluate_translations(embedder, texts, **drawn)

    if model:
        report |= {'model': model, 'step': bert.source.step}
    if options.workdir:
        name = '-'.join(texts) or epath.Path(path).stem
        name += f'-{split}' if options.retrieval else ''
        write_note(Workdir(options.workdir).result(f'{report["task"]}-{name}'), report, 2)
    if options.output:
        write_note(epath.Path(options.output), report, 2)
    return report


def _span(text: str) -> tuple[float, float]:
    """Return (0.0, 5.0) of '0,5'. UserError for what is no range."""
    try:
        low, high = map(float, text.split(','))
    except ValueError:
        low, high = 0.0, 0.0
    if not low < high:
        raise UserError(f'--score_range={text}: write LEAST,GREATEST, as in --score_range=0,5')
    return low, high


if __name__ == '__main__':
    app.run(main)
