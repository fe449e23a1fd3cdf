"""Tasks that give one text, or a pair of texts, a label or a number: GLUE, and the user's own.

This file owns how such examples become arrays and predictions, the JSON task file of these kinds,
what classes weigh in the loss, and GLUE as data: the columns of its official files and the order of
labels.
"""

from __future__ import annotations

import abc
import collections
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import (
    Arrays,
    E,
    Example,
    Files,
    Predictions,
    Task,
    list_answers,
    parse_number,
)
from bert_jax.input_pipeline.tasks.features import make_text_rows, make_window_rows, pool_windows
from bert_jax.input_pipeline.tasks.task_file import (
    LABEL_ENTRIES,
    TaskFile,
    word_unknown_label,
)
from bert_jax.input_pipeline.tasks.task_metrics import (
    LABEL_METRICS,
    NUMBER_METRICS,
    Metric,
    entropy,
    write_class_scores,
    write_confusions,
)
from bert_jax.input_pipeline.text.tables import Table

# ---- GLUE: its official files, and the order of labels of run_classifier.py

# The place of a label is its index, in the order of run_classifier.py's processors.
NLI = ('contradiction', 'entailment', 'neutral')
ENTAILMENT = ('entailment', 'not_entailment')
BINARY = ('0', '1')


class _Glue(NamedTuple):
    """A task; columns are places from 0, and a test split has its ids in column 0.

    Attributes:
      kind: classification, pair or regression.
      labels: in the order of the outputs.
      metrics: the first selects.
      texts: the columns of the text, or of both, where there are labels.
      label: the column of the label.
      test: the columns of the texts in a test split.
      ids: the other splits that have ids, in column 0.
      splits: those that it has.
    """

    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    texts: tuple[int, ...]
    label: int
    test: tuple[int, ...]
    ids: tuple[str, ...] = ()
    splits: tuple[str, ...] = ('train', 'dev', 'test')

    def columns(self, split: str) -> dict[str, int]:
        """Return role -> place of the columns of a split."""
        test = split.startswith('test')
        columns = dict(zip(('text', 'text_b'), self.test if test else self.texts, strict=False))
        columns |= {} if test else {'label': self.label}
        return columns | ({'id': 0} if test or split in self.ids else {})


_MNLI_IDS = ('dev', 'dev_mismatched')
_MNLI_SPLITS = ('train', *_MNLI_IDS, 'test', 'test_mismatched')
_F1, _ACCURACY, _MATTHEWS = ('f1', 'accuracy'), ('accuracy',), ('matthews', 'accuracy')
_CORRELATIONS = ('spearman', 'pearson')
_GLUE = {
    'cola': _Glue('classification', BINARY, _MATTHEWS, (3,), 1, (1,)),
    'sst2': _Glue('classification', BINARY, _ACCURACY, (0,), 1, (1,)),
    'mrpc': _Glue('pair', BINARY, _F1, (3, 4), 0, (3, 4)),
    'stsb': _Glue('regression', (), _CORRELATIONS, (7, 8), 9, (7, 8), ('train', 'dev')),
    'qqp': _Glue('pair', BINARY, _F1, (3, 4), 5, (1, 2)),
    'mnli': _Glue('pair', NLI, _ACCURACY, (8, 9), -1, (8, 9), _MNLI_IDS, _MNLI_SPLITS),
    'qnli': _Glue('pair', ENTAILMENT, _ACCURACY, (1, 2), 3, (1, 2), ('dev',)),
    'rte': _Glue('pair', ENTAILMENT, _ACCURACY, (1, 2), 3, (1, 2)),
    'wnli': _Glue('pair', BINARY, _ACCURACY, (1, 2), 3, (1, 2)),
    # The diagnostic set has no training data: an MNLI model answers it.
    'ax': _Glue('pair', NLI, _MATTHEWS, (), 0, (1, 2), splits=('test',)),
}
# The columns of tensorflow-datasets' `glue`, where they are not sentence1 and sentence2.
_TFDS_TEXTS = {
    'cola': ('sentence',),
    'sst2': ('sentence',),
    'qqp': ('question1', 'question2'),
    'mnli': ('premise', 'hypothesis'),
    'qnli': ('question', 'sentence'),
    'ax': ('premise', 'hypothesis'),
}
# CoLA's labelled files start with an example, not with names.
_HEADERLESS = (('cola', 'train'), ('cola', 'dev'))


def _get_whole_name(name: str, split: str) -> str:
    """Return what a split is called in full: of MNLI `dev` and `test` are the matched ones."""
    return f'{split}_matched' if name == 'mnli' and split in ('dev', 'test') else split


def _make_official_table(name: str, split: str, folder: str) -> Table:
    """Return a split's official file, by its columns' places: headers differ from task to task."""
    stem = 'diagnostic' if name == 'ax' else _get_whole_name(name, split)
    return Table(
        os.path.join(folder, f'{stem}.tsv'),
        _GLUE[name].columns(split),
        header=(name, split) not in _HEADERLESS,
        # QQP has questions with line breaks in them: a few rows are torn, and everyone leaves them
        # out
        skip_bad_rows=name == 'qqp' and split != 'test',
    )


def _make_tfds_table(name: str, split: str, folder: str) -> Table:
    """Return a split of tensorflow-datasets' glue.

    Its test splits have a column of labels that say nothing, so it is left out.
    """
    texts = _TFDS_TEXTS.get(name, ('sentence1', 'sentence2'))
    columns = dict(zip(('text', 'text_b'), texts, strict=False)) | {'id': 'idx'}
    if 'test' not in split:
        columns['label'] = 'label'
    # Labels called 0 and 1 are given as numbers there, others by their names.
    return Table(
        folder,
        columns,
        tfds=f'glue/{name}',
        split=_get_whole_name(name, split).replace('dev', 'validation'),
        class_names=_GLUE[name].labels != BINARY,
    )


# ---- tasks of labels


class LabelTask(Task[E]):
    """A task whose examples have one label each, an index into `labels`.

    Attributes:
      known_metrics: name -> what computes it of truth and prediction [N].
    """

    label_keys = ('labels',)
    known_metrics: ClassVar[Mapping[str, Metric]] = LABEL_METRICS

    @abc.abstractmethod
    def _make_example(self, name: str, row: dict[str, Any], line: str) -> E:
        """Return the example of a row; `line` is where errors say it is."""

    def _read_label(self, text: str, line: str) -> Any:
        """Return what a label in a file means: its place in `labels`."""
        if text not in self.labels:
            raise UserError(f'{line}: {word_unknown_label(self.name, text, self.labels)}')
        return self.labels.index(text)

    @abc.abstractmethod
    def _has_empty_text(self, example: E) -> bool:
        """Tell whether a text is empty that should not be."""

    def _read_examples(self, split: str) -> list[E]:
        examples = [self._make_example(*row) for row in self._iterate_rows(split)]
        # Empty texts are sound rows, but thousands of them are a wrong column.
        empty = sum(map(self._has_empty_text, examples))
        if empty:
            message = '%s %s: %d of %d examples have an empty text'
            logging.warning(message, self.name, split, empty, len(examples))
        return examples

    def _get_truth(self, examples: Sequence[Any]) -> np.ndarray:
        return np.array([example.label for example in examples])

    def _make_numbers(self, answers: Sequence[Any]) -> np.ndarray:
        """Return what metrics compare: indices, so that "of the second label" means something."""
        return np.array([self.labels.index(answer) for answer in answers])

    def _decode_answers(self, outputs: Arrays) -> list[Any]:
        return [self.labels[best] for best in outputs['logits'].argmax(axis=1)]

    def decode(self, examples: Sequence[E], features: Arrays, outputs: Arrays) -> Predictions:
        """Return the best label, or the number, of each example."""
        outputs = pool_windows(features, outputs, len(examples))
        answers = zip(examples, self._decode_answers(outputs), strict=True)
        return Predictions({example.id: answer for example, answer in answers})

    def constant_answer(self, examples: Sequence[E]) -> Any:
        """Return the most frequent label, of several the first."""
        return self.labels[np.bincount(self._get_truth(examples)).argmax()]

    def score(self, examples: Sequence[E], predictions: Predictions) -> dict[str, float]:
        """Return the task's metrics as fractions.

        Raises:
          UserError: labels or predictions are missing.
        """
        predicted = self._make_numbers(list_answers(self, examples, predictions))
        truth = self._get_truth(examples)
        return {name: self.known_metrics[name](truth, predicted) for name in self.metrics}

    def _read_answer(self, text: str, line: str) -> Any:
        return self.labels[self._read_label(text, line)]


@dataclass(frozen=True)
class TextExample(Example):
    """A text, or two, and its label.

    `label`: an index into the task's labels, a set of them, a number, or None where unknown.
    """

    text: str
    text_b: str | None
    label: int | float | tuple[int, ...] | None

    respelled = ('text_b', 'text')


@dataclass(frozen=True)
class TextTask(LabelTask[TextExample]):
    """Classification and pair classification; see `Task` for the attributes.

    Attributes:
      spelled: what is in the files -> label, where they call labels otherwise.
      doc_stride: word pieces between the starts of two windows on a text that is longer than a row,
        whose scores are their mean; None: such a text is cut.

    A JSON task file is an object of:
      kind      classification, pair (needs columns.text_b) or regression
      files     split -> file, list of files, or {"file", "columns", "header", "format"} where a
                split differs; splits are train, dev, test, or others of the user's
      columns   {"text", "text_b", "label", "id"} -> the column's name, or its place from 0; text_b
                and id are optional
      labels    list of all labels, as they are spelt in the files, or an object of that -> name
                (not for regression); optional: those of the training files, sorted
      metrics   list of accuracy, f1 (of the second label), macro_f1, matthews; for regression
                pearson, spearman; the first selects
      header    optional, true: whether the first line names the columns
      format    optional, tsv, csv or jsonl: otherwise by suffix
      skip_bad_rows  optional, false: leave out rows of a wrong width
      only      optional: column -> what stands in it in the rows to be read, as in
                {"language": "de"}
      dev_share  optional, without a dev file: the share of the training rows that is taken as
                dev, drawn by dev_seed (0 if not given); rows of equal texts stay together
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    files: Files = field(repr=False)
    spelled: Mapping[str, str] = field(default_factory=dict, repr=False)
    doc_stride: int | None = None

    head = 'classifier'
    kinds: ClassVar[tuple[str, ...]] = ('classification', 'pair', 'regression')
    has_classes = True
    in_windows = True
    names: ClassVar[tuple[str, ...]] = tuple(_GLUE)
    label_type: ClassVar[type] = np.int32
    report_parts: ClassVar[tuple[Callable[..., str], ...]] = (write_class_scores, write_confusions)

    def __post_init__(self) -> None:
        # Before any file is opened: what the task says of itself must fit together.
        self.check_names(self.known_metrics)

    @classmethod
    def from_task_file(cls, file: TaskFile) -> TextTask:
        """Make the task of the kind that the file names."""
        kind, is_regression = file.get('kind'), file.get('kind') == 'regression'
        roles = {'text': True, 'text_b': kind == 'pair', 'label': True, 'id': False}
        files = file.tables(roles, LABEL_ENTRIES)
        if is_regression:
            metrics = tuple(file.get('metrics', NUMBER_METRICS))
            return RegressionTask(file.name, kind, (), metrics, files)
        labels, spelled = file.labels(files)
        metrics = tuple(file.get('metrics', ('accuracy',)))
        return TextTask(file.name, kind, labels, metrics, files, spelled)

    @classmethod
    def from_name(cls, name: str, data_dir: str) -> TextTask:
        """Make a GLUE task on its official files in `data_dir`, or of tensorflow-datasets."""
        task = _GLUE[name]
        make = _make_tfds_table if data_dir.startswith('tfds:') else _make_official_table
        folder = data_dir.removeprefix('tfds:')
        files = {split: (make(name, split, folder),) for split in task.splits}
        return make_text_task(name, task.kind, task.labels, task.metrics, files)

    @classmethod
    def describe_table(cls, path: str, cells: Mapping[str, Any]) -> dict[str, Any] | None:
        """Tell classes from numbers; None where labels are sets."""
        label = cells['label']
        if isinstance(label, list) or label.are_lists:
            return None
        classes = {'kind': 'pair' if 'text_b' in cells else 'classification'}
        if not label.are_numbers or len(label.different) <= 2:
            return classes
        # Numbers between whole ones are measured; those counted from 0 are classes.
        values = set(map(float, label.different))
        if not all(value.is_integer() for value in values):
            return {'kind': 'regression'}
        if values == set(range(len(values))) and all(text.isdigit() for text in label.different):
            return classes
        raise UserError(
            f'{path}: column {label} has {len(values)} whole numbers, {min(values):g} to'
            f' {max(values):g}: give --kind={classes["kind"]} where they are classes,'
            ' --kind=regression where they are a measure'
        )

    @property
    def options(self) -> dict[str, Any]:
        """Return how many texts an example has, 1 or 2; nothing where that differs by file."""
        tables = [table for listed in self.files.values() for table in listed]
        counts = {1 + ('text_b' in table.columns) for table in tables}
        return {'texts': counts.pop()} if len(counts) == 1 else {}

    def _make_example(self, name: str, row: dict[str, Any], line: str) -> TextExample:
        label = row.get('label')
        if label is not None:
            label = self._read_label(self.spelled.get(label, label), line)
        return TextExample(name, row['text'], row.get('text_b'), label)

    def _has_empty_text(self, example: TextExample) -> bool:
        return not example.text.strip() or example.text_b == ''

    def features(
        self, examples: Sequence[TextExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] a [SEP] or [CLS] a [SEP] b [SEP], cut from the end of the longer.

        That is run_classifier.py:377-460.

        Returns:
          INPUT_KEYS [N, max_seq_length] int32, example_index [N], which is its place, and labels
          [N], int32 or for a regression float32; 0 where unknown. With doc_stride an example has as
          many rows as its text takes.
        """
        # An unknown label becomes 0: it is an array of numbers, and whoever scores asks `labelled`
        # first.
        first = [example.text for example in examples]
        second = [example.text_b for example in examples]
        labels = self._label_array(examples)
        if self.doc_stride:
            features = make_window_rows(first, second, tokenizer, max_seq_length, self.doc_stride)
        else:
            features = make_text_rows(first, second, tokenizer, max_seq_length)
            features['example_index'] = np.arange(len(examples), dtype=np.int32)
        return features | {'labels': labels[features['example_index']]}

    def _label_array(self, examples: Sequence[TextExample]) -> np.ndarray:
        return np.array([example.label or 0 for example in examples], self.label_type)

    def report(self, examples: Sequence[TextExample], predictions: Predictions) -> str:
        """Return the scores of each class, and what is taken for what."""
        predicted = self._make_numbers(list_answers(self, examples, predictions))
        truth = self._get_truth(examples)
        return '\n\n'.join(part(self.labels, truth, predicted) for part in self.report_parts)

    def constant_loss(self, features: Arrays) -> float:
        """Return the entropy of the labels."""
        return entropy(features['labels'])


@dataclass(frozen=True)
class RegressionTask(TextTask):
    """A number for one text or a pair."""

    head = 'regressor'
    has_classes = False
    num_outputs = 1  # the number itself
    known_metrics = NUMBER_METRICS
    label_type = np.float32
    report_parts = ()  # numbers have no classes

    def _read_label(self, text: str, line: str) -> float:
        return parse_number(text, line)

    _read_answer = _read_label

    def _make_numbers(self, answers: Sequence[Any]) -> np.ndarray:
        return np.array(answers, np.float64)

    def _decode_answers(self, outputs: Arrays) -> list[float]:
        return [float(value) for value in outputs['logits'][:, 0]]

    def constant_loss(self, features: Arrays) -> float:
        """Return the variance of the numbers: the mean squared error of answering their mean."""
        return float(np.var(features['labels']))

    def constant_answer(self, examples: Sequence[TextExample]) -> float:
        """Return the mean of the numbers."""
        return float(self._get_truth(examples).mean())


def make_text_task(name: str, kind: str, *arguments: Any) -> TextTask:
    """Return the task of that kind; the arguments are those of `TextTask`."""
    return (RegressionTask if kind == 'regression' else TextTask)(name, kind, *arguments)


def class_weights(setting: str, labels: Sequence[str], given: Iterable[int]) -> tuple[float, ...]:
    """Return the weight of each label; () where all weigh the same.

    Args:
      setting: '', 'balanced', or LABEL=NUMBER,... where labels that are not named weigh 1.
      labels: the task's.
      given: the labels of the training examples, by their places, for balanced weights: a label
        weighs all examples / (labels * examples that have it).

    Raises:
      UserError: it is anything else.
    """
    if not setting:
        return ()
    if setting == 'balanced':
        counts = collections.Counter(given)
        # A label that no example has is in no loss, whatever it weighs.
        balanced = [1.0] * len(labels)
        for i, count in counts.items():
            balanced[i] = counts.total() / (len(labels) * count)
        return tuple(balanced)
    weights = dict.fromkeys(labels, 1.0)
    for part in setting.split(','):
        label, equals, value = part.rpartition('=')
        if not equals or label not in weights:
            raise UserError(
                f'class_weights={setting}: write balanced, or LABEL=NUMBER with commas between, of'
                f' the labels {", ".join(labels)[:100]}'
            )
        weights[label] = parse_number(value, f'class_weights={setting}')
        if weights[label] <= 0:
            raise UserError(f'class_weights={setting}: a weight must be above 0')
    return tuple(weights.values())
