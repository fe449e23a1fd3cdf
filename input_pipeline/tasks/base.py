"""What every task offers, whatever its family: the interface that the launchers use.

This file owns the names of that interface and of the arrays that pass through it. It must
not know any one task, a file format of a task, or the model: features are numpy arrays,
and the model's outputs come back as numpy arrays.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.input_pipeline.text.tables import Table, unique_id

if TYPE_CHECKING:
    from bert_jax.configs.model.sentence import VectorsConfig
    from bert_jax.input_pipeline.tasks.task_file import TaskFile

# What every model reads, int32: ids, 1 at tokens and 0 in the padding, segment 0 or 1.
INPUT_KEYS = ('input_ids', 'input_mask', 'segment_ids')
# What has a value for each token of a row: these, and 1 at tokens that late interaction scores.
ROW_KEYS = (*INPUT_KEYS, 'scored_mask')
# The tables of each split, read one after the other.
Files = Mapping[str, tuple[Table, ...]]
# By name, rows along the first axis: features of examples, a batch of them, or a head's outputs.
Arrays = dict[str, np.ndarray]
_LARGEST = 3.4e38  # of float32, in which numbers are learnt


@dataclass(frozen=True)
class Example:
    """One thing to be predicted, as text. Families add their own fields.

    `respelled`: the fields with texts, or tuples of them, that no answer is a place of.
    """

    id: str
    respelled: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Predictions:
    """What a model (or anyone's file) answers to the examples of a split.

    Attributes:
      answers: example id -> label, number or text, as the task's official format has it.
      extras: further results by example id, each written as NAME.json (SQuAD: nbest, null_odds).
      chosen: options of the task that were chosen on these examples, for whoever uses the model.
    """

    answers: dict[str, Any]
    extras: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)


E = TypeVar('E', bound=Example)


class Task(abc.ABC, Generic[E]):
    """A task: where its examples are, how they become arrays, how outputs become a score.

    Its examples are of type E.

    Attributes:
      name: what results are filed under.
      kind: classification, regression, pair, multilabel, span, tagging, choice or embedding.
      head: the model head it needs, by its name in the table of bert_jax/train/task_heads.py.
      labels: the classes in the order of the outputs; empty where there are none.
      metrics: names of the scores; the first selects on the dev split.
      label_keys: the feature arrays that training needs besides INPUT_KEYS.
      n_best: how many best positions of each row `decode` wants of a span head.
      slow_features: whether `features` takes so long that it is worth a file.
      files: split -> its files, read one after the other.
      kinds: the kinds of JSON task files that the class makes tasks of.
      names: the tasks that it knows by name.
      truth_column: of a table the role with what is predicted.
      list_columns: roles that may hold several texts.
      has_classes: whether each text has one of the labels, so that answers make a table of them.
      in_windows: whether long texts may be read in windows, which `doc_stride` sets apart.
    """

    kinds: ClassVar[tuple[str, ...]]
    names: ClassVar[tuple[str, ...]] = ()
    truth_column: ClassVar[str] = 'label'
    list_columns: ClassVar[frozenset[str]] = frozenset()
    has_classes: ClassVar[bool] = False
    in_windows: ClassVar[bool] = False

    name: str
    kind: str
    head: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    label_keys: tuple[str, ...]
    files: Files
    # Class attributes, not fields: families with other values say so in the same way.
    n_best: int = 1
    slow_features: bool = False

    @classmethod
    def from_name(cls, name: str, data_dir: str) -> Task:
        """Make one of `names` on its official files in `data_dir`, or tfds:, or tfds:FOLDER."""
        raise NotImplementedError(f'{cls.__name__} knows no task by name')

    @classmethod
    @abc.abstractmethod
    def from_task_file(cls, file: TaskFile) -> Task:
        """Make the task that a JSON task file describes; the class says what is in one.

        Raises:
          UserError: an entry is missing, or is none of such a task.
        """

    @classmethod
    def describe_table(cls, path: str, cells: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the entries of a task file with such columns; None where it is no such task.

        Args:
          path: the file, for errors.
          cells: role -> the column (`Cells` of table_columns.py).

        Raises:
          UserError: it may be such a task, and may be another.
        """
        return None

    @property
    def num_outputs(self) -> int:
        """Return the width of the head's output: one for each label, unless a family differs."""
        return len(self.labels)

    @property
    def options(self) -> dict[str, Any]:
        """Return the settings, as JSON values, that decide how texts become rows, outputs answers.

        A model is used with those it was trained with.
        """
        # none besides the labels and the length of rows, which every task has
        return {}

    def under(self, options: Mapping[str, Any]) -> Task[E]:
        """Return the task as a model that was trained with these options is asked it.

        Raises:
          UserError: the task has others of its own.
        """
        return self

    def with_vectors(self, vectors: VectorsConfig | None) -> Task[E]:
        """Return the task with rows as a model of such vectors reads them; else as it is."""
        return self

    @property
    def metric(self) -> str:
        """Name the dev metric that selects among runs."""
        return self.metrics[0]

    @property
    def scores(self) -> tuple[str, ...]:
        """Name all that `score` may report: the metrics, and what else a scorer has."""
        return self.metrics

    @property
    def selection_split(self) -> str:
        """Name the split on which models are scored: dev, or test where there is no dev.

        Raises:
          UserError: there is neither.
        """
        # Dev first: a test split that is looked at while choosing is no test any more.
        for split in ('dev', 'test'):
            if split in self.files:
                return split
        raise UserError(
            f'task {self.name} has no dev split to be scored on, only {", ".join(self.files)}:'
            ' give it one, as in "files": {"dev": "dev.tsv"}'
        )

    def examples(self, split: str) -> list[E]:
        """Read a split; ids are row numbers from 0 where no column holds them.

        Raises:
          UserError: a file or column is missing, a label unknown and the like.
        """
        self.require_split(split)
        examples = self._read_examples(split)
        if not examples:
            raise UserError(f'{self.file_names(split)}: no examples')
        return examples

    @abc.abstractmethod
    def _read_examples(self, split: str) -> list[E]:
        """Read a split, which is there; no examples are a mistake that the caller reports."""

    def respelled(self, example: E, respell: Callable[[str], str]) -> E:
        """Return `example` with `respell` of each of its texts; its labels stay right.

        A text that an answer is a place of stays as it is.
        """
        changes: dict[str, Any] = {}
        for name in example.respelled:
            text = getattr(example, name)
            if isinstance(text, str):
                changes[name] = respell(text)
            elif text is not None:
                changes[name] = tuple(map(respell, text))
        return dataclasses.replace(example, **changes)

    @abc.abstractmethod
    def features(self, examples: Sequence[E], tokenizer: Any, max_seq_length: int) -> Arrays:
        """Make arrays of N rows: INPUT_KEYS [N, S] int32, `label_keys`, what stays on the host.

        That is example_index [N], the place in `examples` of the row's example, and what `decode`
        needs. For a choice among C inputs INPUT_KEYS are [N, C, S].
        """

    @abc.abstractmethod
    def decode(self, examples: Sequence[E], features: Arrays, outputs: Arrays) -> Predictions:
        """Turn the head's outputs for the N rows of `features` into predictions for `examples`.

        `outputs` is {'logits': [N, num_outputs]} for a classifier or regressor, [N, C] for a choice
        and [N, S, num_outputs] for tokens (S as in `features`, which may have been trimmed); for a
        span {'start_scores', 'start_indices', 'end_scores', 'end_indices': [N, K] (the K best
        positions, best first), 'null_scores': [N] (start + end logit of [CLS])}. For vectors of
        texts it is {'sentence_embedding': [N, C, D]}.
        """

    def constant_loss(self, features: Arrays) -> float:
        """Return the lowest mean training loss of one constant answer to all rows of `features`.

        What a run must beat, or it has learnt nothing; in nats or squared units. It is not asked
        where each loss that a run may choose knows its own (`Objective.constant`).
        """
        raise NotImplementedError

    def constant_answer(self, examples: Sequence[E]) -> Any:
        """Return the answer that is right for most of `examples`; None where none suits all."""
        return None

    def constant_scores(self, examples: Sequence[E]) -> dict[str, float]:
        """Score `constant_answer`: the chance line of the task's metrics; {} without one."""
        answer = self.constant_answer(examples)
        if answer is None:
            return {}
        return self.score(examples, Predictions({example.id: answer for example in examples}))

    @abc.abstractmethod
    def score(self, examples: Sequence[E], predictions: Predictions) -> dict[str, float]:
        """Return all of the task's metrics, and what else its official scorer reports."""

    def report(self, examples: Sequence[E], predictions: Predictions) -> str:
        """Return the scores in more detail, as text for a terminal; '' where there are none."""
        return ''

    def write_predictions(
        self, folder: str, examples: Sequence[E], predictions: Predictions
    ) -> None:
        """Write predictions.* for `examples` in the task's official format into `folder`.

        The extras are files in the same folder. A table is in the form of a GLUE submission, labels
        as words.
        """
        answers = {name: self._spell_answer(answer) for name, answer in predictions.answers.items()}
        write_text(os.path.join(folder, 'predictions.tsv'), format_label_table(answers))

    def _spell_answer(self, answer: Any) -> Any:
        """Return an answer as a table of predictions has it."""
        return answer

    def read_predictions(self, path: str, examples: Sequence[E]) -> Predictions:
        """Read a file as `write_predictions` makes it, whoever wrote it, that answers `examples`.

        Raises:
          UserError: it has unknown labels, or an id twice.
        """
        return read_table(path, self._read_answer)

    def _read_answer(self, text: str, line: str) -> Any:
        """Return the answer that a table of predictions has there."""
        raise NotImplementedError(f'{type(self).__name__} has no table of predictions')

    def _iterate_rows(self, split: str) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield (id, role -> cell, where errors say it is) of each row of a split's tables."""
        # A public test split has no labels; elsewhere a missing label column is a mistake.
        optional = frozenset({self.truth_column} if split.startswith('test') else ())
        lines: dict[str, str] = {}
        for table in self.files[split]:
            for line, row in table.rows(optional, lists=self.list_columns):
                yield unique_id(row, line, lines), row, line

    def labelled(self, examples: Sequence[E]) -> bool:
        """Tell whether these examples can be scored; public test splits often cannot."""
        # Families that keep the truth under another name say so (SQuAD's answers).
        return all(getattr(example, 'label', True) is not None for example in examples)

    def require_split(self, split: str) -> None:
        """Raise UserError where the task has no such split."""
        if split not in self.files:
            raise UserError(
                f'task {self.name} has no split {split!r}: it has {", ".join(self.files)}'
            )

    def check_names(self, known_metrics: Collection[str]) -> None:
        """Raise UserError for metrics that are not known, or labels that are not told apart."""
        for name in self.metrics:
            if name not in known_metrics:
                raise UserError(
                    f'task {self.name}: metric {name!r} is none of {", ".join(known_metrics)}'
                )
        if self.labels and len(set(self.labels)) < max(2, len(self.labels)):
            raise UserError(
                f'task {self.name}: "labels" must list two or more different labels, not'
                f' {list(self.labels)}'
            )

    def file_names(self, split: str) -> str:
        """Name the files of a split, for errors."""
        return ', '.join(table.where for table in self.files[split])


def get_row_lengths(features: Arrays) -> np.ndarray:
    """Return int64 [N], the tokens of each row; of a choice, those of its longest input."""
    # Masks behind a query are scored also where nothing sees them, and so no padding.
    mask = features['input_mask']
    mask = np.maximum(mask, features.get('scored_mask', mask))
    # A choice's C inputs go through the model together, so the longest decides.
    lengths = mask.sum(axis=-1)
    return lengths.max(axis=tuple(range(1, lengths.ndim)), initial=1)


def cut_rows(features: Arrays, old: int, new: int) -> Arrays:
    """Return the arrays with their last axis cut from `old` to `new` if it is a row's positions."""
    # Positions are the last axis of what has them; counts and places of examples have one axis
    # only.
    shortened = dict(features)
    for name, value in features.items():
        if value.ndim > 1 and value.shape[-1] == old:
            shortened[name] = value[..., :new]
    return shortened


def trim(features: Arrays, multiple: int = 32) -> Arrays:
    """Return the [N, S] or [N, C, S] arrays cut to the longest row.

    Its length is rounded up to a multiple, where that is shorter than S.
    """
    # To a multiple, so that few different shapes are compiled.
    S = features['input_mask'].shape[-1]
    longest = int(get_row_lengths(features).max(initial=1))
    return cut_rows(features, S, min(S, -(-longest // multiple) * multiple))


def write_text(path: str, text: str) -> None:
    """Write a text file that appears whole or not at all; make its folder."""
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    atomic_write(epath.Path(path), text)


# ---- predictions as a table `index, prediction`, the form of a GLUE submission


def format_label_table(answers: Mapping[str, Any]) -> str:
    """Return a header `index, prediction` and rows; labels as words, numbers with six digits."""
    text = 'index\tprediction\n'
    for name, answer in answers.items():
        spelled = f'{answer:.6g}' if isinstance(answer, float) else answer
        text += f'{name}\t{spelled}\n'
    return text


def read_table(path: str, answer: Callable[[str, str], Any]) -> Predictions:
    """Read a file as `format_label_table` makes it, whoever wrote it.

    Args:
      path: the file.
      answer: gives what a text of it means; its second argument is where errors say that it is.

    Raises:
      UserError: it has an id twice, or what `answer` refuses.
    """
    # Every line is checked here, so that scoring can trust labels and numbers.
    answers: dict[str, Any] = {}
    for line, row in Table(path, {'id': 'index', 'answer': 'prediction'}, format='tsv').rows():
        if row['id'] in answers:
            raise UserError(f'{line}: id {row["id"]!r} again')
        answers[row['id']] = answer(row['answer'], line)
    return Predictions(answers)


def parse_number(text: str, line: str) -> float:
    """Return the finite number that a text spells; `line` is where errors say it is."""
    try:
        value = float(text)
    except ValueError as error:
        raise UserError(f'{line}: {text!r} is not a number') from error

    # in these words it is true of nan, too
    if not abs(value) <= _LARGEST:
        raise UserError(f'{line}: {text!r} is not finite in 32 bits')
    return value


def require_labels(task: Task[E], examples: Sequence[E]) -> None:
    """Raise UserError where labels are missing."""
    unknown = sum(not task.labelled([example]) for example in examples)
    what = f'{unknown} of {len(examples)} examples have'
    if unknown == len(examples):
        what = 'this split has'
    if unknown:
        raise UserError(f'task {task.name}: {what} no labels, so it cannot be scored')


def list_answers(task: Task[E], examples: Sequence[E], predictions: Predictions) -> list[Any]:
    """Return the answer to each example.

    Raises:
      UserError: labels are missing, or predictions, or there are some of other examples.
    """
    require_labels(task, examples)

    # Both ways: all examples answered, and nothing answered that is not an example, for that is a
    # file of another split.
    missing = [example.id for example in examples if example.id not in predictions.answers]
    if missing:
        raise UserError(
            f'task {task.name}: no prediction for {len(missing)} of {len(examples)} examples, the'
            f' first is {missing[0]!r}'
        )

    # none is missing, so more answers than examples means strangers among them
    if len(predictions.answers) > len(examples):
        ids = {example.id for example in examples}
        others = [name for name in predictions.answers if name not in ids]
        raise UserError(
            f'task {task.name}: {len(others)} predictions are of examples that the split does not '
            f'have, the first is {others[0]!r}: are they of another split?'
        )
    return [predictions.answers[example.id] for example in examples]
