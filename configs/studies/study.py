"""What a study is: one recipe, rows that each change a few settings of it, columns that judge them.

Owns the typed form of a study and what is refused of it before anything runs. It must not know how
a study is carried out (bert_jax/reports/studies), nor what an option of the records or the
vocabulary may be: those are checked where they are known.

  def get_studies() -> dict[str, Study]:       # by scale
      return {'cpu': Study(...), 'paper': Study(...)}
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from bert_jax.configs import overrides
from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.load import run_file
from bert_jax.configs.schema import FeatureConfig, FeatureSet, FinetuneConfig, PretrainConfig

# A setting's value as a Python file has it; a tuple is one value with commas on a command line.
Value = bool | int | float | str | tuple[float, ...] | None
Changes = Mapping[str, Value]
# How an encoder is judged on a task: fine-tuned, or frozen under a BiLSTM that reads these layers.
Approach = Literal['finetune'] | FeatureSet
APPROACHES = ('finetune', *get_args(FeatureSet))


HeldOutMetric = Literal['mlm_perplexity', 'mlm_loss', 'mlm_accuracy', 'bits_per_sentence']


@dataclass(frozen=True)
class Column:
    """A task on which every row is judged, by its score on dev.

    Attributes:
      task: as --task of bert-finetune: a name, or a path ending in .json.
      name: what stands above the column, and what --data_dir names it by.
      metric: which of the task's scores; '': the one that it selects by.
      approach: fine-tuning, or what a BiLSTM reads of the frozen encoder (for tagging).
      learning_rates: each is run, and the best on dev stands for the row, as in the paper's section
        4.1; (): that of the recipe. For fine-tuning alone.
      finetuning: changes to the paper's recipe for the task (configs/presets/finetune.py).
      bilstm: changes to that of the feature-based approach.
      factor: scores are multiplied by it; 100 for those that are shares, 1 for per cent (SQuAD).
      examples: how many training examples there are, for the estimate of --dry_run; 0: not known.
    """

    task: str
    name: str
    metric: str = ''
    approach: Approach = 'finetune'
    learning_rates: tuple[float, ...] = ()
    finetuning: Changes = field(default_factory=dict)
    bilstm: Changes = field(default_factory=dict)
    factor: float = 100.0
    examples: int = 0

    def __post_init__(self) -> None:
        _check_name(f'column {self.name!r}', 'approach', self.approach, APPROACHES)


@dataclass(frozen=True)
class HeldOut:
    """A measure on the held-out records of a row, in the last phase's length.

    bits_per_sentence is mlm_loss in bits, times the word pieces that a sentence has: rows with
    other vocabularies cut the same sentences into other pieces, so a loss a piece compares nothing.
    language: of its held-out records alone, where the texts of the rows name languages; mlm_loss
    and mlm_accuracy.
    """

    metric: HeldOutMetric
    name: str
    factor: float = 1.0
    language: str = ''

    def __post_init__(self) -> None:
        _check_name(f'column {self.name!r}', 'metric', self.metric, get_args(HeldOutMetric))
        if self.language and self.metric not in ('mlm_loss', 'mlm_accuracy'):
            raise UserError(
                f'column {self.name!r}: {self.metric} is not measured by language: take mlm_loss or'
                ' mlm_accuracy'
            )


@dataclass(frozen=True)
class Row:
    """One line of the table: what differs from the study's recipe.

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
    approach: Approach | None = None
    checkpoints: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.approach is not None:
            _check_name(f'row {self.name!r}', 'approach', self.approach, APPROACHES)


# What all rows have in common unless a study is about it.
Axis = Literal['text', 'vocabulary', 'sequences']
# Share of the documents that are held out, where a study does not say.
HELD_OUT = 0.005
# Options of the records that decide which text there is.
_TEXT = ('eval_fraction', 'eval_input', 'dedup', 'language', 'segment', 'documents', 'join_lines')


@dataclass(frozen=True)
class Study:
    """A comparison: rows of one recipe on the same text, vocabulary and number of sequences.

    Attributes:
      title: a line above the table.
      pretraining: the recipe; its vocab_size is that of the vocabulary that is made or given.
      columns, rows: the table; differences are to the first row.
      vocabulary, records: options of bert-train-vocab and bert-preprocess; the length of rows
        is that of each phase.
      seeds: of pre-training; all of them read the same records.
      finetuning_seeds: of each run of a column, for every seed of pre-training.
      may_differ: what the study is about, of what rows must have in common.
    """

    title: str
    pretraining: PretrainConfig
    columns: tuple[Column | HeldOut, ...]
    rows: tuple[Row, ...]
    vocabulary: Changes = field(default_factory=dict)
    records: Changes = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    finetuning_seeds: tuple[int, ...] = (0,)
    may_differ: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        # Names first, for all other lines name a row or a column.
        for what, names in (
            ('rows', [row.name for row in self.rows]),
            ('columns', [column.name for column in self.columns]),
            ('seeds', list(self.seeds)),
            ('finetuning_seeds', list(self.finetuning_seeds)),
        ):
            if not names or len(set(names)) < len(names):
                raise UserError(f'{what}: name one or more, each once, not {names}')
        for name in (each.name for each in (*self.rows, *self.columns)):
            if not name.strip() or re.search(r'[,|=\n]', name):
                raise UserError(f'{name!r}: a name of a row or column is words without , | and =')

        for axis in self.may_differ:
            _check_name('the study', 'may_differ', axis, get_args(Axis))

        # Then each row and column by itself, and the rows beside the first.
        for row in self.rows:
            self._check_row(row)
            for column in self.columns:
                self._check_cell(row, column)
        for row in self.rows[1:]:
            self._check_in_common(self.rows[0], row)

    def config(self, row: Row, seed: int | None = None) -> PretrainConfig:
        """Return the pre-training of a row.

        Raises:
          UserError: its changes name no setting or do not fit.
        """
        config = overrides.apply(self.pretraining, as_text(row.pretraining))
        return config if seed is None else dataclasses.replace(config, seed=seed)

    def records_options(self, row: Row) -> dict[str, Value]:
        """Return the options of a row's records."""
        options = {**self.records, **row.records}
        # Said, because what bert-preprocess does by default holds nothing out where that would
        # be too little for pairs: rows with and without pairs would then read other text.
        return options if 'eval_input' in options else {'eval_fraction': HELD_OUT, **options}

    def vocabulary_options(self, row: Row) -> dict[str, Value]:
        """Return the options of a row's vocabulary."""
        return {**self.vocabulary, **row.vocabulary}

    def finetuning(self, row: Row, column: Column) -> list[str]:
        """Return the changes of --set for a column that fine-tunes a row's encoder."""
        return as_text({**column.finetuning, **row.finetuning})

    def _check_row(self, row: Row) -> None:
        with _about(f'row {row.name!r}'):
            config = self.config(row)
            for name in ('seed', 'model.vocab_size'):
                if name in row.pretraining:
                    raise UserError(f'pretraining: {name} follows from the study: leave it out')
            kept, last = config.runtime.keep_every, config.total_steps
            for step in row.checkpoints:
                if step != last and (step > last or not kept or step % kept):
                    raise UserError(
                        f'checkpoints: {step} is neither the last step ({last}) nor a multiple of'
                        f' runtime.keep_every={kept}'
                    )

    def _check_cell(self, row: Row, column: Column | HeldOut) -> None:
        with _about(f'row {row.name!r}, column {column.name!r}'):
            if isinstance(column, HeldOut):
                if row.checkpoints:
                    raise UserError('held-out measures are of the last step: leave it out')
            elif (row.approach or column.approach) == 'finetune':
                overrides.apply(FinetuneConfig(), self.finetuning(row, column))
            else:
                overrides.apply(FeatureConfig(), as_text(column.bilstm))

    def _check_in_common(self, first: Row, row: Row) -> None:
        """Check that two rows agree in what makes them comparable.

        Raises:
          UserError: they do not.
        """
        facts: dict[Axis, Callable[[Row], Any]] = {
            'text': lambda r: (r.text, [self.records_options(r).get(name) for name in _TEXT]),
            'vocabulary': self.vocabulary_options,
            'sequences': lambda r: [
                (phase.seq_len, phase.steps, phase.batch_size) for phase in self.config(r).phases
            ],
        }
        for axis, fact in facts.items():
            base, other = fact(first), fact(row)
            if base != other and axis not in self.may_differ:
                raise UserError(
                    f'rows {first.name!r} and {row.name!r} differ in {axis} ({base} and {other}),'
                    f' so nothing else can be read off them: make them alike, or, if that is what'
                    f" the study is about, say may_differ=('{axis}',)"
                )


def _check_name(of: str, what: str, name: str, names: Sequence[str]) -> None:
    """Check that a name is one of those there are.

    Raises:
      UserError: it is not.
    """
    if name not in names:
        raise UserError(
            f'{of}: {what}={name!r} is none of {", ".join(names)}{did_you_mean(name, names)}'
        )


def as_text(changes: Changes) -> list[str]:
    """Return changes as --set and the flags of a command have them: NAME=VALUE."""
    return [f'{name}={value_text(value)}' for name, value in changes.items()]


def value_text(value: Value) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, tuple):
        return ','.join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def names() -> list[str]:
    """Return the names of the studies that this package ships."""
    files = pathlib.Path(__file__).parent.glob('*.py')
    return sorted(file.stem for file in files if '\ndef get_studies()' in file.read_text())


def load(name_or_path: str) -> dict[str, Study]:
    """Return the studies of a shipped file or of a .py file of one's own, by scale.

    Raises:
      UserError: there is none, or it is refused.
    """
    shipped = pathlib.Path(__file__).parent / f'{name_or_path}.py'
    path = shipped if name_or_path in names() else pathlib.Path(name_or_path)
    if path.suffix != '.py' or not path.is_file():
        raise UserError(
            f'--study={name_or_path}: neither a .py file nor one of {", ".join(names())}'
            f'{did_you_mean(name_or_path, names())}'
        )
    studies = run_file(path, 'get_studies')
    made = list(studies.values()) if isinstance(studies, dict) else []
    if not made or not all(isinstance(study, Study) for study in made):
        raise UserError(
            f'{path}: get_studies() must return a dict of Study by scale, as in'
            " {'cpu': Study(...)}"
        )
    return studies


@contextlib.contextmanager
def _about(of: str) -> Iterator[None]:
    """Put the row and the column before what is refused of them."""
    try:
        yield
    except UserError as error:
        raise UserError(f'{of}: {error}') from error
