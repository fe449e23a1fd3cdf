"""Tasks that teach which documents answer a query: pairs, lists with grades, and mined negatives.

This file owns their layouts, the rows that an example becomes, one for each of its documents, what
a loss refuses of them, and what a model's logits score. It must not know the model, nor what is
minimised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.input_pipeline.tasks import beir
from bert_jax.input_pipeline.tasks.base import (
    Arrays,
    Example,
    Files,
    Predictions,
    Task,
    list_answers,
    parse_number,
)
from bert_jax.input_pipeline.tasks.embedding import find_range
from bert_jax.input_pipeline.tasks.features import make_listed_rows
from bert_jax.input_pipeline.tasks.similarity import correlate_scores, matches
from bert_jax.input_pipeline.tasks.task_file import TaskFile
from bert_jax.input_pipeline.text.tables import Table

# A split's columns, but for id and scores -> what its examples are.
LAYOUTS = {
    ('query', 'document', 'label'): 'labelled pairs',
    ('query', 'document', 'score'): 'scored pairs',
    ('text_a', 'text_b', 'score'): 'scored pairs',
    ('query', 'documents', 'grades'): 'lists',
    ('anchor', 'positive'): 'pairs',
    ('anchor', 'positive', 'negatives'): 'triplets',
}
_RANKED = ('ndcg@10', 'mrr@10', 'map@100')
METRICS = {
    'labelled pairs': ('average_precision', 'accuracy', 'f1'),
    'scored pairs': ('spearman', 'pearson'),
    'lists': _RANKED,
    'triplets': _RANKED,
}
_MOST = 126  # a gain is a power of two, which 32 bits must hold
_QUERIES = ('query', 'text_a', 'anchor')
_DOCUMENTS = ('document', 'text_b', 'positive', 'documents', 'negatives')


@dataclass(frozen=True)
class RankingExample(Example):
    """A query and documents.

    `grades` says how relevant each is; None where it is unknown. `scores` are a teacher's, or ().
    `line` is where errors say it is.
    """

    query: str
    documents: tuple[str, ...]
    grades: tuple[float, ...] | None
    scores: tuple[float, ...] = ()
    line: str = field(default='', repr=False, compare=False)

    respelled = ('query', 'documents')


@dataclass(frozen=True)
class RankingTask(Task[RankingExample]):
    """Scores of documents for a query; see `Task` for the attributes.

    Attributes:
      layouts: split -> what its examples are.
      metrics: those of the split on which models are scored.
      score_range: the least and the greatest score in files of scored pairs.

    A JSON task file is an object of:
      kind      "ranking"
      files, header, format, skip_bad_rows   as for embedding
      columns   {"query", "document", "label"}, where a label is 0 or 1; the same with "score";
                {"query", "documents", "grades"}, the last two lists of a JSON key, or lists of
                columns; {"anchor", "positive"}, and "negatives" besides; and "id", which is
                optional. Lists and negatives may have "scores", those of a teacher, one for each
                document in order. Splits may differ
      score_range  the least and the greatest score, as in [0, 5]; where there are scored pairs
    """

    name: str
    layouts: Mapping[str, str]
    metrics: tuple[str, ...]
    files: Files = field(repr=False)
    score_range: tuple[float, float] = (0.0, 1.0)

    kind = 'ranking'
    kinds = ('ranking',)
    head = 'ranking'
    labels = ()
    num_outputs = 1
    list_columns = frozenset({'documents', 'grades', 'negatives', 'scores'})

    @classmethod
    def from_task_file(cls, file: TaskFile) -> RankingTask:
        """Make a task of rankings, each split with the layout that its columns have."""
        names = [column for columns in LAYOUTS for column in columns]
        roles = dict.fromkeys((*names, 'scores', 'id'), False)
        files = file.tables(roles, ('score_range',), lists=cls.list_columns)
        layouts = {split: _find_layout(file.name, split, files[split]) for split in files}
        scored = 'dev' if 'dev' in files else 'test'
        metrics = METRICS.get(layouts.get(scored, 'lists'))
        if metrics is None:
            raise UserError(
                f'task {file.name}: pairs without negatives have no score: give files.{scored}'
                ' negatives, as bert-nearest --mine writes them'
            )
        score_range = find_range(file, 'scored pairs' in layouts.values())
        return cls(file.name, layouts, metrics, files, score_range)

    @property
    def label_keys(self) -> tuple[str, ...]:  # type: ignore[override]  # not of all its layouts
        """Name the grades, and a teacher's scores where it trains on them."""
        has_scores = ['scores' in table.columns for table in self.files.get('train', ())]
        return ('labels', 'teacher_scores')[: 1 + any(has_scores)]

    def _read_examples(self, split: str) -> list[RankingExample]:
        examples = [self._make_example(*row) for row in self._iterate_rows(split)]
        if split != 'train' and METRICS.get(self.layouts[split]) == _RANKED:
            for example in examples:
                _check_order(example)
        return examples

    def _make_example(self, name: str, row: dict[str, Any], line: str) -> RankingExample:
        query = next(row[role] for role in _QUERIES if role in row)
        documents: list[str] = []
        for role in _DOCUMENTS:
            documents += _listed(row.get(role, []))
        grades, count = self._read_grades(row, line), len(documents)
        scores = tuple(parse_number(score, line) for score in row.get('scores', ()))

        # Nothing answers a query, but an empty document may be in a collection.
        given = grades or [0.0] * count
        empty = [grade for document, grade in zip(documents, given) if not document.strip()]
        for fault, is_there in {
            'no documents': not documents,
            f'{len(given)} grades for {count} documents': len(given) != count,
            f'{len(scores)} scores of a teacher for {count} documents': (
                'scores' in row and len(scores) != count
            ),
            f'a grade below 0 or above {_MOST:g}': not all(0 <= g <= _MOST for g in given),
            'an empty query': not query.strip(),
            'an empty document, which only grade 0 may have': any(empty),
        }.items():
            if is_there:
                raise UserError(f'{line}: {fault}: mend or delete the row')
        of_documents = tuple(documents), grades if grades is None else tuple(grades), scores
        return RankingExample(name, query, *of_documents, line)

    def _read_grades(self, row: dict[str, Any], line: str) -> list[float] | None:
        """Return the grade of each document; None where they are unknown."""
        if 'anchor' in row:
            return [1.0] + [0.0] * len(_listed(row.get('negatives', [])))
        given = next((row[role] for role in ('label', 'score', 'grades') if role in row), None)
        if given is None:
            return None
        grades = [parse_number(grade, line) for grade in _listed(given)]
        if 'label' in row and grades[0] not in (0, 1):
            raise UserError(
                f'{line}: label {given} is not 0 or 1: degrees are of a column "score", several'
                ' classes of kind pair'
            )
        if 'score' in row:
            low, high = self.score_range
            if not low <= grades[0] <= high:
                raise UserError(
                    f'{line}: the score {given} is not within "score_range" [{low:g}, {high:g}]'
                )
            return [(grades[0] - low) / (high - low)]
        return grades

    def check_loss(self, config: RankingConfig, examples: Sequence[RankingExample]) -> None:
        """Raise UserError where the loss cannot learn from some training examples."""
        loss, reads, layout = f'ranking.loss={config.loss}', config.reads, self.layouts['train']
        if layout not in reads.examples:
            raise UserError(
                f'{loss} reads {" and ".join(reads.examples)}, and the train split of {self.name}'
                f' has {layout}: take another loss'
            )
        if reads.teacher != ('teacher_scores' in self.label_keys):
            raise UserError(
                f'{loss}: "scores" in columns are those of a teacher, which margin_mse alone reads:'
                ' name them for it, and for no other'
            )
        for example in examples:
            if reads.in_order:
                _check_order(example)
            if max(example.grades or (0,)) > reads.most:
                raise UserError(f'{example.line}: {loss} reads no grade above {reads.most:g}')

    def features(
        self, examples: Sequence[RankingExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] query [SEP] document [SEP] for each of C documents, as many as the most.

        Returns:
          INPUT_KEYS [N, C, max_seq_length] int32 (rows of [CLS] alone where there is no document),
          example_index [N], labels and teacher_scores [N, C, 1] float32 (0 where unknown), and
          text_numbers [N, 1 + C, 1]: equal texts of the split have the same number.
        """
        queries, lists = [e.query for e in examples], [e.documents for e in examples]
        features = make_listed_rows(queries, lists, tokenizer, max_seq_length)
        N, C, _ = features['input_ids'].shape
        for name in ('labels', 'teacher_scores'):
            features[name] = np.zeros((N, C, 1), np.float32)
        texts, numbers = np.zeros((N, 1 + C, 1), np.int64), dict[str, int]()
        for n, example in enumerate(examples):
            count = len(example.documents)
            features['labels'][n, :count, 0] = example.grades or 0
            features['teacher_scores'][n, :count, 0] = example.scores or 0
            of_row = [numbers.setdefault(t, len(numbers)) for t in (example.query, *lists[n])]
            # What is not there is equal to nothing of another example.
            texts[n, :, 0] = of_row + of_row[:1] * (C - count)
        return features | {'text_numbers': texts}

    def decode(
        self, examples: Sequence[RankingExample], features: Arrays, outputs: Arrays
    ) -> Predictions:
        """Return the logits of each example's documents, before any sigmoid."""
        answers = {}
        for example, logits_C in zip(examples, outputs['logits'].tolist(), strict=True):
            answers[example.id] = tuple(logits_C[: len(example.documents)])
        return Predictions(answers)

    def constant_loss(self, features: Arrays) -> float:
        """Return what a coin has; the loss that a run has chosen knows its own."""
        return float(np.log(2))

    def constant_scores(self, examples: Sequence[RankingExample]) -> dict[str, float]:
        """Score an order by lot."""
        random = np.random.default_rng(0)
        answers = {e.id: tuple(random.random(len(e.documents))) for e in examples}
        return self.score(examples, Predictions(answers))

    def labelled(self, examples: Sequence[RankingExample]) -> bool:
        """Tell whether these examples have grades."""
        return all(example.grades is not None for example in examples)

    def score(
        self, examples: Sequence[RankingExample], predictions: Predictions
    ) -> dict[str, float]:
        """Return the scores of pairs, or of lists.

        They are those of sentence-transformers' CrossEncoderClassificationEvaluator and
        CrossEncoderCorrelationEvaluator, and trec_eval's. Of equal logits in a list the last is
        first, as trec_eval has it where the documents' names are their places: a model that tells
        nothing apart does not put the positive of mined negatives first.
        """
        answers = list_answers(self, examples, predictions)
        if self.metrics == _RANKED:
            return _score_lists(examples, answers)
        truth = np.array([example.grades for example in examples], np.float32)[:, 0]
        logits = np.array(answers, np.float32)[:, 0]
        if 'spearman' in self.metrics:
            by_score = correlate_scores(truth, special.expit(logits))
            return correlate_scores(truth, logits) | {'pearson': by_score['pearson']}
        by_threshold = matches(truth, logits)
        scores = {'average_precision': by_threshold['ap']}
        for name in ('accuracy', 'f1', 'precision', 'recall'):
            scores[name] = by_threshold[name]
        return scores

    def _spell_answer(self, answer: Sequence[float]) -> str:
        return ' '.join(f'{logit:.9g}' for logit in answer)

    def _read_answer(self, text: str, line: str) -> tuple[float, ...]:
        return tuple(parse_number(word, line) for word in text.split())


def _listed(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else [cell]


def _find_layout(name: str, split: str, tables: Sequence[Table]) -> str:
    """Return the layout of a split. UserError where its columns are of none, or of several."""
    layouts = set()
    for table in tables:
        columns = set(table.columns) - {'id', 'scores'}
        fits = [layout for names, layout in LAYOUTS.items() if set(names) == columns]
        if not fits or ('scores' in table.columns and METRICS.get(fits[0]) != _RANKED):
            offered = ' or '.join(', '.join(names) for names in LAYOUTS)
            raise UserError(
                f'task {name}: files.{split} has the columns {", ".join(table.columns)}: "columns"'
                f' must be {offered}; lists and negatives may have "scores" besides'
            )
        layouts.update(fits)
    if len(layouts) > 1:
        raise UserError(f'task {name}: files.{split} mixes {" and ".join(sorted(layouts))}')
    return layouts.pop()


def _check_order(example: RankingExample) -> None:
    """Raise UserError where no document of a list is better than another."""
    grades = example.grades
    if grades is not None and len(set(grades)) < 2:
        raise UserError(
            f'{example.line}: {len(grades)} documents of one grade have no order: give two or more'
            ' of different grades, or leave the row out'
        )


def _score_lists(examples: Sequence[RankingExample], answers: Sequence[Any]) -> dict[str, float]:
    rankings, grades = {}, {}
    for example, logits in zip(examples, answers, strict=True):
        names = [f'{number:06}' for number in range(len(logits))]
        rankings[example.id] = beir.ranked(dict(zip(names, logits, strict=True)), graded=True)
        grades[example.id] = dict(zip(names, example.grades or (), strict=True))
    scores = beir.scores(rankings, grades)
    return {name: float(scores[name].mean()) for name in _RANKED}
