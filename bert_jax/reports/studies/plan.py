"""What a study must make: the steps of its rows, and where the results of each cell lie.

Owns which command makes what, from which settings, and what is refused of a study's options. It
must not know how steps are carried out (steps.py), nor what results come to (scores.py).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.configs import schema, sweep
from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.studies.study import Column, HeldOut, Row, Study, as_text, value_text
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.reports.studies.inputs import Inputs
from bert_jax.reports.studies.steps import Command, Folder, Step, name_of

# Options of the records that are the study's own affair.
_OURS = {'input', 'tokenizer', 'output', 'seq_len', 'engine', 'beam_arguments', 'overwrite', 'text'}


@dataclass(frozen=True)
class Line:
    """A line of the table: a row, at a step of its pre-training (None: the last)."""

    row: Row
    checkpoint: int | None = None

    @property
    def name(self) -> str:
        """Return the row's name, with its step where it has several."""
        return self.row.name if self.checkpoint is None else f'{self.row.name} @{self.checkpoint}'


@dataclass(frozen=True)
class Pretraining:
    """The pre-training of a row with one seed: its steps by name, and its settings.

    records: by the length of their rows.
    """

    row: Row
    step: str
    records: Mapping[int, str]
    config: schema.PretrainConfig


class Plan:
    """All steps of a study, each once, in an order in which they can be made.

    Attributes:
      study, inputs, folder: what it is the plan of.
      steps: by name.
      pretraining: (row's name, seed) -> that run.
      cells: (line's name, column's name, seed) -> the step whose results stand there.
    """

    def __init__(self, study: Study, inputs: Inputs, folder: Folder):
        self.study, self.inputs, self.folder = study, inputs, folder
        self.steps: dict[str, Step] = {}
        self.pretraining: dict[tuple[str, int], Pretraining] = {}
        self.cells: dict[tuple[str, str, int], str] = {}
        check_options(study, inputs)

        # Seed by seed and not row by row: a study that is cut off has all rows of the first seed.
        for seed in study.seeds:
            for row in study.rows:
                self.pretraining[row.name, seed] = self._pretraining(row, seed)
                for line in lines_of(row):
                    for column in study.columns:
                        key = (line.name, column.name, seed)
                        self.cells[key] = self._cell(line, column, seed)

    def lines(self) -> list[Line]:
        """Return the lines of the table."""
        return [line for row in self.study.rows for line in lines_of(row)]

    def chosen(self, rows: tuple[str, ...], seeds: tuple[int, ...]) -> list[Step]:
        """Return the steps that these rows and seeds need, () for all of them, in their order."""
        rows = rows or tuple(row.name for row in self.study.rows)
        lines = {line.name for line in self.lines() if line.row.name in rows}
        ends = {
            step
            for (line, _, seed), step in self.cells.items()
            if line in lines and seed in (seeds or self.study.seeds)
        }
        # What they need, and what that needs: a step comes after those it needs.
        for name in reversed(self.steps):
            if name in ends:
                ends |= set(self.steps[name].needs)
        return [step for name, step in self.steps.items() if name in ends]

    def _add(self, step: Step) -> str:
        self.steps.setdefault(step.name, step)
        return step.name

    def _vocabulary(self, row: Row) -> tuple[str | None, Any]:
        """Return (step that makes it, what it is known by); no step where a tokenizer is given."""
        if self.inputs.tokenizer:
            return None, self.inputs.tokenizer.identity
        text = self.inputs.texts[row.text]
        options = self.study.vocabulary_options(row)
        # A study lower-cases where it does not say: its rows are compared with the paper's. So
        # steps of older studies keep their names.
        cased = options.get('lower_case') is False or options.get('model') == 'byte_bpe'
        plain = options if cased else {**options, 'lower_case': None}
        inputs = {'text': text.identity, 'options': _plain(plain, VocabularyOptions)}
        flags = flags_of(options if cased else {'lower_case': True, **options})

        def commands(folder: Path) -> Iterator[Command]:
            shutil.rmtree(folder, ignore_errors=True)  # it is made in one go
            yield 'train_vocab', [*text.flags, f'--output={folder}', *flags]

        name = name_of('vocabulary', inputs)
        return self._add(Step(name, f'vocabulary of {row.name}', inputs, commands)), name

    def _records(self, row: Row, seq_len: int) -> str:
        vocabulary, key = self._vocabulary(row)
        text = self.inputs.texts[row.text]
        options = {**self.study.records_options(row), 'seq_len': seq_len}
        decided = _plain(options, PreprocessOptions, TextOptions)
        inputs = {'text': text.identity, 'vocabulary': key, 'options': decided}

        def commands(folder: Path) -> Iterator[Command]:
            given = self.inputs.tokenizer
            tokenizer = given.path if given else self.folder.of(vocabulary or '')
            files = [*text.flags, f'--tokenizer={tokenizer}', f'--output={folder}']
            yield 'preprocess', [*files, *flags_of(options)]

        what = f'records of {row.name}, {seq_len} word pieces a row'
        name = name_of('records', inputs)
        return self._add(Step(name, what, inputs, commands, (vocabulary,) if vocabulary else ()))

    def _pretraining(self, row: Row, seed: int) -> Pretraining:
        config = self.study.config(row, seed)
        records = {phase.seq_len: self._records(row, phase.seq_len) for phase in config.phases}
        inputs = {'records': list(records.values()), 'config': identity(config)}

        # The held-out records of the last length are scored at once: they are what "LM ppl" is of.
        def commands(folder: Path) -> Iterator[Command]:
            data = [f'--data={self.folder.of(name)}' for name in records.values()]
            manifest = read_object(self.folder.of(next(iter(records.values()))) / 'manifest.json')
            model = dataclasses.replace(config.model, vocab_size=manifest['vocab_size'])
            file = self.folder.path / 'configs' / f'{folder.name}.json'
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, schema.dumps(dataclasses.replace(config, model=model)))
            yield 'pretrain', [f'--config={file}', *data, f'--workdir={folder}']
            if manifest['statistics']['records'].get('eval'):
                yield 'evaluate', [f'--workdir={folder}', data[-1]]

        name = name_of('pretraining', inputs)
        what = f'pre-training of {row.name}, seed {seed}'
        self._add(Step(name, what, inputs, commands, tuple(records.values())))
        return Pretraining(row, name, records, config)

    def _cell(self, line: Line, column: Column | HeldOut, seed: int) -> str:
        pretrained = self.pretraining[line.row.name, seed]
        if isinstance(column, HeldOut):
            return pretrained.step
        approach = line.row.approach or column.approach
        task = self.inputs.tasks[column.name]
        seeds = ','.join(map(str, self.study.finetuning_seeds))
        what = f'{column.name} of {line.name}, seed {seed}'

        # The last step has no number here, so that it is the same cell with and without.
        last = line.checkpoint in (None, pretrained.config.total_steps)
        made_of: dict[str, Any] = {
            'pretraining': pretrained.step,
            'checkpoint': None if last else line.checkpoint,
            'task': [column.task, task.identity],
            'seeds': seeds,
        }
        source = self.folder.of(pretrained.step)
        if not last:
            source = source / 'checkpoints' / str(line.checkpoint)
        common = [*task.flags, f'--init_from={source}']

        # Either a sweep of fine-tuning runs, or runs on frozen features; both write sweep.json.
        if approach == 'finetune':
            changes = self.study.finetuning(line.row, column)
            rates = ','.join(map(str, column.learning_rates))
            grid = ';'.join([*([f'optimizer.peak_lr={rates}'] if rates else []), f'seed={seeds}'])
            sweep.grid(schema.FinetuneConfig(), grid)
            kind = 'finetune'
            arguments = [*(f'--set={change}' for change in changes), f'--sweep={grid}']
        else:
            kind = 'feature_based'
            arguments = [
                f'--approaches={approach}',
                f'--seeds={seeds}',
                *(f'--set_bilstm={change}' for change in as_text(column.bilstm)),
            ]
        inputs = {**made_of, 'arguments': arguments}

        def commands(folder: Path) -> Iterator[Command]:
            yield kind, [*common, f'--workdir={folder}', *arguments]

        return self._add(Step(name_of(kind, inputs), what, inputs, commands, (pretrained.step,)))


def lines_of(row: Row) -> list[Line]:
    """Return the lines of a row: one, or one for each of its checkpoints."""
    return [Line(row, step) for step in row.checkpoints] or [Line(row)]


def identity(config: schema.PretrainConfig) -> dict[str, Any]:
    """Return the settings that decide what a run comes to, by dotted name."""
    kinds = schema.kinds(schema.PretrainConfig)
    plain = schema.to_dict(config)
    decided: dict[str, Any] = {'phases': plain['phases'], 'seed': plain['seed']}
    for section in ('model', 'optimizer', 'runtime'):
        decided |= {
            f'{section}.{name}': value
            for name, value in plain[section].items()
            if kinds[f'{section}.{name}'] != 'runtime'
        }
    # Absent where they are as before there was a choice: such steps keep their names.
    decided |= {name: plain[name] for name in ('record_order', 'pair_loss') if name in plain}
    del decided['model.vocab_size']  # the vocabulary's, which the records stand for
    return decided


def check_options(study: Study, inputs: Inputs) -> None:
    """Check the options of records and vocabulary.

    Raises:
      UserError: there is no such option, or options do not go together.
    """
    for row in study.rows:
        if inputs.tokenizer and row.vocabulary:
            raise UserError(
                f'--tokenizer={inputs.tokenizer.path}: row {row.name!r} has a vocabulary of its'
                ' own to train: leave --tokenizer out'
            )
        of_records, of_vocabulary = study.records_options(row), study.vocabulary_options(row)
        for what, options, names in (
            ('records', of_records, _names(PreprocessOptions, TextOptions) - _OURS),
            ('vocabulary', of_vocabulary, _names(VocabularyOptions)),
        ):
            for name in options.keys() - names:
                raise UserError(
                    f'row {row.name!r}: {what}: there is no option {name!r}'
                    f'{did_you_mean(name, names)}; there are {", ".join(sorted(names))}'
                )
        try:
            _check_values(of_records, study.config(row).phases[0].seq_len)
            VocabularyOptions(**of_vocabulary)  # type: ignore[arg-type]
        except UserError as error:
            raise UserError(f'row {row.name!r}: {error}') from error
        except TypeError as error:  # a value of another type, which has no interval
            raise UserError(f'row {row.name!r}: an option of another type ({error})') from error


def _check_values(options: Mapping[str, Any], seq_len: int) -> None:
    """Make the options of records, which check themselves."""
    others = dict(options)
    text = TextOptions(**{name: others.pop(name) for name in _names(TextOptions) & others.keys()})

    # Which languages the text has is known when it is given; until then those that are named.
    given: str | tuple[str, ...] = '-'
    if 'language_repeats' in others:
        others['language_repeats'] = tuple(others['language_repeats'].split(','))
        given = tuple(f'{repeats.partition("=")[0]}=-' for repeats in others['language_repeats'])
    elif 'language_exponent' in others:
        given = ('en=-',)
    PreprocessOptions(given, tokenizer='-', output='-', seq_len=seq_len, text=text, **others)


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as the flags of a command; None is left out, as the default."""
    switches = {True: '--{}', False: '--no{}'}
    return [
        switches[value].format(name) if isinstance(value, bool) else f'--{name}={value_text(value)}'
        for name, value in options.items()
        if value is not None
    ]


def _plain(options: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Return options of `classes` as JSON values, without those that are as by default.

    A row that names the default and one that leaves it out have the same folder then.
    """
    default = {field.name: field.default for cls in classes for field in dataclasses.fields(cls)}
    return {
        name: value_text(value)
        for name, value in options.items()
        if value is not None and value != default[name]
    }


def _names(*classes: type) -> set[str]:
    return {field.name for cls in classes for field in dataclasses.fields(cls)}
