"""Tasks that ask which of a few endings is the right one.

They are SWAG, CODAH, and the user's own (paper section 4.4).

This file owns their layouts and the rows that an example becomes, one for each choice. It must not
know the model, which scores each row by itself.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays, Example
from bert_jax.input_pipeline.tasks.classification import LabelTask
from bert_jax.input_pipeline.tasks.features import empty_rows, text_rows
from bert_jax.input_pipeline.tasks.task_file import (
    HELD_OUT_ENTRIES,
    TABLE_ENTRIES,
    labels_in,
    labels_of_rows,
    require_entries,
    tables_of,
)
from bert_jax.input_pipeline.text.tables import Column, Table

KINDS = ('choice',)
NAMES = ('swag', 'codah')
_SETTINGS = ('kind', 'files', 'labels', 'metrics', *TABLE_ENTRIES, *HELD_OUT_ENTRIES)
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
class ChoiceTask(LabelTask[ChoiceExample]):
    """Multiple choice; see `Task` for the attributes.

    Attributes:
      labels: how the files call the first choice, the second, and so on; as many as the most
        choices that an example has; others may have fewer.
      has_gaps: whether empty cells behind the last choice are no choices, as in columns that are as
        many as the most need.
    """

    name: str
    labels: tuple[str, ...]
    files: Mapping[str, tuple[Table, ...]] = field(repr=False)
    has_gaps: bool = field(default=False, repr=False)

    kind = 'choice'
    head = 'choice'
    metrics = ('accuracy',)
    num_outputs = 1  # a choice's score
    list_columns = frozenset({'choices'})

    def _example(self, name: str, row: dict[str, Any], line: str) -> ChoiceExample:
        choices, label = row['choices'], row.get('label')
        # one text is one choice
        number = 1 if isinstance(choices, str) else len(choices)
        while self.has_gaps and number and not choices[number - 1].strip():
            number -= 1
        choices = choices if isinstance(choices, str) else choices[:number]
        if isinstance(choices, str) or not 2 <= number <= len(self.labels):
            raise UserError(
                f'{line}: {number} choices; an example of task {self.name} has 2 to'
                f' {len(self.labels)}, as many as there are labels'
            )
        answer = None if label is None else self._label(label, line)
        if answer is not None and answer >= number:
            raise UserError(f'{line}: the label {label!r} is beyond its {number} choices')
        return ChoiceExample(name, row['text'], row.get('start', ''), tuple(choices), answer)

    def _has_empty_text(self, example: ChoiceExample) -> bool:
        # an empty start is usual
        return not all(map(str.strip, (example.context, *example.choices)))

    def respelled(self, example: ChoiceExample, respell: Callable[[str], str]) -> ChoiceExample:
        """Return the example with context, common start and choices respelled."""
        return dataclasses.replace(
            example,
            context=respell(example.context),
            start=respell(example.start),
            choices=tuple(map(respell, example.choices)),
        )

    def features(
        self, examples: Sequence[ChoiceExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] context [SEP] start and choice [SEP] for each of C choices.

        C is the most that an example may have; what another lacks are rows of [CLS] alone.

        Returns:
          INPUT_KEYS [N, C, max_seq_length] int32, example_index [N], which is its place, and labels
          [N] int32 (0 where unknown).
        """
        # All choices of all examples are one list of texts for the tokenizer, and are folded back
        # into [N, C, S]; the model scores each by itself.
        N, C = len(examples), len(self.labels)
        first = [example.context for example in examples for _ in example.choices]
        second = [f'{example.start} {c}'.strip() for example in examples for c in example.choices]
        rows = text_rows(first, second, tokenizer, max_seq_length)
        # A row without any token would have no attention to compute, so [CLS] is there.
        is_there = np.arange(C) < np.array([[len(example.choices)] for example in examples])
        features: Arrays = empty_rows(N * C, max_seq_length, tokenizer.pad_id)
        features |= {name: np.zeros(N * C, np.int32) for name in ('pieces', 'left_out')}
        features['input_ids'][:, 0], features['input_mask'][:, 0] = tokenizer.cls_id, 1
        for name, array in features.items():
            array[is_there.ravel()] = rows[name]
        for name in INPUT_KEYS:
            features[name] = features[name].reshape(N, C, max_seq_length)
        # An example is cut where one of its rows is.
        for name in ('pieces', 'left_out'):
            features[name] = features[name].reshape(N, C).sum(axis=1)
        features['example_index'] = np.arange(N, dtype=np.int32)
        features['labels'] = np.array([example.label or 0 for example in examples], np.int32)
        return features

    def constant_loss(self, features: Arrays) -> float:
        """Return log(number of choices): they have no order that a constant could prefer."""
        # The right ending is at a random place, so no fixed place is better than a guess among C.
        # A row that is no choice has one token.
        return float(np.log((features['input_mask'][..., 1] > 0).sum(axis=1)).mean())


def by_name(name: str, data_dir: str) -> ChoiceTask:
    """Return SWAG or CODAH on the official files in `data_dir`.

    SWAG has train.csv, val.csv and test.csv, CODAH (one fold of it) train.tsv, dev.tsv and
    test.tsv.
    """
    # SWAG has names in its header. CODAH has no header: the category, the prompt, four endings, the
    # right one.
    columns: dict[str, Column | list[Column]]
    swag = name == 'swag'
    files = {split: f'{split}.{"csv" if swag else "tsv"}' for split in ('train', 'dev', 'test')}
    columns = {'text': 1, 'choices': [2, 3, 4, 5], 'label': 6}
    if swag:
        files['dev'] = 'val.csv'
        endings: list[Column] = [f'ending{i}' for i in range(4)]
        columns = {'id': 0, 'text': 'sent1', 'start': 'sent2', 'choices': endings, 'label': 'label'}
    tables = {
        split: (Table(os.path.join(data_dir, file), columns, header=swag),)
        for split, file in files.items()
    }
    return ChoiceTask(name, _FOUR, tables)


def from_description(name: str, description: dict[str, Any], folder: str) -> ChoiceTask:
    """Make the task that a JSON task file describes.

    The file is an object of:
      kind      "choice"
      files, header, format, skip_bad_rows, dev_share, dev_seed   as for classification
      columns   {"text", "start", "choices", "label", "id"}; choices is a list of columns, or a JSON
                key that holds a list; start (what all choices begin with) and id are optional. An
                example may have fewer choices than others: a shorter list, or empty last cells
      labels    what the label column calls the choices, in order; optional: "0", "1", ... where
                choices is a list of columns, otherwise the labels of the training files, sorted
    """
    require_entries(name, description, _SETTINGS)

    # Every example has its own choices: F1 of "the second choice" would mean nothing.
    if description.get('metrics', ['accuracy']) != ['accuracy']:
        raise UserError(
            f'task {name}: metrics={description["metrics"]}: a choice task is scored by accuracy'
            ' alone'
        )

    # How many choices there are comes from the labels, or by the columns that hold the choices.
    roles = {'text': True, 'start': False, 'choices': True, 'label': True, 'id': False}
    files = tables_of(name, description, folder, roles, lists=('choices',))
    choices = next(iter(files.values()))[0].columns['choices']
    listed = description.get('labels')
    if not listed:
        of_files = lambda: labels_in(files, lambda table: labels_of_rows(table, ('choices',)))
        listed = range(len(choices)) if isinstance(choices, list) else of_files()
    labels = tuple(str(label) for label in listed)

    # at least two, and all different; they name places, so there is nothing to be named again
    if isinstance(listed, dict) or len(set(labels)) < max(2, len(labels)):
        raise UserError(
            f'task {name}: "labels" must list what the choices are called, two or more, as in ["0",'
            ' "1", "2", "3"]'
        )
    return ChoiceTask(name, labels, files, isinstance(choices, list))
