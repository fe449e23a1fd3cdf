"""Tasks that teach which texts are alike: pairs, triplets, scored pairs and plain texts.

This file owns their layouts, the rows that an example becomes, one for each of its texts, and what
a model's vectors score on them. It must not know the model, nor what is minimised.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import SentenceConfig, VectorsConfig
from bert_jax.input_pipeline.tasks.base import (
    Arrays,
    Example,
    Files,
    Predictions,
    Task,
    list_answers,
    parse_number,
    read_table,
)
from bert_jax.input_pipeline.tasks.features import fold_rows
from bert_jax.input_pipeline.tasks.similarity import correlate_scores
from bert_jax.input_pipeline.tasks.task_file import TaskFile
from bert_jax.input_pipeline.tasks.vector_rows import make_vector_rows
from bert_jax.input_pipeline.text.tables import Table

_BLOCK = 1024  # queries that are compared with all documents at once


class Layout(NamedTuple):
    """What an example of a file is made of.

    Attributes:
      columns: those of its texts, in the order of its rows.
      metrics: what a split of such examples is scored by; none where it cannot be.
    """

    columns: tuple[str, ...]
    metrics: tuple[str, ...] = ()


_RANKED, _SCORED = ('accuracy', 'mrr'), ('spearman', 'pearson')
# By the names that configs/model/sentence.py has for what a loss reads.
LAYOUTS = {
    'pairs': Layout(('anchor', 'positive'), _RANKED),
    'triplets': Layout(('anchor', 'positive', 'negatives'), _RANKED),
    'scored pairs': Layout(('text_a', 'text_b'), _SCORED),
    'texts': Layout(('text',)),
}


@dataclass(frozen=True)
class EmbeddingExample(Example):
    """Texts that go together; the first is the query, and the others are documents.

    `label` is the score of a scored pair, from 0 to 1, or None where it is unknown; other examples
    have none.
    """

    layout: str
    texts: tuple[str, ...]
    label: float | None = None

    respelled = ('texts',)

    def prompted(self, prompts: Mapping[str, str]) -> list[str]:
        """Return its texts behind the prompts of a model, that of queries and that of documents."""
        names = zip(self.prompt_names, self.texts, strict=True)
        return [prompts.get(name, '') + text for name, text in names]

    @property
    def prompt_names(self) -> list[str]:
        """Name the prompt of each text: that of queries of the first, where there are others."""
        names = ['document'] * len(self.texts)
        if len(names) > 1:
            names[0] = 'query'
        return names


@dataclass(frozen=True)
class TaughtExample(EmbeddingExample):
    """Texts with a teacher's score of the query with each document, the positive first.

    They are a class, for what a resumed run compares is the repr of its examples.
    """

    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class EmbeddingTask(Task[EmbeddingExample]):
    """Vectors of texts; see `Task` for the attributes.

    Attributes:
      layouts: split -> the name of its layout.
      metrics: those of the split on which models are scored.
      score_range: the least and the greatest score in the files.
      prompts: (name, text) pairs; 'query' goes before the first text, 'document' before others.
      kind: of vectors, one of `kinds`.
      vectors: what the model says of its rows; None: prompts alone.

    A JSON task file is an object of:
      kind      "embedding": a vector of each text; "sparse_embedding": a weight for each entry of
                the vocabulary; "late_interaction": a vector of each token
      files, header, format, skip_bad_rows   as for classification; a file may be parquet, or a data
                set of the Hub as hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT
      columns   {"anchor", "positive"}, the same with "negatives" (a column, a list of columns, or a
                JSON key that holds a list), {"text_a", "text_b", "score"}, or {"text"}; and "id",
                which is optional. Beside negatives "scores" may be those of a teacher, one for each
                document, the positive first. A file may have columns of its own: splits may differ
      score_range  the least and the greatest score, as in [0, 5]; where there are scores
      prompts   optional: {"query", "document"}, what goes before the first text, and before others
    """

    name: str
    layouts: Mapping[str, str]
    metrics: tuple[str, ...]
    files: Files = field(repr=False)
    score_range: tuple[float, float] = (0.0, 1.0)
    prompts: tuple[tuple[str, str], ...] = ()

    kind: str = 'embedding'
    vectors: VectorsConfig | None = None

    kinds = ('embedding', 'sparse_embedding', 'late_interaction')
    labels = ()
    num_outputs = 0  # its outputs are as wide as the encoder
    truth_column = 'score'
    list_columns = frozenset({'negatives', 'scores'})

    @classmethod
    def from_task_file(cls, file: TaskFile) -> EmbeddingTask:
        """Make a task of vectors, each split with the layout that its columns have."""
        texts = [column for layout in LAYOUTS.values() for column in layout.columns]
        roles = dict.fromkeys((*texts, 'score', 'scores', 'id'), False)
        files = file.tables(roles, ('prompts', 'score_range'), lists=cls.list_columns)
        layouts = {split: _find_layout(file.name, split, files[split]) for split in files}
        score_range = find_range(file, 'scored pairs' in layouts.values())
        prompts = file.get('prompts', {})
        unknown = sorted(set(prompts) - {'query', 'document'})
        if unknown:
            raise UserError(
                f'task {file.name}: prompts {unknown}: they are called query and document'
            )
        scored = 'dev' if 'dev' in files else 'test'
        metrics = LAYOUTS[layouts[scored]].metrics if scored in files else _RANKED
        if not metrics:
            raise UserError(
                f'task {file.name}: plain texts cannot be scored: give files.{scored} columns of'
                ' pairs, triplets or scored pairs'
            )
        prompts = tuple(prompts.items())
        return cls(file.name, layouts, metrics, files, score_range, prompts, file.get('kind'))

    @property
    def head(self) -> str:  # type: ignore[override]  # of each kind of vectors its own
        """Name the head, which is called as the kind."""
        return self.kind

    @property
    def label_keys(self) -> tuple[str, ...]:  # type: ignore[override]  # not of all its layouts
        """Name the scores where it trains on them."""
        if self.layouts.get('train') == 'scored pairs':
            return ('labels',)
        has_scores = ['scores' in table.columns for table in self.files.get('train', ())]
        return ('teacher_scores',) if has_scores and all(has_scores) else ()

    @property
    def options(self) -> dict[str, Any]:
        """Return the prompts, which are kept with the model."""
        return {'prompts': dict(self.prompts)}

    def under(self, options: Mapping[str, Any]) -> EmbeddingTask:
        """Return the task with the prompts of a trained model."""
        trained = options.get('prompts', {})
        if self.prompts and dict(self.prompts) != trained:
            raise UserError(
                f'task {self.name}: its "prompts" are not those that the model was trained with:'
                ' leave them out'
            )
        return dataclasses.replace(self, prompts=tuple(trained.items()))

    def with_vectors(self, vectors: VectorsConfig | None) -> EmbeddingTask:
        """Return the task with rows as a model of such vectors reads them."""
        return dataclasses.replace(self, vectors=vectors)

    def _read_examples(self, split: str) -> list[EmbeddingExample]:
        examples: list[EmbeddingExample] = []
        for name, row, line in self._iterate_rows(split):
            example = self._make_example(split, name, row, line)
            if examples and len(example.texts) != len(examples[0].texts):
                raise UserError(
                    f'{line}: {len(example.texts) - 2} negatives, and the first example of task'
                    f' {self.name} has {len(examples[0].texts) - 2}: give all as many'
                )
            examples.append(example)
        return examples

    def _make_example(
        self, split: str, name: str, row: dict[str, Any], line: str
    ) -> EmbeddingExample:
        layout, texts = self.layouts[split], list[str]()
        for column in LAYOUTS[layout].columns:
            texts += row[column] if isinstance(row[column], list) else [row[column]]
        # An empty side would be like every other empty one.
        if not all(map(str.strip, texts)) or len(texts) < len(LAYOUTS[layout].columns):
            raise UserError(f'{line}: an empty text: mend or delete the row')
        label = None
        if 'score' in row:
            low, high = self.score_range
            score = parse_number(row['score'], line)
            if not low <= score <= high:
                raise UserError(
                    f'{line}: the score {score:g} is not within "score_range" [{low:g}, {high:g}]'
                )
            label = (score - low) / (high - low)
        if 'scores' not in row:
            return EmbeddingExample(name, layout, tuple(texts), label)
        scores = read_teacher(row, len(texts) - 1, line)
        return TaughtExample(name, layout, tuple(texts), label, scores)

    def features(
        self, examples: Sequence[EmbeddingExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] prompt text [SEP] for each of C texts of an example.

        A plain text is there twice, for two draws of dropout.

        Returns:
          ROW_KEYS [N, C, max_seq_length] int32, example_index [N], labels [N] float32 (0 where
          unknown), teacher_scores [N, C - 1, 1] where examples have them, and text_numbers
          [N, C, 1]: equal texts of the split have the same number.
        """
        texts: list[str] = []
        prompts: list[str | None] = []
        for example in examples:
            times = 2 if len(example.texts) == 1 else 1
            texts += example.texts * times
            prompts += example.prompt_names * times

        config = self.vectors or SentenceConfig(prompts=self.prompts)
        rows = make_vector_rows(texts, prompts, tokenizer, max_seq_length, config)
        features = fold_rows(rows, len(examples))
        features['labels'] = np.array([example.label or 0 for example in examples], np.float32)

        # The last axis of one is no row's positions.
        taught = [example.scores for example in examples if isinstance(example, TaughtExample)]
        if taught and len(taught) == len(examples):
            features['teacher_scores'] = np.array(taught, np.float32)[..., None]

        # A prompt is no part of what is equal.
        numbers: dict[str, int] = {}
        of_texts: list[int] = []
        for example in examples:
            of_texts += [numbers.setdefault(text, len(numbers)) for text in example.texts]
        features['text_numbers'] = np.array(of_texts, np.int64).reshape(len(examples), -1, 1)
        return features

    def decode(
        self, examples: Sequence[EmbeddingExample], features: Arrays, outputs: Arrays
    ) -> Predictions:
        """Return of each scored pair its score, and of others the rank of the positive, from 1.

        outputs['vectors'] has those of all texts, those of an example beside each other. Of pairs
        it is the rank among all documents of the split, of triplets among its own.
        """
        vectors: Any = outputs['vectors']
        layout, C = examples[0].layout, len(examples[0].texts)
        answers: list[Any]
        if layout == 'pairs':
            answers = _rank_documents(vectors, features['text_numbers'][..., 0])
        else:
            queries, scores = vectors.take(slice(0, None, C)), []
            for text in range(1, C):
                scores.append(queries.compare_pairs(vectors.take(slice(text, None, C))))
            scores_NC = np.stack(scores, axis=1)
            answers = scores_NC[:, 0].tolist()
            if layout == 'triplets':
                answers = (1 + (scores_NC[:, 1:] >= scores_NC[:, :1]).sum(1)).tolist()
        return Predictions(dict(zip((e.id for e in examples), answers, strict=True)))

    def labelled(self, examples: Sequence[EmbeddingExample]) -> bool:
        """Tell whether these examples can be scored: plain texts cannot."""
        for example in examples:
            if example.label is None and LAYOUTS[example.layout].metrics != _RANKED:
                return False
        return True

    def score(
        self, examples: Sequence[EmbeddingExample], predictions: Predictions
    ) -> dict[str, float]:
        """Return correlations of scored pairs, or how often and how high positives rank."""
        answers = np.array(list_answers(self, examples, predictions), np.float64)
        if examples[0].label is None:
            return {'accuracy': float((answers == 1).mean()), 'mrr': float((1 / answers).mean())}
        truth = np.array([example.label for example in examples])
        return correlate_scores(truth, answers)

    def read_predictions(self, path: str, examples: Sequence[EmbeddingExample]) -> Predictions:
        """Read a file as `write_predictions` makes it, whoever wrote it: cosines, or ranks."""
        is_scored = LAYOUTS[examples[0].layout].metrics == _SCORED
        return read_table(path, parse_number if is_scored else self._read_answer)

    def _read_answer(self, text: str, line: str) -> int:
        rank = parse_number(text, line)
        if not rank.is_integer() or rank < 1:
            raise UserError(f'{line}: the rank {text!r} is not a whole number from 1')
        return int(rank)


def _rank_documents(vectors: Any, numbers_NC: np.ndarray) -> list[int]:
    """Return the rank [N] of each pair's document among all different ones of the split.

    Documents that are another positive of the same query do not count. Of equal scores the own is
    the last: a model that tells nothing apart ranks nothing first.
    """
    _, first_M, document_N = np.unique(numbers_NC[:, 1], return_index=True, return_inverse=True)
    queries, documents = vectors.take(slice(0, None, 2)), vectors.take(2 * first_M + 1)
    positives: dict[int, list[int]] = collections.defaultdict(list)
    for query, document in zip(numbers_NC[:, 0].tolist(), document_N.tolist(), strict=True):
        positives[query].append(document)
    ranks: list[int] = []
    for start in range(0, len(numbers_NC), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores_BM = np.array(queries.take(block).compare_all(documents))
        chosen_B1 = np.take_along_axis(scores_BM, document_N[block, None], axis=1)
        for scores_M, query in zip(scores_BM, numbers_NC[block, 0].tolist(), strict=True):
            scores_M[positives[query]] = -np.inf
        ranks += (1 + (scores_BM >= chosen_B1).sum(1)).tolist()
    if len(first_M) < len(numbers_NC):
        logging.info('%d different documents of %d pairs', len(first_M), len(numbers_NC))
    return ranks


def _find_layout(name: str, split: str, tables: Sequence[Table]) -> str:
    """Return the layout of a split. UserError where its columns are of none, or of several."""
    of_tables = set()
    for table in tables:
        columns = set(table.columns) - {'id'}
        # A teacher has scored documents beside each other.
        texts = columns - ({'score', 'scores'} if 'negatives' in columns else {'score'})
        fits = [layout for layout, (names, _) in LAYOUTS.items() if texts == set(names)]
        has_score, is_scored = 'score' in columns, fits == ['scored pairs']
        # Of scored pairs a test split may lack the scores.
        if not fits or (has_score != is_scored and not (is_scored and split.startswith('test'))):
            shown = ', '.join(sorted(columns)) or 'none'
            raise UserError(
                f'task {name}: files.{split} has the columns {shown}: "columns" must be anchor and'
                ' positive, these and negatives and perhaps scores, text_a, text_b and score, or'
                ' text'
            )
        of_tables.update(fits)
    if len(of_tables) > 1:
        raise UserError(f'task {name}: files.{split} mixes {" and ".join(sorted(of_tables))}')
    return of_tables.pop()


def read_teacher(row: Mapping[str, Any], count: int, line: str) -> tuple[float, ...]:
    """Return a teacher's scores of the documents of a row, as many as they are; () without any."""
    if 'scores' not in row:
        return ()
    given = row['scores'] if isinstance(row['scores'], list) else [row['scores']]
    if len(given) != count:
        raise UserError(
            f'{line}: {len(given)} scores of a teacher for {count} documents: give one for each,'
            ' in their order, a positive first'
        )
    return tuple(parse_number(score, line) for score in given)


def find_range(file: TaskFile, is_scored: bool) -> tuple[float, float]:
    """Return the least and the greatest score; (0, 1) where there are no scores."""
    given = file.get('score_range')
    if not is_scored:
        if given is not None:
            raise UserError(f'task {file.name}: "score_range" is for scored pairs: leave it out')
        return 0.0, 1.0
    if given is None or len(given) != 2 or not given[0] < given[1]:
        raise UserError(
            f'task {file.name}: "score_range" must be the least and the greatest score, as in'
            ' [0, 5]'
        )
    return float(given[0]), float(given[1])
