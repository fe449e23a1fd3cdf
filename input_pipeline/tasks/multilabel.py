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
from bert_jax.input_pipeline.tasks.features import pooled
from bert_jax.input_pipeline.tasks.task_file import LABEL_ENTRIES, labels_of, tables_of
from bert_jax.input_pipeline.tasks.task_metrics import (
    SET_METRICS,
    Metric,
    best_thresholds,
    binary_entropy,
    scores_of_classes,
)
from bert_jax.input_pipeline.text.tables import Table

KINDS = ('multilabel',)
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
    """

    separator: str = ','
    in_columns: bool = False
    thresholds: Mapping[str, float] | None = field(default=None, repr=False)

    head = 'multi_label'
    known_metrics: ClassVar[Mapping[str, Metric]] = SET_METRICS
    list_columns = frozenset({'label'})

    def under(self, options: Mapping[str, Any]) -> MultiLabelTask:
        """Return the task with the thresholds that were chosen for a model."""
        return dataclasses.replace(self, thresholds=options.get('thresholds', self.thresholds))

    def _example(self, name: str, row: dict[str, Any], line: str) -> TextExample:
        label = None
        if 'label' in row:
            columns = self.labels if self.in_columns else None
            spelt = _spelt(row['label'], line, self.separator, columns)
            label = tuple(sorted({self._label(self.spelled.get(s, s), line) for s in spelt}))
        return TextExample(name, row['text'], row.get('text_b'), label)

    def _label_array(self, examples: Sequence[TextExample]) -> np.ndarray:
        # The last axis is of one: an axis as long as a row would be taken for its positions.
        return self._truth(examples).astype(np.float32)[..., None]

    def _indicators(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Return int64 [N, labels], 1 where a set has the label."""
        held = np.zeros((len(sets), len(self.labels)), np.int64)
        for row, each in enumerate(sets):
            held[row, list(each)] = 1
        return held

    def _truth(self, examples: Sequence[Any]) -> np.ndarray:
        return self._indicators([example.label or () for example in examples])

    def _as_numbers(self, answers: Sequence[Any]) -> np.ndarray:
        return self._indicators([[self.labels.index(label) for label in each] for each in answers])

    def decode(
        self, examples: Sequence[TextExample], features: Arrays, outputs: Arrays
    ) -> Predictions:
        """Return the labels of each example whose sigmoid is above their thresholds.

        Where none are chosen yet they are chosen on these examples, if they have labels, for the
        best F1 of each label; the predictions say so.
        """
        from scipy.special import expit

        outputs = pooled(features, outputs, len(examples))
        shares = expit(outputs['logits'].astype(np.float64))
        chosen, thresholds = {}, self.thresholds
        if thresholds is None and self.labelled(examples):
            best = best_thresholds(self._truth(examples), shares)
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
        truth = self._truth(examples)
        order = np.argsort(-truth.sum(axis=0), kind='stable')
        score = self.known_metrics[self.metric]

        def scored(count: int) -> float:
            constant = np.isin(np.arange(len(self.labels)), order[:count]).astype(np.int64)
            return score(truth, np.broadcast_to(constant, truth.shape))

        best = max(range(len(self.labels) + 1), key=scored)
        return tuple(self.labels[i] for i in sorted(order[:best]))

    def _report(self, truth: np.ndarray, predicted: np.ndarray) -> str:
        return scores_of_classes(self.labels, truth, predicted)

    def _written(self, answer: Any) -> str:
        return self._joint.join(answer)

    def _read(self, text: str, line: str) -> tuple[str, ...]:
        given = filter(None, text.split(self._joint))
        return tuple(self.labels[self._label(label, line)] for label in given)

    @property
    def _joint(self) -> str:
        """Return what parts labels in a file of predictions: nothing that is part of a label."""
        for separator in (self.separator, *_SEPARATORS):
            if not any(separator in label for label in self.labels):
                return separator
        return '\x1f'


def _spelt(cell: Any, line: str, separator: str, columns: Sequence[str] | None) -> list[str]:
    """Return the labels of a row as its file spells them; `columns`: the labels of 0s and 1s."""
    if columns is not None:
        wrong = [value for value in cell if value not in ('0', '1', 'True', 'False')]
        if wrong:
            raise UserError(f'{line}: {wrong[0]!r} in the column of a label: it must be 0 or 1')
        return [label for label, value in zip(columns, cell, strict=True) if value in ('1', 'True')]
    parts = cell if isinstance(cell, list) else cell.split(separator)
    return [part.strip() for part in parts if part.strip()]


def looks_like(path: str, cells: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entries of a task file where labels are sets; see `classification.looks_like`."""
    label = cells['label']
    if cells['text'].are_lists:
        return None
    if isinstance(label, list) or label.are_lists:
        return {'kind': 'multilabel'}
    # A cell of several parts, each of which is in other cells too: words of a text are not.
    for separator in _SEPARATORS:
        sets = [{p.strip() for p in text.split(separator)} - {''} for text in label.texts]
        parts = [part for each in sets for part in each]
        several = sum(len(each) > 1 for each in sets)
        if several and len(set(parts)) < len(parts) / 3 and len(set(parts)) <= len(sets) / 2:
            alone = {part for each in sets if len(each) == 1 for part in each}
            if separator != ',' or alone & set().union(*(each for each in sets if len(each) > 1)):
                return {'kind': 'multilabel', 'separator': separator}
    return None


def from_description(name: str, description: dict[str, Any], folder: str) -> MultiLabelTask:
    """Make the task that a JSON task file describes.

    The file is an object of:
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
    roles = {'text': True, 'text_b': False, 'label': True, 'id': False}
    entries = (*LABEL_ENTRIES, 'separator')
    files = tables_of(name, description, folder, roles, entries, lists=('label',))
    separator = description.get('separator', ',')
    column = next(iter(files.values()))[0].columns['label']
    in_columns = isinstance(column, list)
    if isinstance(column, list) and not description.get('labels'):
        description = {**description, 'labels': column}
    labels, spelled = labels_of(description, files, lambda table: _labels_of(table, separator))
    if isinstance(column, list) and len(labels) != len(column):
        raise UserError(
            f'task {name}: "labels" has {len(labels)} names for {len(column)} columns of labels'
        )
    metrics = tuple(description.get('metrics', SET_METRICS))
    told: dict[str, Any] = {'separator': separator, 'in_columns': in_columns}
    return MultiLabelTask(name, 'multilabel', labels, metrics, files, spelled, **told)


def _labels_of(table: Table, separator: str) -> Iterator[tuple[str, str]]:
    """Yield ('file:line', label) of each label of the rows."""
    for line, row in table.rows(lists=frozenset({'label'})):
        yield from ((line, label) for label in _spelt(row['label'], line, separator, None))
