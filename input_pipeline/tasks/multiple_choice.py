"""Tasks that ask which of a few endings is the right one.

They are SWAG, CODAH, and the user's own (paper section 4.4).

This file owns their layouts, the rows that an example becomes (one for each choice) and their
predictions. It must not know the model, which scores each row by itself.
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
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays, Example, Predictions, Task
from bert_jax.input_pipeline.tasks.features import text_rows
from bert_jax.input_pipeline.tasks.predictions import complete, read_labels, write_labels
from bert_jax.input_pipeline.tasks.scores.labels import accuracy
from bert_jax.input_pipeline.tasks.task_file import TABLE_ENTRIES, require_entries, tables_of
from bert_jax.input_pipeline.text.tables import Column, Table, unique_id

KINDS = ('choice',)
NAMES = ('swag', 'codah')
_SETTINGS = ('kind', 'files', 'labels', 'metrics', *TABLE_ENTRIES)
_FOUR = ('0', '1', '2', '3')


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A context, what all choices begin with, the choices, and the place of the right one.

    `start` is '' where there is nothing in common, `label` None where it is unknown.
    """

    context: str
    start: str
    choices: tuple[str, ...]
    label: int | None


@dataclass(frozen=True)
class ChoiceTask(Task[ChoiceExample]):
    """Multiple choice; see `Task` for the attributes.

    Attributes:
      labels: how the files call the first choice, the second, and so on; as many as every example
      has choices.
      files: split -> its files, read one after the other.
    """

    name: str
    labels: tuple[str, ...]
    files: Mapping[str, tuple[Table, ...]] = field(repr=False)

    kind = 'choice'
    head = 'choice'
    metrics = ('accuracy',)
    label_keys = ('labels',)
    num_outputs = 1  # a choice's score

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have files."""
        return tuple(self.files)

    def examples(self, split: str) -> list[ChoiceExample]:
        """Reads a split; a test split may have no label column.

        Ids are row numbers from 0 where no column holds them.
        """
        self.require_split(split)

        # As for classification: labels may be missing in a test split only.
        optional = frozenset({'label'} if split.startswith('test') else ())
        examples: list[ChoiceExample] = []
        lines: dict[str, str] = {}
        for table in self.files[split]:
            for where, row in table.rows(optional, lists=frozenset({'choices'})):
                name, choices = unique_id(row, where, lines), row['choices']
                if isinstance(choices, str) or len(choices) != len(self.labels):
                    # one text is one choice
                    number = 1 if isinstance(choices, str) else len(choices)
                    raise UserError(
                        f'{where}: {number} choices; every example of task {self.name} has'
                        f' {len(self.labels)}'
                    )
                if 'label' in row and row['label'] not in self.labels:
                    raise UserError(
                        f'{where}: unknown label {row["label"]!r}; task {self.name} has'
                        f' {", ".join(self.labels)}'
                    )
                label = self.labels.index(row['label']) if 'label' in row else None
                examples.append(
                    ChoiceExample(name, row['text'], row.get('start', ''), tuple(choices), label)
                )
        if not examples:
            raise UserError(f'{", ".join(table.where for table in self.files[split])}: no examples')

        # An empty start is usual; an empty context or choice is worth a word.
        texts = [(example.context, *example.choices) for example in examples]
        if empty := sum(not all(map(str.strip, texts_of)) for texts_of in texts):
            logging.warning(
                '%s %s: %d of %d examples have an empty text',
                self.name,
                split,
                empty,
                len(examples),
            )
        return examples

    def respelled(self, example: ChoiceExample, respell: Callable[[str], str]) -> ChoiceExample:
        """The context, what all choices begin with, and the choices."""
        return dataclasses.replace(
            example,
            context=respell(example.context),
            start=respell(example.start),
            choices=tuple(map(respell, example.choices)),
        )

    def features(
        self, examples: Sequence[ChoiceExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """[CLS] context [SEP] start and choice [SEP] for each of C choices.

        Returns INPUT_KEYS [N, C, max_seq_length] int32, example_index [N], which is its place, and
        labels [N] int32 (0 where unknown).
        """
        # All choices of all examples are one list of texts for the tokenizer, and are folded back
        # into [N, C, S]; the model scores each by itself.
        C = len(self.labels)
        first = [example.context for example in examples for _ in range(C)]
        second = [
            f'{example.start} {choice}'.strip()
            for example in examples
            for choice in example.choices
        ]
        rows = text_rows(first, second, tokenizer, max_seq_length)
        features: Arrays = {
            name: rows[name].reshape(len(examples), C, max_seq_length) for name in INPUT_KEYS
        }
        # An example is cut where one of its rows is.
        for name in ('pieces', 'left_out'):
            features[name] = rows[name].reshape(len(examples), C).sum(axis=1)
        features['example_index'] = np.arange(len(examples), dtype=np.int32)
        features['labels'] = np.array([example.label or 0 for example in examples], np.int32)
        return features

    def decode(
        self,
        examples: Sequence[ChoiceExample],
        features: Arrays,
        outputs: Arrays,
    ) -> Predictions:
        """The label of the choice with the highest score."""
        best = outputs['logits'].argmax(axis=1)
        return Predictions(
            {example.id: self.labels[place] for example, place in zip(examples, best, strict=True)}
        )

    def constant_loss(self, features: Arrays) -> float:
        """log(number of choices): they have no order that a constant answer could prefer."""
        # The right ending is at a random place, so no fixed place is better than a guess among C.
        return float(np.log(features['input_ids'].shape[1]))

    def constant_answer(self, examples: Sequence[ChoiceExample]) -> str:
        """The place that is right most often (of several the first)."""
        truth = np.array([example.label for example in examples])
        return self.labels[np.bincount(truth).argmax()]

    def score(
        self, examples: Sequence[ChoiceExample], predictions: Predictions
    ) -> dict[str, float]:
        """Accuracy as a fraction. Raises UserError where labels or predictions are missing."""
        given = complete(self, examples, predictions)
        truth = np.array([example.label for example in examples])
        return {
            'accuracy': accuracy(truth, np.array([self.labels.index(answer) for answer in given]))
        }

    def write_predictions(
        self, folder: str, examples: Sequence[ChoiceExample], predictions: Predictions
    ) -> None:
        """predictions.tsv: a header `index, prediction`, and a line for each example.

        A prediction is the label of the choice.
        """
        write_labels(os.path.join(folder, 'predictions.tsv'), predictions)

    def read_predictions(self, path: str, examples: Sequence[ChoiceExample]) -> Predictions:
        """A file as `write_predictions` makes it.

        Raises UserError for unknown labels and repeated ids.
        """
        return read_labels(self, path)


def by_name(name: str, data_dir: str) -> ChoiceTask:
    """SWAG or CODAH on the official files in `data_dir`.

    SWAG has train.csv, val.csv and test.csv, CODAH (one fold of it) train.tsv, dev.tsv and
    test.tsv.
    """
    columns: dict[str, Column | list[Column]]

    # SWAG has names in its header, CODAH has no header.
    if name == 'swag':
        columns = {
            'id': 0,
            'text': 'sent1',
            'start': 'sent2',
            'choices': [f'ending{i}' for i in range(4)],
            'label': 'label',
        }
        files = {'train': 'train.csv', 'dev': 'val.csv', 'test': 'test.csv'}
        tables = {
            split: Table(os.path.join(data_dir, file), columns) for split, file in files.items()
        }
    else:  # the category, the prompt, four endings, the right one
        columns = {'text': 1, 'choices': [2, 3, 4, 5], 'label': 6}
        tables = {
            split: Table(os.path.join(data_dir, f'{split}.tsv'), columns, header=False)
            for split in ('train', 'dev', 'test')
        }
    return ChoiceTask(name, _FOUR, {split: (table,) for split, table in tables.items()})


def from_description(name: str, description: dict[str, Any], folder: str) -> ChoiceTask:
    """The task that a JSON task file describes.

    The file is an object of:
      kind      "choice"
      files, header, format, skip_bad_rows   as for classification
      columns   {"text", "start", "choices", "label", "id"}; choices is a list of columns, or a JSON
                key that holds a list; start (what all choices begin with) and id are optional
      labels    what the label column calls the choices, in order; optional where choices is a list
                of columns: "0", "1", ...
    """
    require_entries(name, description, _SETTINGS, ('files',))

    # Every example has its own choices: F1 of "the second choice" would mean nothing.
    if description.get('metrics', ['accuracy']) != ['accuracy']:
        raise UserError(
            f'task {name}: metrics={description["metrics"]}: a choice task is scored by accuracy'
            ' alone'
        )

    # How many choices there are is told by the labels, or by the columns that hold the choices.
    roles = {'text': True, 'start': False, 'choices': True, 'label': True, 'id': False}
    files = tables_of(name, description, folder, roles, lists=('choices',))
    choices = next(iter(files.values()))[0].columns['choices']
    listed = description.get('labels') or (range(len(choices)) if isinstance(choices, list) else ())
    labels = tuple(str(label) for label in listed)

    # at least two, and all different; they name places, so there is nothing to be named again
    if isinstance(listed, dict) or len(set(labels)) < max(2, len(labels)):
        raise UserError(
            f'task {name}: "labels" must list what the choices are called, two or more, as in ["0",'
            ' "1", "2", "3"]'
        )
    return ChoiceTask(name, labels, files)
