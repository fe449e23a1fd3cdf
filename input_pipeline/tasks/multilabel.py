"""Tasks that give one text, or a pair of texts, any number of labels, or none.

This file owns how sets of labels lie in files, and from which probability on each label is given.
It must not know the model: a sigmoid of each output is all that it takes of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Arrays, Predictions
from bert_jax.input_pipeline.tasks.classification import TextExample, TextTask
from bert_jax.input_pipeline.tasks.features import pool_windows
from bert_jax.input_pipeline.tasks.task_file import LABEL_ENTRIES, TaskFile
from bert_jax.input_pipeline.tasks.task_metrics import (
    SET_METRICS,
    Metric,
    best_thresholds,
    binary_entropy,
    write_class_scores,
)
from bert_jax.input_pipeline.text.tables import Table

# What parts labels in a cell, by how seldom it is a part of a label.
_SEPARATORS = ('|', ';', ',')
_EVEN = 0.5  # where no threshold was chosen


@dataclass(frozen=True)
class MultiLabelTask(TextTask):
    """Sets of labels; see `Task` for the other attributes. An example's label is a set of indices.

    Attributes:
      separator: what parts the labels in a cell.
      in_columns: whether each label has a column of its own, of 0 and 1.
      thresholds: label -> the probability above which it is given; None: not chosen yet.

    A JSON task file is an object of:
      kind      "multilabel"
      files, header, format, skip_bad_rows, only, dev_share, dev_seed   as for classification
      columns   {"text", "text_b", "label", "id"}; text_b and id are optional; label holds a list
                (JSON) or labels with a separator between, or is a list of columns of 0 and 1, one
                for each label; an empty list or cell is an example without any label
      labels    as for classification; of columns of 0 and 1 their labels, in order, by default the
                columns' names
      separator  optional: what parts the labels in a cell, "," if not given
      metrics   list of micro_f1, macro_f1, subset_accuracy; the first selects
    """

    separator: str = ','
    in_columns: bool = False
    thresholds: Mapping[str, float] | None = field(default=None, repr=False)

    head = 'multi_label'
    has_classes = False
    kinds = ('multilabel',)
    names = ()
    known_metrics: ClassVar[Mapping[str, Metric]] = SET_METRICS
    list_columns = frozenset({'label'})
    report_parts = (write_class_scores,)

    @classmethod
    def from_task_file(cls, file: TaskFile) -> MultiLabelTask:
        """Make a task of sets of labels."""
        roles = {'text': True, 'text_b': False, 'label': True, 'id': False}
        files = file.tables(roles, (*LABEL_ENTRIES, 'separator'), lists=cls.list_columns)
        separator = file.get('separator', ',')
        column: Any = next(iter(files.values()))[0].columns['label']
        in_columns = isinstance(column, list)

        def read_labels(table: Table) -> Iterator[tuple[str, str]]:
            for line, row in table.rows(lists=cls.list_columns):
                for label in _split_labels(row['label'], line, separator, None):
                    yield line, label

        labels, spelled = file.labels(files, column if in_columns else (), read_labels)
        if in_columns and len(labels) != len(column):
            raise UserError(
                f'task {file.name}: "labels" has {len(labels)} names for {len(column)} columns of'
                ' labels'
            )
        metrics = tuple(file.get('metrics', SET_METRICS))
        told: dict[str, Any] = {'separator': separator, 'in_columns': in_columns}
        return cls(file.name, 'multilabel', labels, metrics, files, spelled, **told)

    @classmethod
    def describe_table(cls, path: str, cells: Mapping[str, Any]) -> dict[str, Any] | None:
        """Tell sets of labels: lists, several columns, or cells of several parts."""
        label = cells['label']
        if cells['text'].are_lists:
            return None
        if isinstance(label, list) or label.are_lists:
            return {'kind': 'multilabel'}
        # A cell of several parts, each of which is in other cells too: words of a text are not.
        for separator in _SEPARATORS:
            alone: set[str] = set()
            together: set[str] = set()
            count = 0
            for text in label.texts:
                parts = {part.strip() for part in text.split(separator)} - {''}
                count += len(parts)
                if len(parts) > 1:
                    together |= parts
                else:
                    alone |= parts
            different = len(alone | together)
            come_again = different < count / 3 and different <= len(label.texts) / 2
            if together and come_again and (separator != ',' or alone & together):
                return {'kind': 'multilabel', 'separator': separator}
        return None

    def under(self, options: Mapping[str, Any]) -> MultiLabelTask:
        """Return the task with the thresholds that were chosen for a model."""
        return dataclasses.replace(self, thresholds=options.get('thresholds', self.thresholds))

    def _make_example(self, name: str, row: dict[str, Any], line: str) -> TextExample:
        label = None
        if 'label' in row:
            columns = self.labels if self.in_columns else None
            spelt = _split_labels(row['label'], line, self.separator, columns)
            label = tuple(sorted({self._read_label(self.spelled.get(s, s), line) for s in spelt}))
        return TextExample(name, row['text'], row.get('text_b'), label)

    def _label_array(self, examples: Sequence[TextExample]) -> np.ndarray:
        # The last axis is of one: an axis as long as a row would be taken for its positions.
        return self._get_truth(examples).astype(np.float32)[..., None]

    def _make_indicators(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Return int64 [N, labels], 1 where a set has the label."""
        held = np.zeros((len(sets), len(self.labels)), np.int64)
        for row, each in enumerate(sets):
            held[row, list(each)] = 1
        return held

    def _get_truth(self, examples: Sequence[Any]) -> np.ndarray:
        return self._make_indicators([example.label or () for example in examples])

    def _make_numbers(self, answers: Sequence[Any]) -> np.ndarray:
        return self._make_indicators(
            [[self.labels.index(label) for label in each] for each in answers]
        )

    def decode(
        self, examples: Sequence[TextExample], features: Arrays, outputs: Arrays
    ) -> Predictions:
        """Return the labels of each example whose sigmoid is above their thresholds.

        Where none are chosen yet they are chosen on these examples, if they have labels, for the
        best F1 of each label; the predictions say so.
        """
        from scipy.special import expit

        outputs = pool_windows(features, outputs, len(examples))
        shares = expit(outputs['logits'].astype(np.float64))
        chosen, thresholds = {}, self.thresholds
        if thresholds is None and self.labelled(examples):
            best = best_thresholds(self._get_truth(examples), shares)
            thresholds = dict(zip(self.labels, best, strict=True))
            chosen = {'thresholds': thresholds}
        thresholds = thresholds or {}
        above = shares > [thresholds.get(label, _EVEN) for label in self.labels]
        answers, labels = {}, np.array(self.labels)
        for example, is_given in zip(examples, above, strict=True):
            answers[example.id] = tuple(labels[is_given].tolist())
        return Predictions(answers, chosen=chosen)

    def constant_loss(self, features: Arrays) -> float:
        """Return the mean entropy of the labels, each by itself."""
        return binary_entropy(features['labels'][..., 0])

    def constant_answer(self, examples: Sequence[TextExample]) -> tuple[str, ...]:
        """Return the set that scores best if all have it: of the commonest labels so many."""
        truth = self._get_truth(examples)
        order = np.argsort(-truth.sum(axis=0), kind='stable')
        score = self.known_metrics[self.metric]

        def scored(count: int) -> float:
            constant = np.isin(np.arange(len(self.labels)), order[:count]).astype(np.int64)
            return score(truth, np.broadcast_to(constant, truth.shape))

        best = max(range(len(self.labels) + 1), key=scored)
        return tuple(self.labels[i] for i in sorted(order[:best]))

    def _spell_answer(self, answer: Any) -> str:
        return self._joint.join(answer)

    def _read_answer(self, text: str, line: str) -> tuple[str, ...]:
        given = filter(None, text.split(self._joint))
        return tuple(self.labels[self._read_label(label, line)] for label in given)

    @property
    def _joint(self) -> str:
        """Return what parts labels in a file of predictions: nothing that is part of a label."""
        for separator in (self.separator, *_SEPARATORS):
            if not any(separator in label for label in self.labels):
                return separator
        return '\x1f'


def _split_labels(cell: Any, line: str, separator: str, columns: Sequence[str] | None) -> list[str]:
    """Return the labels of a row as its file spells them; `columns`: the labels of 0s and 1s."""
    if columns is not None:
        wrong = [value for value in cell if value not in ('0', '1', 'True', 'False')]
        if wrong:
            raise UserError(f'{line}: {wrong[0]!r} in the column of a label: it must be 0 or 1')
        return [label for label, value in zip(columns, cell, strict=True) if value in ('1', 'True')]
    parts = cell if isinstance(cell, list) else cell.split(separator)
    return [part.strip() for part in parts if part.strip()]
