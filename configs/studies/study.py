"""What a study is: pre-trainings as rows of a table, tasks as its columns, and their seeds.

Owns the typed form of a study and what is refused of it before anything runs. It must not know how
a study is carried out (bert_jax/reports/studies).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from bert_jax.configs import overrides
from bert_jax.configs.errors import UserError, suggest
from bert_jax.configs.schema import FeatureConfig, FeatureSet, FinetuneConfig, PretrainConfig

Changes = Mapping[str, Any]
_MEASURES = ('mlm_perplexity', 'mlm_loss', 'mlm_accuracy', 'bits_per_sentence')
_APPROACHES = ('finetune', *get_args(FeatureSet))


@dataclass(frozen=True)
class Column:
    """A task on which every row is judged, by its score on dev.

    Attributes:
      task: as --task of bert-finetune: a name, or a path ending in .json.
      name: what stands above the column, and what --data_dir names it by.
      metric: which of the task's scores; '': the one that it selects by.
      approach: finetune, or what a BiLSTM reads of the frozen encoder (for tagging): a value of
        `features` in configs/schema.py.
      learning_rates: each is run, and the best on dev stands for the row, as in the paper's section
        4.1; (): that of the recipe. For fine-tuning alone.
      finetuning: changes to the paper's recipe for the task (configs/presets/finetune.py).
      bilstm: changes to that of the feature-based approach.
      factor: scores are multiplied by it; 100 for those that are shares, 1 for per cent (SQuAD).
    """

    task: str
    name: str
    metric: str = ''
    approach: str = 'finetune'
    learning_rates: tuple[float, ...] = ()
    finetuning: Changes = field(default_factory=dict)
    bilstm: Changes = field(default_factory=dict)
    factor: float = 100.0


@dataclass(frozen=True)
class HeldOut:
    """A measure on the held-out records of a row, in the last phase's length.

    bits_per_sentence is mlm_loss in bits, times the word pieces that a sentence has: rows with
    other vocabularies cut the same sentences into other pieces, so a loss a piece compares nothing.

    Attributes:
      metric: mlm_perplexity, mlm_loss, mlm_accuracy or bits_per_sentence.
      name: what stands above the column.
      factor: the measure is multiplied by it.
      language: of its held-out records alone, where the texts of the rows name languages; for
        mlm_loss and mlm_accuracy.
    """

    metric: str
    name: str
    factor: float = 1.0
    language: str = ''

    def check(self) -> None:
        """Raise UserError for a measure that there is not."""
        check_name('metric', self.metric, _MEASURES)
        if self.language and self.metric not in ('mlm_loss', 'mlm_accuracy'):
            raise UserError(f'{self.name}: a language has mlm_loss and mlm_accuracy alone')


@dataclass(frozen=True)
class Row:
    """A pre-training, as what differs from the study's recipe: a line of the table.

    Attributes:
      name: what the line begins with; --only takes it.
      text: which --corpus it reads, by name; '': the one without a name.
      vocabulary, records: options of bert-train-vocab and bert-preprocess.
      pretraining, finetuning: settings of the two configurations, by their dotted names; the latter
        for all columns that fine-tune.
      approach: in place of the columns' own.
      checkpoints: the columns are made from these steps of pre-training, a line for each; (): from
        the last. Steps before the last must be multiples of runtime.keep_every.
    """

    name: str
    text: str = ''
    vocabulary: Changes = field(default_factory=dict)
    records: Changes = field(default_factory=dict)
    pretraining: Changes = field(default_factory=dict)
    finetuning: Changes = field(default_factory=dict)
    approach: str = ''
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True)
class Study:
    """A comparison: rows of one recipe on the same text, vocabulary and number of sequences.

    Attributes:
      title: a line above the table.
      columns, rows: the table; differences are to the first row.
      pretraining: the recipe; its vocab_size is that of the vocabulary that is made or given.
      vocabulary, records: options of bert-train-vocab and bert-preprocess; the length of rows
        is that of each phase.
      seeds: of pre-training; all of them read the same records.
      finetuning_seeds: of each run of a column, for every seed of pre-training.
    """

    title: str
    columns: tuple[Column | HeldOut, ...]
    rows: tuple[Row, ...]
    pretraining: PretrainConfig
    vocabulary: Changes = field(default_factory=dict)
    records: Changes = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    finetuning_seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name in ('rows', 'columns', 'seeds', 'finetuning_seeds'):
            values = getattr(self, name)
            is_twice = name.endswith('seeds') and len(set(values)) < len(values)
            if not values or is_twice:
                raise UserError(f'{name}: name one or more, each once')
        for part in (self.rows, self.columns):
            names = [each.name for each in part]
            for name in names:
                if not name.strip() or re.search(r'[,|=\n]', name) or names.count(name) > 1:
                    raise UserError(f'{name!r}: name each once, in words without , | and =')
        for row in self.rows:
            try:
                self._check(row)
            except UserError as error:
                raise UserError(f'row {row.name!r}: {error}') from error

    def config(self, row: Row, seed: int = 0) -> PretrainConfig:
        """Return the pre-training of a row."""
        changed = overrides.apply(self.pretraining, as_text(row.pretraining))
        return dataclasses.replace(changed, seed=seed)

    def finetuning(self, row: Row, column: Column) -> list[str]:
        """Return the settings of a column that fine-tunes a row's encoder."""
        return as_text({**column.finetuning, **row.finetuning})

    def _check(self, row: Row) -> None:
        """Raise UserError where the settings of a row are none."""
        for name in ('seed', 'model.vocab_size'):
            if name in row.pretraining:
                raise UserError(f'pretraining: {name} follows from the study: leave it out')
        config = self.config(row)
        last, kept = config.total_steps, config.runtime.keep_every
        for step in row.checkpoints:
            if step != last and (step > last or not kept or step % kept):
                raise UserError(
                    f'checkpoints: step {step} of {last} is not kept: keep_every={kept}'
                )
        for column in self.columns:
            if isinstance(column, HeldOut):
                column.check()
                if row.checkpoints:
                    raise UserError(f'{column.name} is of the last step: leave checkpoints out')
                continue
            check_name('approach', row.approach or column.approach, _APPROACHES)
            overrides.apply(FinetuneConfig(), self.finetuning(row, column))
            overrides.apply(FeatureConfig(), as_text(column.bilstm))


def check_name(what: str, name: str, names: Sequence[str]) -> None:
    """Raise UserError where a name is none of those there are."""
    if name not in names:
        offers = f'{", ".join(names)}{suggest(name, names)}'
        raise UserError(f'{what}={name!r} is none of {offers}')


def as_text(changes: Changes) -> list[str]:
    """Return changes as --set has them: NAME=VALUE."""
    texts = []
    for name, value in changes.items():
        texts.append(f'{name}={value if isinstance(value, str) else json.dumps(value)}')
    return texts
