"""The options that several commands share: of training, of a trained model, of a file of records.

Owns what --steps, --batch_size, --learning_rate and --track mean to a run of either kind, and the
warm-up and growth that a preset has for another number of steps. It must not know where a
configuration came from. Flags are made from here (flags.py), so nothing heavy is imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option, select_options
from bert_jax.configs.overrides import apply
from bert_jax.configs.runtime import Tracker, check_tracker
from bert_jax.configs.schema import FinetuneConfig, PretrainConfig

C = TypeVar('C', PretrainConfig, FinetuneConfig)
_WARMUP = 'optimizer.warmup_steps'
_GROWTH = 'batch_warmup_steps'  # of a phase


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """The flags of whatever trains.

    Attributes:
      track: where metrics go besides the workdir, as --set runtime.track; tensorboard: no further.
        Default: as the configuration says.
      deterministic: on a GPU: only operations that give the same bits each time, so that a resumed
        run does too (slower).
    """

    track: Tracker | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_tracker(self.track)

    def tracked(self) -> list[str]:
        """Return the setting, as NAME=VALUE, that the flag means; none without it."""
        return [f'runtime.track={self.track}'] if self.track is not None else []


@dataclass(frozen=True, kw_only=True)
class CommonFlags(TrainingFlags):
    """The flags that both training commands have; None: as the configuration says.

    Attributes:
      steps: optimizer steps of the whole run; phases keep their shares of them.
      batch_size: sequences or examples a step.
      learning_rate: peak of the learning rate, as --set optimizer.peak_lr.
    """

    steps: int | None = option(None, bounds=(1, None))
    batch_size: int | None = option(None, bounds=(1, None))
    learning_rate: float | None = option(None, bounds=(0, None))

    def settings_of_flags(
        self, config: PretrainConfig | FinetuneConfig, named: Sequence[str]
    ) -> list[str]:
        """Return the settings, as NAME=VALUE, that the flags mean for a run of `config`.

        Args:
          config: the configuration that they change.
          named: what --set says, as NAME=VALUE.

        Raises:
          UserError: a setting is given by its flag and by --set too.
        """
        phases = config.phases if isinstance(config, PretrainConfig) else ()
        by_flag: dict[str, list[str]] = {}
        if self.steps is not None:
            by_flag['steps'] = _split_steps(self.steps, [phase.steps for phase in phases])
        if self.batch_size is not None:
            sections = [f'phases.{i}.' for i in range(len(phases))] or ['']
            by_flag['batch_size'] = [f'{name}batch_size={self.batch_size}' for name in sections]
        if self.learning_rate is not None:
            by_flag['learning_rate'] = [f'optimizer.peak_lr={self.learning_rate}']
        tracked = self.tracked()
        if tracked:
            by_flag['track'] = tracked

        # The last of two would win without a word.
        for flag, settings in by_flag.items():
            for name in (setting.partition('=')[0] for setting in settings):
                if other := next((s for s in named if _is_same(s, name)), None):
                    raise UserError(f'--{flag} and --set {other} are one setting: give one of them')
        return [setting for settings in by_flag.values() for setting in settings]


@dataclass(frozen=True, kw_only=True)
class FinetuneFlags(CommonFlags):
    """The flags of CommonFlags and what fine-tuning has besides.

    Attributes:
      epochs: passes over the training set, in place of --steps.
    """

    epochs: float | None = option(None, bounds=(0, None))

    def settings_of_flags(
        self, config: PretrainConfig | FinetuneConfig, named: Sequence[str]
    ) -> list[str]:
        """Return the settings of all flags. UserError where the run's length is given twice."""
        given = [name for name in ('steps', 'epochs') if getattr(self, name) is not None]
        lengths = [s for s in named if s.partition('=')[0].strip() in ('steps', 'epochs')]
        if len(given) > 1 or (given and lengths):
            other = f'--set {lengths[0]}' if lengths else '--epochs'
            raise UserError(f'--{given[0]} and {other} both say how long: give one of them')
        # Steps win over epochs where a configuration has both.
        of_epochs = ['steps=0', f'epochs={self.epochs}'] if self.epochs is not None else []
        return super().settings_of_flags(config, named) + of_epochs


def _split_steps(steps: int, shares: Sequence[int]) -> list[str]:
    """Return settings for that many steps: in all phases, whose present `shares` they keep."""
    if not shares:
        return [f'steps={steps}']
    if steps < len(shares):
        raise UserError(f'--steps={steps}: there are {len(shares)} phases, of a step at least')
    # Each border is rounded by itself, so that the parts add up to the whole.
    borders = [round(steps * sum(shares[:i]) / sum(shares)) for i in range(len(shares) + 1)]
    parts = [max(1, after - before) for before, after in itertools.pairwise(borders)]
    parts[parts.index(max(parts))] += steps - sum(parts)
    return [f'phases.{i}.steps={part}' for i, part in enumerate(parts)]


def _is_same(change: str, name: str) -> bool:
    """Tell whether the change of --set is one of the setting `name`, or of all that holds it."""
    changed = change.partition('=')[0].strip()
    return changed == name or name.startswith(f'{changed}.')


def apply_settings(config: C, changes: Sequence[str], is_preset: bool = False) -> C:
    """Return the configuration with `changes`; what a preset warms up keeps its share of the steps.

    That is the learning rate's warm-up, and the growth of each phase's batch. What is named in
    `changes` stays as it is.
    """
    if not is_preset or not isinstance(config, PretrainConfig):
        return apply(config, changes)

    def is_named(name: str) -> bool:
        return any(_is_same(change, name) for change in changes)

    # Without warm-ups first: the preset's may be longer than the whole run.
    warmups: list[str] = [] if is_named(_WARMUP) else [_WARMUP]
    for i, phase in enumerate(config.phases):
        if phase.warmup_steps and not is_named(f'phases.{i}.warmup_steps'):
            warmups.append(f'phases.{i}.warmup_steps')
    changed = apply(config, [*(f'{name}=0' for name in warmups), *changes])
    scaled: list[str] = []
    if _WARMUP in warmups:
        share = config.optimizer.warmup_steps / config.total_steps
        scaled.append(f'{_WARMUP}={round(share * changed.total_steps)}')
    for i, phase in enumerate(config.phases):
        growth, warmup = f'phases.{i}.{_GROWTH}', f'phases.{i}.warmup_steps'
        if phase.batch_warmup_steps is not None and not is_named(growth):
            share = phase.batch_warmup_steps / phase.steps
            scaled.append(f'{growth}={max(1, round(share * changed.phases[i].steps))}')
        if phase.warmup_steps and warmup in warmups:
            share = phase.warmup_steps / phase.steps
            scaled.append(f'{warmup}={round(share * changed.phases[i].steps)}')
    return apply(changed, scaled)


def check_growth_ends(config: PretrainConfig) -> None:
    """Raise UserError where the batch of a phase grows to its end, so that it is never whole."""
    for i, phase in enumerate(config.phases):
        if phase.steps <= phase.growth_steps:
            raise UserError(
                f'phases.{i}: its batch grows for {phase.growth_steps} steps, and it has'
                f' {phase.steps}: raise steps, lower batch_warmup_steps='
                f'{phase.batch_warmup_steps}, or let it have batch_size={phase.batch_size} from'
                f' the start: --set phases.{i}.batch_warmup_from=none --set'
                f' phases.{i}.{_GROWTH}=none'
            )


@dataclass(frozen=True)
class TrainedModel:
    """A model by one of two names. UserError where it has both, or none.

    Attributes:
      workdir: folder of a run of bert-pretrain or bert-finetune; its newest checkpoint is taken.
      init_from: in place of --workdir: a Hugging Face BERT or peft directory or name, or a Google
        checkpoint.
    """

    workdir: str | None = None
    init_from: str | None = None

    def __post_init__(self) -> None:
        # Checked where the options are made, so each command says it alike.
        if (self.workdir is None) == (self.init_from is None):
            raise UserError('name either --workdir or --init_from')

    @property
    def where(self) -> str:
        """Return the name that was given."""
        return self.workdir or self.init_from or ''


OnBadRecord = Literal['stop', 'skip']
SKIP_BAD_RECORDS = ('skip_bad_records', 'skip')  # what the flag was called before


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """How the records of --input are read, and which of them.

    See input_pipeline/text/record_files.py.

    Attributes:
      format: of the input; default: by its name. text is a text a line.
      columns: where the columns are called otherwise: "text=sentence,text_b=question", or places
        from 0.
      header: whether the first line of TSV or CSV names the columns.
      on_bad_record: what to do with a record that cannot be read or answered; skip answers it
        with {"error"}, and counts those.
      shard: I/N: take every N-th record from the I-th on.
    """

    format: Literal['', 'text', 'tsv', 'csv', 'jsonl'] = ''
    columns: str = ''
    header: bool = True
    on_bad_record: OnBadRecord = option('stop', switch=SKIP_BAD_RECORDS)
    shard: str = '0/1'

    @property
    def file(self) -> RecordFile:
        """Return these options alone, of a command that has others too."""
        return select_options(self, RecordFile)

    @property
    def skips(self) -> bool:
        """Tell whether bad records are answered by what is wrong with them."""
        return self.on_bad_record == 'skip'


ALL_RECORDS = RecordFile()  # of a file whose name says what it is


@dataclass(frozen=True, kw_only=True)
class WithIntervals:
    """Options of scores that have intervals.

    Attributes:
      bootstrap: draws for the 95 % intervals; 0: no intervals.
      bootstrap_seed: seed of the draws.
      output: a JSON file that gets the scores too.
    """

    bootstrap: int = option(1000, bounds=(0, None))
    bootstrap_seed: int = option(0, within='[0, 4294967295]')
    output: str | None = None

    def check_output(self) -> None:
        """Raise UserError where the file cannot be written."""
        from bert_jax.cli import app

        if self.output:
            app.check_output_file('output', self.output)

    def write_output(self, report: dict[str, Any]) -> None:
        """Write the scores, where a file is named."""
        from etils import epath

        from bert_jax.configs.files.store import write_note

        if self.output:
            write_note(epath.Path(self.output), report, 2)
