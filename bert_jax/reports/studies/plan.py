"""What a study must make: the steps of its rows, and where the results of each cell lie.

Owns which command makes what, from which settings, and what is refused of a study's options. It
must not know how steps are carried out (steps.py), nor what results come to (scores.py).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.configs import schema, sweep
from bert_jax.configs.errors import UserError, did_you_mean
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.store import digest
from bert_jax.configs.studies.study import Changes, Column, HeldOut, Row, Study, as_text, value_text
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.text.lines import TextOptions
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.reports.studies.inputs import Inputs
from bert_jax.reports.studies.steps import Command, Folder, Step

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

    def _add(
        self,
        kind: str,
        title: str,
        inputs: dict[str, Any],
        commands: Callable[[Path], Iterable[Command]],
        needs: Sequence[str] = (),
    ) -> str:
        """Add a step, unless there is the same already; return its name, KIND/DIGEST of inputs."""
        name = f'{kind}/{digest(inputs)[:12]}'
        self.steps.setdefault(name, Step(name, title, inputs, commands, tuple(needs)))
        return name

    def _vocabulary(self, row: Row) -> str:
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

        return self._add('vocabulary', f'vocabulary of {row.name}', inputs, commands)

    def _records(self, row: Row, seq_len: int) -> str:
        given, text = self.inputs.tokenizer, self.inputs.texts[row.text]
        made = '' if given else self._vocabulary(row)
        options = {**self.study.records_options(row), 'seq_len': seq_len}
        inputs = {
            'text': text.identity,
            'vocabulary': given.identity if given else made,
            'options': _plain(options, PreprocessOptions, TextOptions),
        }

        def commands(folder: Path) -> Iterator[Command]:
            tokenizer = given.path if given else self.folder.of(made)
            files = [*text.flags, f'--tokenizer={tokenizer}', f'--output={folder}']
            yield 'preprocess', [*files, *flags_of(options)]

        what = f'records of {row.name}, {seq_len} word pieces a row'
        return self._add('records', what, inputs, commands, [made] if made else ())

    def _pretraining(self, row: Row, seed: int) -> Pretraining:
        config = self.study.config(row, seed)
        records = {phase.seq_len: self._records(row, phase.seq_len) for phase in config.phases}
        made = list(records.values())
        inputs = {'records': made, 'config': identity(config)}

        # The held-out records of the last length are scored at once: they are what "LM ppl" is of.
        def commands(folder: Path) -> Iterator[Command]:
            data = [f'--data={self.folder.of(name)}' for name in made]
            manifest = read_object(self.folder.of(made[0]) / 'manifest.json')
            model = dataclasses.replace(config.model, vocab_size=manifest['vocab_size'])
            file = self.folder.path / 'configs' / f'{folder.name}.json'
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, schema.dumps(dataclasses.replace(config, model=model)))
            yield 'pretrain', [f'--config={file}', *data, f'--workdir={folder}']
            if manifest['statistics']['records'].get('eval'):
                yield 'evaluate', [f'--workdir={folder}', data[-1]]

        what = f'pre-training of {row.name}, seed {seed}'
        return Pretraining(
            row, self._add('pretraining', what, inputs, commands, made), records, config
        )

    def _cell(self, line: Line, column: Column | HeldOut, seed: int) -> str:
        pretrained = self.pretraining[line.row.name, seed]
        if isinstance(column, HeldOut):
            return pretrained.step
        approach = line.row.approach or column.approach
        task = self.inputs.tasks[column.name]
        seeds = ','.join(map(str, self.study.finetuning_seeds))
        what = f'{column.name} of {line.name}, seed {seed}'

        # The last step has no number here, so that it is the same cell with and without.
        source, checkpoint = self.folder.of(pretrained.step), line.checkpoint
        if checkpoint == pretrained.config.total_steps:
            checkpoint = None
        if checkpoint:
            source = source / 'checkpoints' / str(checkpoint)

        # Either a sweep of fine-tuning runs, or runs on frozen features; both write sweep.json.
        if approach == 'finetune':
            kind, changes = 'finetune', self.study.finetuning(line.row, column)
            rates = ','.join(map(str, column.learning_rates))
            grid = f'optimizer.peak_lr={rates};seed={seeds}' if rates else f'seed={seeds}'
            sweep.grid(schema.FinetuneConfig(), grid)
            arguments = [*(f'--set={change}' for change in changes), f'--sweep={grid}']
        else:
            kind, changes = 'feature_based', as_text(column.bilstm)
            arguments = [f'--approaches={approach}', f'--seeds={seeds}']
            arguments += [f'--set_bilstm={change}' for change in changes]
        inputs = {
            'pretraining': pretrained.step,
            'checkpoint': checkpoint,
            'task': [column.task, task.identity],
            'seeds': seeds,
            'arguments': arguments,
        }
        flags = [*task.flags, f'--init_from={source}']
        commands = lambda folder: [(kind, [*flags, f'--workdir={folder}', *arguments])]
        return self._add(kind, what, inputs, commands, [pretrained.step])


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
    given = ['en=-'] if 'language_exponent' in others else ['-']
    if repeats := others.get('language_repeats'):
        others['language_repeats'] = tuple(repeats.split(','))
        given = [f'{each.partition("=")[0]}=-' for each in others['language_repeats']]
    PreprocessOptions(tuple(given), '-', '-', seq_len=seq_len, text=text, **others)


def flags_of(options: Changes) -> list[str]:
    """Return options as the flags of a command; None is left out, as the default."""
    stated = {name: value for name, value in options.items() if value is not None}
    return [f'--{change}' for change in as_text(stated)]


def _plain(options: Changes, *classes: type) -> dict[str, str]:
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
