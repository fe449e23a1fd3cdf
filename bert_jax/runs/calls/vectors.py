"""What is asked about a model's vectors, and the scores of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Pooling
from bert_jax.configs.options import described, option

KINDS = ('retrieval', 'sts', 'pairs', 'translations')
# What is read for some of them alone.
READ_BY = {
    'columns': ('sts', 'pairs'),
    'header': ('sts', 'pairs'),
    'score_range': ('sts',),
    **dict.fromkeys(('pool', 'truncate_dim', 'max_seq_length'), KINDS),
    **dict.fromkeys(('bootstrap', 'bootstrap_seed'), KINDS),
}


@dataclass(frozen=True)
class VectorOptions:
    """Which texts the vectors of a model are scored on, and how."""

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
        (), 'score vectors: LANGUAGE=FILE for each language, files as of bert-evaluate translations'
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

    def given(self) -> list[str]:
        """Return the options whose values are not the defaults."""
        return [f.name for f in described(type(self)) if getattr(self, f.name) != f.default]


def scores(
    options: VectorOptions, model: str | None, workdir: str | None, run: str | None, split: str
) -> dict[str, Any]:
    """Return the scores of a model's vectors, and write them into its workdir.

    Args:
      options: what is scored.
      model: the model.
      workdir: the folder that it is read from, where that is a run's.
      run: a ranking of six columns in place of a model, as trec_eval reads it.
      split: which of a retrieval task.
    """
    # What is wrong with the flags and the parallel files, before a model is read.
    from bert_jax.input_pipeline.text.record_files import parse_columns
    from bert_jax.runs.crosslingual.parallel import read_parallel

    columns, span = parse_columns(options.columns), _span(options.score_range)
    texts = read_parallel(options.translations, 'translations') if options.translations else {}

    from etils import epath

    from bert_jax.configs.files.store import write_note
    from bert_jax.configs.model.sentence import SentenceConfig
    from bert_jax.inference import Bert
    from bert_jax.runs.finetuning.evaluation import check_writable
    from bert_jax.runs.sentences import evaluation
    from bert_jax.runs.workdir.workdir import Workdir

    path = options.retrieval or options.sts or options.pairs or ''
    drawn: dict[str, Any] = {'draws': options.bootstrap, 'seed': options.bootstrap_seed}
    if workdir:
        check_writable(Workdir(workdir))
    if model:
        bert = Bert.load(model, 'float32')  # what is scored hangs on no processor
        drawn['compare'] = (bert.source.bert.sentence or SentenceConfig()).similarity

    def embedder(given: Sequence[str], prompt: str | None) -> Any:
        length, kept = options.max_seq_length, options.truncate_dim
        return bert.embed(given, (-1,), options.pool, length, prompt, kept)

    if run:
        report = evaluation.evaluate_run(run, path, split, **drawn)
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
    if workdir:
        name = '-'.join(texts) or epath.Path(path).stem
        name += f'-{split}' if options.retrieval else ''
        write_note(Workdir(workdir).result(f'{report["task"]}-{name}'), report, 2)
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
