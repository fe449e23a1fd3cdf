"""Tasks that give one text, or a pair of texts, a label or a number.

This file owns how such examples become arrays and predictions, and the JSON task file of
these kinds. It must not know any named task: glue.py describes GLUE with what is here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Arrays, Example, Predictions, Task
from bert_jax.input_pipeline.tasks.features import text_rows
from bert_jax.input_pipeline.tasks.predictions import complete, number, read_labels, write_labels
from bert_jax.input_pipeline.tasks.scores.constant_baseline import entropy
from bert_jax.input_pipeline.tasks.scores.labels import LABEL_METRICS, NUMBER_METRICS
from bert_jax.input_pipeline.tasks.task_file import (
    TABLE_ENTRIES,
    labels_of,
    require_entries,
    tables_of,
    unknown_label,
)
from bert_jax.input_pipeline.text.tables import Table, unique_id

KINDS = ('classification', 'pair', 'regression')
_SETTINGS = ('kind', 'files', 'labels', 'metrics', *TABLE_ENTRIES)


@dataclass(frozen=True)
class TextExample(Example):
    """A text, or two, and its label.

    `label`: an index into the task's labels, a number, or None where unknown.
    """

    text: str
    text_b: str | None
    label: int | float | None


@dataclass(frozen=True)
class TextTask(Task[TextExample]):
    """Classification, pair classification and regression; see `Task` for the attributes.

    Attributes:
      files: split -> its files, read one after the other.
      spelled: what stands in the files -> label, where they call labels otherwise.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    files: Mapping[str, tuple[Table, ...]] = field(repr=False)
    spelled: Mapping[str, str] = field(default_factory=dict, repr=False)

    label_keys = ('labels',)

    def __post_init__(self) -> None:
        # Before any file is opened: what the task says of itself must fit together.
        known = NUMBER_METRICS if self.kind == 'regression' else LABEL_METRICS
        for name in self.metrics:
            if name not in known:
                raise UserError(f'task {self.name}: metric {name!r} is none of {", ".join(known)}')
        if self.kind != 'regression' and (
            len(self.labels) < 2 or len(set(self.labels)) != len(self.labels)
        ):
            raise UserError(
                f'task {self.name}: "labels" must list two or more different labels, not'
                f' {list(self.labels)}'
            )

    @property
    def head(self) -> str:
        """regressor for numbers, else classifier."""
        return 'regressor' if self.kind == 'regression' else 'classifier'

    @property
    def num_outputs(self) -> int:
        """One for each label, or one number."""
        # a regressor's one output is the number itself
        return 1 if self.kind == 'regression' else len(self.labels)

    @property
    def options(self) -> dict[str, Any]:
        """How many texts an example has, 1 or 2; nothing where that differs between files."""
        tables = [table for listed in self.files.values() for table in listed]
        counts = {1 + ('text_b' in table.columns) for table in tables}
        return {'texts': counts.pop()} if len(counts) == 1 else {}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have files."""
        return tuple(self.files)

    def examples(self, split: str) -> list[TextExample]:
        """Reads a split; a test split may have no label column.

        Ids are row numbers from 0 where no column holds them.
        """
        self.require_split(split)

        # A public test split has no labels; elsewhere a missing label column is a mistake.
        optional = frozenset({'label'} if split.startswith('test') else ())
        examples: list[TextExample] = []
        lines: dict[str, str] = {}
        for table in self.files[split]:
            for where, row in table.rows(optional):
                name = unique_id(row, where, lines)
                label = self._label(row['label'], where) if 'label' in row else None
                text_b = row['text_b'] if 'text_b' in table.columns else None
                examples.append(TextExample(name, row['text'], text_b, label))
        if not examples:
            raise UserError(f'{", ".join(table.where for table in self.files[split])}: no examples')

        # Empty texts are sound rows, but thousands of them are a wrong column.
        if empty := sum(not example.text.strip() or example.text_b == '' for example in examples):
            logging.warning(
                '%s %s: %d of %d examples have an empty text',
                self.name,
                split,
                empty,
                len(examples),
            )
        return examples

    def _label(self, text: str, where: str) -> int | float:
        """The index of a label, or the number."""
        if self.kind == 'regression':
            return number(text, where)
        text = self.spelled.get(text, text)
        if text not in self.labels:
            raise UserError(f'{where}: {unknown_label(self.name, text, self.labels)}')
        return self.labels.index(text)

    def respelled(self, example: TextExample, respell: Callable[[str], str]) -> TextExample:
        """Both texts."""
        second = None if example.text_b is None else respell(example.text_b)
        return dataclasses.replace(example, text=respell(example.text), text_b=second)

    def features(
        self, examples: Sequence[TextExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """[CLS] a [SEP] or [CLS] a [SEP] b [SEP], cut from the end of the longer.

        That is run_classifier.py:377-460.

        Returns INPUT_KEYS [N, max_seq_length] int32, example_index [N], which is its place, and
        labels [N], int32 or for a regression float32; 0 where unknown.
        """
        # An unknown label becomes 0: it is an array of numbers, and whoever scores asks `labelled`
        # first.
        first = [example.text for example in examples]
        second = [example.text_b for example in examples]
        features = text_rows(first, second, tokenizer, max_seq_length)
        features['example_index'] = np.arange(len(examples), dtype=np.int32)
        features['labels'] = np.array(
            [example.label or 0 for example in examples],
            np.float32 if self.kind == 'regression' else np.int32,
        )
        return features

    def decode(
        self,
        examples: Sequence[TextExample],
        features: Arrays,
        outputs: Arrays,
    ) -> Predictions:
        """The best label, or the number, of each example."""
        logits = outputs['logits']

        # A regressor has one output; a classifier's largest logit is its answer.
        if self.kind == 'regression':
            answers = [float(value) for value in logits[:, 0]]
        else:
            answers = [self.labels[place] for place in logits.argmax(axis=1)]
        return Predictions(
            {example.id: answer for example, answer in zip(examples, answers, strict=True)}
        )

    def constant_loss(self, features: Arrays) -> float:
        """The entropy of the labels, or the variance of the numbers."""
        # The variance is the mean squared error of answering the mean.
        labels = features['labels']
        return float(np.var(labels)) if self.kind == 'regression' else entropy(labels)

    def constant_answer(self, examples: Sequence[TextExample]) -> str | float:
        """The most frequent label (of several the first), or the mean of the numbers."""
        truth = np.array([example.label for example in examples])
        if self.kind == 'regression':
            return float(truth.mean())
        return self.labels[np.bincount(truth).argmax()]

    def score(self, examples: Sequence[TextExample], predictions: Predictions) -> dict[str, float]:
        """The task's metrics as fractions.

        Raises UserError where labels or predictions are missing.
        """
        # Metrics of labels compare indices, so that "of the second label" means something.
        given = complete(self, examples, predictions)
        truth = np.array([example.label for example in examples])
        if self.kind == 'regression':
            predicted, functions = np.array(given, np.float64), NUMBER_METRICS
        else:
            predicted = np.array([self.labels.index(answer) for answer in given])
            functions = LABEL_METRICS
        return {name: functions[name](truth, predicted) for name in self.metrics}

    def write_predictions(
        self, folder: str, examples: Sequence[TextExample], predictions: Predictions
    ) -> None:
        """predictions.tsv in the form of a GLUE submission.

        It has a header `index, prediction`, and labels as words.
        """
        write_labels(os.path.join(folder, 'predictions.tsv'), predictions)

    def read_predictions(self, path: str, examples: Sequence[TextExample]) -> Predictions:
        """A file as `write_predictions` makes it.

        Raises UserError for unknown labels and repeated ids.
        """
        return read_labels(self, path)


def from_description(name: str, description: dict[str, Any], folder: str) -> TextTask:
    """The task that a JSON task file describes.

    The file is an object of:
      kind      classification, pair (needs columns.text_b) or regression
      files     split -> file, list of files, or {"file", "columns", "header", "format"} where a
                split differs; splits are train, dev, test, or others of the user's
      columns   {"text", "text_b", "label", "id"} -> the column's name, or its place from 0; text_b
                and id are optional
      labels    list of all labels, as they are spelt in the files, or an object of that -> name
                (not for regression)
      metrics   list of accuracy, f1 (of the second label), macro_f1, matthews; for regression
                pearson, spearman; the first selects
      header    optional, true: whether the first line names the columns
      format    optional, tsv, csv or jsonl: otherwise by suffix
      skip_bad_rows  optional, false: leave out rows of a wrong width
      only      optional: column -> what stands in it in the rows to be read, as in
                {"language": "de"}
    """
    # From the file's entries to a task, refused at the first that is not as the family has it.
    kind = description['kind']
    needed = ('files',) if kind == 'regression' else ('files', 'labels')
    require_entries(name, description, _SETTINGS, needed)
    files = tables_of(
        name,
        description,
        folder,
        {'text': True, 'text_b': kind == 'pair', 'label': True, 'id': False},
    )

    metrics = description.get('metrics') or (
        ['pearson', 'spearman'] if kind == 'regression' else ['accuracy']
    )
    labels, spelled = labels_of(description) if kind != 'regression' else ((), {})
    return TextTask(name, kind, labels, tuple(metrics), files, spelled)
