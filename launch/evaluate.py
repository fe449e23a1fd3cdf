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
what was found, read again by a model that scores pairs (docs/search.md):
  bert-evaluate (--init_from=MODEL or --candidates=RUN) --retrieval=DIR --rerank=MODEL

Every setting that the workdir knows is read from it. Results go to eval/SPLIT.json in the workdir,
those of vectors to eval/TASK-NAME.json. What is scored follows from the options that are given.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.cli import app
from bert_jax.cli.common_flags import TrainedModel, WithIntervals
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Pooling
from bert_jax.configs.options import option
from bert_jax.runs.functions import make_function_of_several

if TYPE_CHECKING:
    from bert_jax.runs.workdir.results import EvaluateResult


@dataclass(frozen=True, kw_only=True)
class _OfTask:
    """Options of what is scored on a task.

    Attributes:
      task: a task's name or a path ending in .json; default: the one the workdir was fine-tuned on.
      data_dir: the folder that holds the task's own files; default: as in fine-tuning.
      split: the split to score; default: dev.
    """

    task: str | None = None
    data_dir: str | None = None
    split: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateRun(_OfTask):
    """Score a fine-tuned run on a split.

    Attributes:
      workdir: folder of a run of bert-finetune.
      doc_stride: score texts that are longer than a row by windows that begin so many word pieces
        after each other, the mean of their scores; default: classifiers cut them.
    """

    workdir: str
    doc_stride: int | None = option(None, bounds=(1, None))

    def __call__(self) -> EvaluateResult:
        """Score it, and keep the result in its folder eval."""
        _check_workdir(self.workdir)
        from bert_jax.runs.finetuning.evaluation import evaluate
        from bert_jax.runs.workdir.results import EvaluateResult

        text: list[str] = []
        report = evaluate(
            self.workdir, self.task, self.data_dir, self.split, text.append, self.doc_stride
        )
        return EvaluateResult(self.workdir, report, '\n'.join(text))


@dataclass(frozen=True, kw_only=True)
class EvaluateNoise(_OfTask):
    """Score a fine-tuned run on texts with typos.

    Attributes:
      workdir: folder of a run of bert-finetune.
      noise: scores with typos: KINDS:SHARE,SHARE,..., shares of the words from 0 to 1; KINDS is
        typos (all of them), or of insertion, deletion, swap, keyboard, homoglyph and leet, with +.
      noise_seed: which words have a typo, and which typo.
    """

    workdir: str
    noise: str
    noise_seed: int = option(0, within='[0, 4294967295]')

    def __call__(self) -> EvaluateResult:
        """Return the table; the same numbers are in the workdir."""
        _check_workdir(self.workdir)
        from bert_jax.runs import noise
        from bert_jax.runs.workdir.results import EvaluateResult

        typos = noise.parse(self.noise)
        table = noise.measure(
            self.workdir, self.task, self.data_dir, self.split, typos, self.noise_seed
        )
        return EvaluateResult(self.workdir, {}, table)


@dataclass(frozen=True)
class EvaluateRecords:
    """Score a pre-trained run on held-out records.

    Attributes:
      workdir: folder of a run of bert-pretrain.
      data: records directory.
      split: the split to score; default: those held out (eval).
    """

    workdir: str
    data: str
    split: str | None = None

    def __call__(self) -> EvaluateResult:
        """Score masked words and sentence pairs."""
        _check_workdir(self.workdir)
        from bert_jax.runs.pretraining import held_out
        from bert_jax.runs.workdir.results import EvaluateResult

        report = held_out.evaluate(self.workdir, self.data, self.split or 'eval')
        return EvaluateResult(self.workdir, report)


@dataclass(frozen=True)
class EvaluatePredictions:
    """Score anyone's answers to a task, without any model.

    Attributes:
      predictions: score this file, in the task's official format.
      task: a task's name or a path ending in .json.
      data_dir: the folder that holds the task's own files.
      split: the split to score; default: dev.
    """

    predictions: str
    task: str
    data_dir: str | None = None
    split: str | None = None

    def __call__(self) -> EvaluateResult:
        """Score them."""
        from bert_jax.input_pipeline.tasks.load_task import score_file
        from bert_jax.runs.workdir.results import EvaluateResult

        report = score_file(self.predictions, self.task, self.data_dir or '', self.split or 'dev')
        return EvaluateResult('', report)


@dataclass(frozen=True)
class EvaluateSuite:
    """Print the table of a benchmark, and write its submission.

    Attributes:
      suite: all tasks of a benchmark.
      runs: a glob of workdirs of bert-finetune, sweeps too; the best on dev stands for its task.
      data_dir: the folder that holds the folders of the tasks; default: as in fine-tuning.
      output: the zip to write.
    """

    suite: Literal['glue']
    runs: str
    data_dir: str | None = None
    output: str = 'glue_submission.zip'

    def __call__(self) -> EvaluateResult:
        """Write the zip; the text of the result is the table."""
        app.check_output_file('output', self.output)
        from bert_jax.runs.finetuning import glue
        from bert_jax.runs.workdir.results import EvaluateResult

        best = glue.find_runs(self.runs)
        table = glue.format_table(best)
        lines = [table]
        # At once: to make the submission may predict test sets for hours.
        if app.in_command():
            print(table, flush=True)
            lines = []
        glue.submit(best, self.data_dir, self.output)
        return EvaluateResult('', {}, '\n'.join([*lines, f'wrote {self.output}']))


@dataclass(frozen=True, kw_only=True)
class _Vectors(TrainedModel, WithIntervals):
    """Options of what is scored by the vectors of a model.

    Attributes:
      pool: how the vectors of a text's pieces become one; default: the model's own, or mean.
      truncate_dim: how many of their first numbers; default: the model's own, or all.
      max_seq_length: word pieces of the longest row; default: the model's own.
    """

    pool: Pooling | None = None
    truncate_dim: int | None = None
    max_seq_length: int | None = None

    def __call__(self) -> EvaluateResult:
        """Return the scores, and write them into the workdir of the model."""
        self.check_output()
        self.read_options()
        from bert_jax.configs.files.store import write_note
        from bert_jax.inference import Bert
        from bert_jax.runs.finetuning.evaluation import check_writable
        from bert_jax.runs.workdir.results import EvaluateResult
        from bert_jax.runs.workdir.workdir import Workdir

        if self.workdir:
            _check_workdir(self.workdir)
            check_writable(Workdir(self.workdir))
        bert = Bert.load(self.where, 'float32')  # what is scored hangs on no processor

        def embed(texts: Sequence[str], prompt: str | None) -> Any:
            length, kept = self.max_seq_length, self.truncate_dim
            return bert.embed(texts, (-1,), self.pool, length, prompt, kept)

        drawn = {'draws': self.bootstrap, 'seed': self.bootstrap_seed}
        report = self.score(embed, compare=bert.similarity, **drawn)
        report |= {'model': self.where, 'step': bert.source.step}
        if self.workdir:
            result = Workdir(self.workdir).result(f'{report["task"]}-{self.name_data()}')
            write_note(result, report, 2)
        self.write_output(report)
        return EvaluateResult(self.workdir or '', report)

    def read_options(self) -> None:
        """Raise UserError for what is wrong with the options, before a model is read."""

    def score(self, embed: Any, **measured: Any) -> dict[str, Any]:
        """Return the report.

        Args:
          embed: returns the vectors of texts, with a prompt before each.
          **measured: how vectors are compared, and the draws of the intervals.
        """
        raise NotImplementedError

    def name_data(self) -> str:
        """Return a name of the texts, for the file of the result."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class EvaluateRetrieval(_Vectors):
    """Search by a model's vectors, and score the ranking.

    Attributes:
      retrieval: score vectors: a folder of BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.
      split: the split to score.
      rerank: a model that scores pairs, which reads the nearest documents again.
      depth: how many it reads of a query; default: 100.
    """

    retrieval: str
    split: str = 'test'
    rerank: str | None = None
    depth: int | None = option(None, bounds=(1, None))

    def read_options(self) -> None:
        """Raise UserError for a depth of nothing."""
        if self.depth and not self.rerank:
            raise UserError('--depth: it is for --rerank, which names what reads again')

    def score(self, embed: Any, **measured: Any) -> dict[str, Any]:
        """Return nDCG and others, as sentence-transformers and trec_eval have them."""
        from bert_jax.inference.reranker import Reranker
        from bert_jax.runs.vector_evaluation import evaluate_retrieval

        reranker = Reranker(self.rerank, self.depth or 100) if self.rerank else None
        return evaluate_retrieval(embed, self.retrieval, self.split, **measured, reranker=reranker)

    def name_data(self) -> str:
        """Return the folder's name and the split."""
        return f'{_name_file(self.retrieval)}-{self.split}{"-reranked" if self.rerank else ""}'


@dataclass(frozen=True, kw_only=True)
class _OfRanking(WithIntervals):
    """Options of what scores anyone's ranking.

    Attributes:
      retrieval: a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (BEIR).
      split: the split to score.
    """

    retrieval: str
    split: str = 'test'

    def score(self, path: str, rerank: str = '', depth: int = 0) -> EvaluateResult:
        """Return the scores of a ranking's documents; of what reads them again those after it."""
        self.check_output()
        from bert_jax.inference.reranker import Reranker
        from bert_jax.runs.vector_evaluation import evaluate_run
        from bert_jax.runs.workdir.results import EvaluateResult

        reranker = Reranker(rerank, depth) if rerank else None
        drawn = self.bootstrap, self.bootstrap_seed
        report = evaluate_run(path, self.retrieval, self.split, *drawn, reranker)
        self.write_output(report)
        return EvaluateResult('', report)


@dataclass(frozen=True, kw_only=True)
class EvaluateRanking(_OfRanking):
    """Score anyone's ranking, without any model.

    Attributes:
      predictions: a run of six columns, as trec_eval reads it.
    """

    predictions: str

    def __call__(self) -> EvaluateResult:
        """Return the scores of its documents."""
        return self.score(self.predictions)


@dataclass(frozen=True, kw_only=True)
class EvaluateReranking(_OfRanking):
    """Read anyone's ranking again, and score it before and after.

    Attributes:
      candidates: a run of six columns, as trec_eval reads it: what was found for each query.
      rerank: a model that scores pairs, which reads it again.
      depth: how many documents it reads of a query.
    """

    candidates: str
    rerank: str
    depth: int = option(100, bounds=(1, None))

    def __call__(self) -> EvaluateResult:
        """Return the scores before and after."""
        return self.score(self.candidates, self.rerank, self.depth)


@dataclass(frozen=True, kw_only=True)
class _OfPairs(_Vectors):
    """Options of what reads a file of pairs.

    Attributes:
      columns: where columns are called otherwise: "text=a,text_b=b,score=s".
      header: whether the first line names the columns.
    """

    columns: str | Mapping[str, str | int] = ''
    header: bool = True

    def read_columns(self) -> dict[str, str | int]:
        """Return the columns by what they hold."""
        from bert_jax.input_pipeline.text.record_files import parse_columns

        if isinstance(self.columns, Mapping):
            return dict(self.columns)
        return parse_columns(self.columns)


@dataclass(frozen=True, kw_only=True)
class EvaluateSimilarity(_OfPairs):
    """Compare the similarity of vectors with the scores that people gave.

    Attributes:
      sts: score vectors: a file of pairs with a score; columns sentence1, sentence2 and score.
      score_range: the least and the greatest score that may be.
    """

    sts: str
    score_range: str = '0,5'

    def read_options(self) -> None:
        """Raise UserError for columns or a range that are none."""
        self.read_columns()
        self.read_range()

    def read_range(self) -> tuple[float, float]:
        """Return (0.0, 5.0) of '0,5'. UserError for what is no range."""
        try:
            low, high = map(float, self.score_range.split(','))
        except ValueError:
            low, high = 0.0, 0.0
        if not low < high:
            raise UserError(
                f'--score_range={self.score_range}: write LEAST,GREATEST, as in --score_range=0,5'
            )
        return low, high

    def score(self, embed: Any, **measured: Any) -> dict[str, Any]:
        """Return correlations."""
        from bert_jax.runs import vector_evaluation

        columns, span = self.read_columns(), self.read_range()
        return vector_evaluation.evaluate_similarity(
            embed, self.sts, columns, self.header, span, **measured
        )

    def name_data(self) -> str:
        """Return the file's name."""
        return _name_file(self.sts)


@dataclass(frozen=True, kw_only=True)
class EvaluatePairs(_OfPairs):
    """Tell pairs that match from those that do not by their vectors.

    Attributes:
      pairs: score vectors: a file of pairs that match (1) or not (0); columns sentence1, sentence2
        and label.
    """

    pairs: str

    def read_options(self) -> None:
        """Raise UserError for columns that are none."""
        self.read_columns()

    def score(self, embed: Any, **measured: Any) -> dict[str, Any]:
        """Return average precision and others."""
        from bert_jax.runs import vector_evaluation

        columns = self.read_columns()
        return vector_evaluation.evaluate_pairs(embed, self.pairs, columns, self.header, **measured)

    def name_data(self) -> str:
        """Return the file's name."""
        return _name_file(self.pairs)


@dataclass(frozen=True, kw_only=True)
class EvaluateTranslations(_Vectors):
    """Find translations by a model's vectors.

    Attributes:
      translations: score vectors: LANGUAGE=FILE for each language, files as of bert-evaluate
        translations.
    """

    translations: tuple[str, ...]

    def read_options(self) -> None:
        """Raise UserError for files that are not parallel."""
        _ = self.texts

    @functools.cached_property
    def texts(self) -> dict[str, list[str]]:
        """Return the texts of each language."""
        from bert_jax.runs.crosslingual.languages import read_parallel

        return read_parallel(self.translations, 'translations')

    def score(self, embed: Any, **measured: Any) -> dict[str, Any]:
        """Return how often the nearest text is the translation."""
        from bert_jax.runs import vector_evaluation

        return vector_evaluation.evaluate_translations(embed, self.texts, **measured)

    def name_data(self) -> str:
        """Return the languages."""
        return '-'.join(self.texts)


def _check_workdir(workdir: str) -> None:
    from bert_jax.runs.workdir.workdir import Workdir

    Workdir(workdir).check(flag='workdir')


def _name_file(path: str) -> str:
    return pathlib.PurePath(path).stem


ACTIONS = (
    EvaluateRun,
    EvaluateNoise,
    EvaluateRecords,
    EvaluatePredictions,
    EvaluateSuite,
    EvaluateRetrieval,
    EvaluateRanking,
    EvaluateReranking,
    EvaluateSimilarity,
    EvaluatePairs,
    EvaluateTranslations,
)
evaluate = make_function_of_several(ACTIONS, 'workdir')

if __name__ == '__main__':
    app.run(*ACTIONS)
