"""Tasks that ask which of a few endings is the right one.

They are SWAG, CODAH, and the user's own (paper section 4.4).

This file owns their layouts and the rows that an example becomes, one for each choice. It must not
know the model, which scores each row by itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import Arrays, Example, Files
from bert_jax.input_pipeline.tasks.classification import LabelTask
from bert_jax.input_pipeline.tasks.features import make_listed_rows
from bert_jax.input_pipeline.tasks.task_file import LABEL_ENTRIES, TaskFile
from bert_jax.input_pipeline.text.tables import Column, Table


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A context, what all choices begin with, the choices, and the place of the right one.

    `start` is '' where there is nothing in common, `label` None where it is unknown.
    """

    context: str
    start: str
    choices: tuple[str, ...]
    label: int | None

    respelled = ('context', 'start', 'choices')


@dataclass(frozen=True)
class ChoiceTask(LabelTask[ChoiceExample]):
    """Multiple choice; see `Task` for the attributes.

    Attributes:
      labels: how the files call the first choice, the second, and so on; as many as the most
        choices that an example has; others may have fewer.
      has_gaps: whether empty cells behind the last choice are no choices, as in columns that are as
        many as the most need.

    A JSON task file is an object of:
      kind      "choice"
      files, header, format, skip_bad_rows, dev_share, dev_seed   as for classification
      columns   {"text", "start", "choices", "label", "id"}; choices is a list of columns, or a JSON
                key that holds a list; start (what all choices begin with) and id are optional. An
                example may have fewer choices than others: a shorter list, or empty last cells
      labels    what the label column calls the choices, in order; optional: "0", "1", ... where
                choices is a list of columns, otherwise the labels of the training files, sorted
    """

    name: str
    labels: tuple[str, ...]
    files: Files = field(repr=False)
    has_gaps: bool = field(default=False, repr=False)

    kind = 'choice'
    kinds = ('choice',)
    names = ('swag', 'codah')
    head = 'choice'
    metrics = ('accuracy',)
    num_outputs = 1  # a choice's score
    list_columns = frozenset({'choices'})

    @classmethod
    def from_name(cls, name: str, data_dir: str) -> ChoiceTask:
        """Make SWAG or CODAH on the official files in `data_dir`.

        SWAG has train.csv, val.csv and test.csv, CODAH (one fold of it) train.tsv, dev.tsv and
        test.tsv.
        """
        # SWAG has names in its header. CODAH has none: the category, the prompt, four endings, the
        # right one.
        ends = ('train.tsv', 'dev.tsv', 'test.tsv')
        columns: dict[str, Column | list[Column]]
        columns = {'text': 1, 'choices': [2, 3, 4, 5], 'label': 6}
        if name == 'swag':
            ends = ('train.csv', 'val.csv', 'test.csv')
            endings: list[Column] = [f'ending{i}' for i in range(4)]
            columns = {'id': 0, 'text': 'sent1', 'start': 'sent2', 'label': 'label'}
            columns['choices'] = endings
        tables = {
            split: (Table(os.path.join(data_dir, file), columns, header=name == 'swag'),)
            for split, file in zip(('train', 'dev', 'test'), ends, strict=True)
        }
        return cls(name, ('0', '1', '2', '3'), tables)

    @classmethod
    def from_task_file(cls, file: TaskFile) -> ChoiceTask:
        """Make a task of as many choices as there are labels."""
        # How many choices there are comes from the labels, or by the columns that hold the choices.
        roles = {'text': True, 'start': False, 'choices': True, 'label': True, 'id': False}
        files = file.tables(roles, LABEL_ENTRIES, lists=cls.list_columns)
        choices = next(iter(files.values()))[0].columns['choices']
        count = len(choices) if isinstance(choices, list) else 0
        labels, spelled = file.labels(files, range(count))

        # Every example has its own choices: F1 of "the second choice" would mean nothing.
        metrics = file.get('metrics', ['accuracy'])
        if metrics != ['accuracy']:
            raise UserError(
                f'task {file.name}: metrics={metrics}: a choice task is scored by accuracy alone'
            )
        # at least two, and all different; they name places, so there is nothing to be named again
        if spelled or len(set(labels)) < max(2, len(labels)):
            raise UserError(
                f'task {file.name}: "labels" must list what the choices are called, two or more, as'
                ' in ["0", "1", "2", "3"]'
            )
        return cls(file.name, labels, files, count > 0)

    def _make_example(self, name: str, row: dict[str, Any], line: str) -> ChoiceExample:
        choices, label = row['choices'], row.get('label')
        choices = choices if isinstance(choices, list) else [choices]
        while self.has_gaps and choices and not choices[-1].strip():
            choices = choices[:-1]
        if not 2 <= len(choices) <= len(self.labels):
            raise UserError(
                f'{line}: {len(choices)} choices; an example of task {self.name} has 2 to'
                f' {len(self.labels)}, as many as there are labels'
            )
        answer = None if label is None else self._read_label(label, line)
        if answer is not None and answer >= len(choices):
            raise UserError(f'{line}: the label {label!r} is beyond its {len(choices)} choices')
        return ChoiceExample(name, row['text'], row.get('start', ''), tuple(choices), answer)

    def _has_empty_text(self, example: ChoiceExample) -> bool:
        # an empty start is usual
        return not all(map(str.strip, (example.context, *example.choices)))

    def features(
        self, examples: Sequence[ChoiceExample], tokenizer: Any, max_seq_length: int
    ) -> Arrays:
        """Lay out [CLS] context [SEP] start and choice [SEP] for each of C choices.

        C is the most that an example may have; what another lacks are rows of [CLS] alone.

        Returns:
          INPUT_KEYS [N, C, max_seq_length] int32, example_index [N], which is its place, and labels
          [N] int32 (0 where unknown).
        """
        # The model scores each choice by itself.
        choices = []
        for example in examples:
            choices.append([f'{example.start} {choice}'.strip() for choice in example.choices])
        contexts = [example.context for example in examples]
        features = make_listed_rows(
            contexts, choices, tokenizer, max_seq_length, width=len(self.labels)
        )
        features['labels'] = np.array([example.label or 0 for example in examples], np.int32)
        return features

    def constant_loss(self, features: Arrays) -> float:
        """Return log(number of choices): they have no order that a constant could prefer."""
        # The right ending is at a random place, so no fixed place is better than a guess among C.
        # A row that is no choice has one token.
        return float(np.log((features['input_mask'][..., 1] > 0).sum(axis=1)).mean())
