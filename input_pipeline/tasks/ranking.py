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
from bert_jax.input_pipeline.tasks.embedding import Layout, find_range, read_teacher
from bert_jax.input_pipeline.tasks.features import make_listed_rows
from bert_jax.input_pipeline.tasks.similarity import correlate_scores, matches
from bert_jax.input_pipeline.tasks.task_file import TaskFile
from bert_jax.input_pipeline.text.tables import Table

_RANKED, _SCORED = ('ndcg@10', 'mrr@10', 'map@100'), ('spearman', 'pearson')
LAYOUTS = {
    'labelled pairs': Layout(('query', 'document', 'label'), ('ap', 'accuracy', 'f1')),
    'scored pairs': Layout(('query', 'document', 'score'), _SCORED),
    'lists': Layout(('query', 'documents', 'grades'), _RANKED),
    'triplets': Layout(('anchor', 'positive', 'negatives'), _RANKED),
    'pairs': Layout(('anchor', 'positive')),
}
_MOST = 100.0  # a gain is a power of two, and 32 bits must hold the sum of a list


@dataclass(frozen=True)
class RankingExample(Example):
    """A query and documents.

    `grades` says how relevant each is; None where it is unknown. `scores` are a teacher's, or ().
    `layout` is that of its split, `line` where errors say it is.
    """

    layout: str
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
    label_keys = ('labels', 'teacher_scores')
    list_columns = frozenset({'documents', 'grades', 'negatives', 'scores'})

    @property
    def options(self) -> dict[str, Any]:
        """Return that a model is asked pairs."""
        return {'texts': 2}

    @classmethod
    def from_task_file(cls, file: TaskFile) -> RankingTask:
        """Make a task of rankings, each split with the layout that its columns have."""
        roles = {'scores': False, 'id': False}
        for layout in LAYOUTS.values():
            roles |= dict.fromkeys(layout.columns, False)
        files = file.tables(roles, ('score_range',), lists=cls.list_columns)
        layouts = {split: _find_layout(file.name, split, files[split]) for split in files}
        scored = 'dev' if 'dev' in files else 'test'
        metrics = LAYOUTS[layouts.get(scored, 'lists')].metrics
        if not metrics:
            raise UserError(
                f'task {file.name}: pairs without negatives have no score: give files.{scored}'
                ' negatives, as bert-nearest --mine writes them'
            )
        score_range = find_range(file, 'scored pairs' in layouts.values())
        return cls(file.name, layouts, metrics, files, score_range)

    def _read_examples(self, split: str) -> list[RankingExample]:
        layout = self.layouts[split]
        examples = [self._make_example(layout, *row) for row in self._iterate_rows(split)]
        if split != 'train' and LAYOUTS[layout].metrics == _RANKED:
            for example in examples:
                _check_order(example)
        return examples

    def _make_example(
        self, layout: str, name: str, row: dict[str, Any], line: str
    ) -> RankingExample:
        query, documents = row['anchor' if 'anchor' in row else 'query'], list[str]()
        for role in ('document', 'documents', 'positive', 'negatives'):
            documents += _listed(row.get(role, []))
        grades, count = self._read_grades(row, line), len(documents)

        # Nothing answers a query, but an empty document may be judged; mined ones are of a row that
        # is shorter than others.
        empty = [grade for text, grade in zip(documents, grades or ()) if not text.strip()]
        faults = {
            'no documents': not documents,
            'an empty query': not query.strip(),
            f'{count} documents, and not as many grades': grades is not None
            and len(grades) != count,
            'an empty document, which only grade 0 may have': any(empty),
            'an empty negative': empty and 'anchor' in row,
        }
        for fault, is_there in faults.items():
            if is_there:
                raise UserError(f'{line}: {fault}: mend or delete the row')
        teacher = read_teacher(row, count, line)
        return RankingExample(name, layout, query, tuple(documents), grades, teacher, line)

    def _read_grades(self, row: dict[str, Any], line: str) -> tuple[float, ...] | None:
        """Return the grade of each document; None where they are unknown."""
        if 'anchor' in row:
            return 1.0, *[0.0] * len(_listed(row.get('negatives', [])))
        ranges = {'label': (0.0, 1.0), 'score': self.score_range, 'grades': (0.0, _MOST)}
        for role in ranges.keys() & row.keys():
            low, high = ranges[role]
            grades = [parse_number(grade, line) for grade in _listed(row[role])]
            for grade in grades:
                if not low <= grade <= high or (role == 'label' and grade % 1):
                    raise UserError(
                        f'{line}: {role} {grade:g} is none of {low:g} to {high:g}: a label is 0'
                        ' or 1, a score within "score_range", classes are of kind pair'
                    )
            span = high - low if role == 'score' else 1.0
            return tuple((grade - low) / span for grade in grades)
        return None

    def check_loss(self, config: RankingConfig, examples: Sequence[RankingExample]) -> None:
        """Raise UserError where the loss cannot learn from some training examples."""
        loss, reads, layout = f'ranking.loss={config.loss}', config.reads, self.layouts['train']
        if layout not in reads.examples:
            raise UserError(
                f'{loss} reads {" and ".join(reads.examples)}, and the train split of {self.name}'
                f' has {layout}: take another loss'
            )
        for example in examples:
            if reads.in_order:
                _check_order(example)
            if reads.teacher != bool(example.scores):
                raise UserError(
                    f'{example.line}: {loss}: "scores" are of a teacher, which margin_mse alone'
                    ' reads: name them for it, and for no other'
                )
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
        labels, teacher = np.zeros((2, N, C, 1), np.float32)
        texts, numbers = np.zeros((N, 1 + C, 1), np.int64), dict[str, int]()
        for n, example in enumerate(examples):
            count = len(example.documents)
            labels[n, :count, 0] = example.grades or 0
            teacher[n, :count, 0] = example.scores or 0
            # What is not there is equal to the query, and to nothing of another example.
            texts[n] = numbers.setdefault(example.query, len(numbers))
            for c, text in enumerate(example.documents, start=1):
                texts[n, c] = numbers.setdefault(text, len(numbers))
        return features | {'labels': labels, 'teacher_scores': teacher, 'text_numbers': texts}

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
        """Tell whether these examples have grades, and can be scored."""
        return all(example.grades and LAYOUTS[example.layout].metrics for example in examples)

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
        for example, logits in zip(examples, answers, strict=True):
            if len(logits) != len(example.documents):
                raise UserError(
                    f'task {self.name}: {len(logits)} predictions for the'
                    f' {len(example.documents)} documents of {example.id!r}'
                )
        metrics = LAYOUTS[examples[0].layout].metrics
        if metrics == _RANKED:
            return _score_lists(examples, answers)
        truth = np.array([example.grades for example in examples], np.float32)[:, 0]
        values = np.array(answers)[:, 0]
        if metrics == _SCORED:
            return correlate_scores(truth, special.expit(values))
        return matches(truth, values)

    def _spell_answer(self, answer: Sequence[float]) -> str:
        return ' '.join(f'{logit:.9g}' for logit in answer)

    def _read_answer(self, text: str, line: str) -> tuple[float, ...]:
        return tuple(parse_number(word, line) for word in text.split())


def _listed(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else [cell]


def _find_layout(name: str, split: str, tables: Sequence[Table]) -> str:
    """Return the layout of a split. UserError where its columns are of none."""
    columns = {frozenset(table.columns) - {'id', 'scores'} for table in tables}
    for layout, (of_layout, _) in LAYOUTS.items():
        if columns == {frozenset(of_layout)}:
            return layout
    spellings = ', or '.join(' '.join(layout.columns) for layout in LAYOUTS.values())
    raise UserError(
        f'task {name}: files.{split}: "columns" must be {spellings}, the same in each file; and'
        ' scores and id'
    )


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
