"""The folder of a run, its workdir: a workdir alone is enough to fine-tune, evaluate or export.

Owns the names of what lies in it, whether a resumed run is the same run, and the lines for a folder
that is no workdir. Must not know what a run does. What writes the files says how they are made:

  config.json, data.json     which run it is: its settings, and what it reads
  task/NAME.json             its task, where that was found in a table
  tokenizer/                 a copy of its tokenizer
  checkpoints/STEP/          bert_jax/train/checkpoint.py; best/ has those of the best score
  metrics.jsonl, plots/      bert_jax/runs/workdir: metrics.py, plots.py
  starts.json, guessing.json  notes.py there: commands and machines, what guessing scores
  eval/SPLIT.json            results; predictions/SPLIT/ has the answers
  chosen.json                options of the task that were chosen on the scored split
  noise/SPLIT-KINDS.json     scores with typos, and their picture (bert_jax/runs/noise.py)
  features/, profile/        what is slow to make, and what was asked for

A sweep's folder is none: it has workdirs in runs/ and their table in sweep.json, as
bert_jax/runs/finetuning/sweep.py lays them out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any, TypeVar

from absl import logging
from etils import epath

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.files.lock import lock_folder
from bert_jax.configs.files.store import write_note
from bert_jax.configs.schema import Config, ModelConfig, PretrainConfig
from bert_jax.runs.workdir import metrics
from bert_jax.runs.workdir.changes import Change, changes, with_older_defaults

if TYPE_CHECKING:
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

AnyConfig = TypeVar('AnyConfig', bound=Config)
# The end of every line about a file that is damaged or gone.
MEND = 'put it back from a copy, or use another workdir'


class Workdir(os.PathLike[str]):
    """A run's folder, there or not yet; usable as its path.

    Attributes:
      name: the folder, local or gs://, as messages shall say it.
      path: the folder.
      config_file: the run's configuration; where there is none, there is no run.
      data_file: what the run reads.
      tokenizer_folder: a copy of the run's tokenizer.
      best: the folder of the best weights by dev score.
      metrics_file: a JSON object for each log line.
      plots: pictures of the metrics.
      features: what is made of a task's examples and is slow to make.
      noise: scores on splits with typos.
      chosen_file: the options of the task that were chosen on the scored split.
    """

    def __init__(self, name: str | os.PathLike[str]):
        self.name = os.fspath(name)
        with reading(self):  # of an address whose kind nobody knows
            self.path = epath.Path(self.name)
        self.config_file = self.path / 'config.json'
        self.data_file = self.path / 'data.json'
        self.tokenizer_folder = self.path / 'tokenizer'
        self.best = self.path / 'best'
        self.metrics_file = self.path / metrics.FILE
        self.plots = self.path / 'plots'
        self.features = self.path / 'features'
        self.noise = self.path / 'noise'
        self.chosen_file = self.path / 'chosen.json'

    def __fspath__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    def task_file(self, name: str) -> epath.Path:
        """Return the task file of a task that was found in a table."""
        return self.path / 'task' / f'{name}.json'

    def result(self, split: str) -> epath.Path:
        """Return the file of the scores on a split; that of the selection split ends a run."""
        return self.path / 'eval' / f'{split}.json'

    def predictions(self, split: str) -> epath.Path:
        """Return the folder of the predictions on a split, in the task's official format."""
        return self.path / 'predictions' / split

    def chosen(self) -> dict[str, Any]:
        """Return those options; {} where there are none. UserError where they are damaged."""
        return read_object(self.chosen_file, MEND) if self.chosen_file.exists() else {}

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep a second process out of the folder, which is made where there is none.

        Raises:
          UserError: another process is in it, or it cannot be written in.
        """
        if '://' in self.name:
            self._reach()
        return lock_folder(self.name, '--workdir', _is_result)

    def _reach(self) -> None:
        """Raise UserError where a folder that is no local one cannot be asked for."""
        try:
            self.path.exists()
        except Exception as error:  # each store has errors of its own
            why = (str(error).strip().splitlines() or [''])[0][:200]
            raise UserError(
                f'--workdir={self} cannot be reached ({why}): a local folder, or gs:// with a'
                ' network'
            ) from error

    def newest_step(self) -> int:
        """Return steps that the newest checkpoint has behind it, 0 without one."""
        from bert_jax.train.checkpoint import list_saved_steps

        return max(list_saved_steps(self), default=0)

    def checkpoint_bytes(self) -> int:
        """Return what the newest checkpoint takes on the disk, 0 without one."""
        newest = self.path / 'checkpoints' / str(self.newest_step())
        return _bytes(newest) if newest.exists() else 0

    def tokenizer(self) -> Tokenizer:
        """Return the run's tokenizer. UserError where it cannot be read."""
        from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

        return Tokenizer.load(self.tokenizer_folder)

    def check(
        self,
        expected: str = 'a workdir of bert-pretrain or bert-finetune',
        flag: str | None = None,
    ) -> None:
        """Raise UserError where this is no workdir, naming the `flag` that it was given by.

        It says what was `expected`; of a sweep's folder it names a run, the best where all are
        done.
        """
        given = f'--{flag}=' if flag else ''
        # Everything that touches the disk in here: an unreachable bucket becomes one line.
        with reading(self):
            if self.config_file.exists():
                return
            runs = self.swept()
            report = self.path / 'sweep.json'
            swept = runs and report.exists()
            is_file, is_there = self.path.is_file(), self.path.exists()

        # A sweep's folder is the likely mix-up: the command that trained was pointed at it.
        if not runs:
            why = 'it is a file' if is_file else 'no config.json in it'
            why = why if is_there else 'no such folder'
            raise UserError(f'{given}{self}: {why}; expected {expected}')
        described, run = _number_of(runs), runs[0]
        if swept:
            run = read_object(report)['best']
            described += f', of which {run} is best'
        raise UserError(
            f'{given}{self} holds a sweep of {described}: name one of them, as in'
            f' {given}{self.path / "runs" / run}'
        )

    def check_takes_sweep(self) -> None:
        """Raise UserError where this is the folder of a single run, which takes no sweep."""
        if self.config_file.exists() and not self.swept():
            raise UserError(
                f'--workdir={self} holds a single run, and a sweep has a folder of its own: use'
                ' another folder'
            )

    def config(self) -> Config:
        """Return the run's configuration. UserError where this is no workdir, or it is damaged."""
        self.check()
        return schema.from_saved(read_object(self.config_file, MEND), str(self.config_file))

    def data(self, **kinds: type) -> dict[str, Any]:
        """Return what the run reads. UserError where it is damaged.

        `kinds` are the entries that must be there, and their types.
        """
        # Only what the caller uses is checked, so older files with other entries still load.
        entries = read_object(self.data_file, MEND)
        for name, kind in kinds.items():
            if not isinstance(entries.get(name), kind):
                raise UserError(
                    f'{self.data_file}: damaged, its {name!r} is missing or of another type: {MEND}'
                )
        return entries

    def model_config(self, step: int | None = None) -> ModelConfig:
        """Return the shape of the run's model.

        Args:
          step: of the weights, whose phase may have rotary bases of its own; None: as the settings
            of all phases have them.

        Raises:
          UserError: it cannot be read.
        """
        config = self.config()
        if isinstance(config, PretrainConfig):
            if step is None:
                return config.encoder
            return config.choose_model(config.find_phase(step)).tuned(config.tuning)

        # A fine-tuning configuration holds no shape: that is the encoder's it began with.
        source = self.data(model=dict)['model']
        return config.encoder(ModelConfig.from_json(source, str(self.data_file)))

    def as_begun(self, config: AnyConfig) -> AnyConfig:
        """Return `config` with the older defaults of the run that is here, if there is any."""
        if not self.config_file.exists():
            return config
        begun, sections = self.config(), {}
        for name in ('runtime', 'embedding'):
            if hasattr(begun, name) and hasattr(config, name):
                before, after = getattr(begun, name), getattr(config, name)
                sections[name] = with_older_defaults(before, after)
        return dataclasses.replace(config, **sections)

    def create_or_resume(self, config: Config, data: dict[str, Any]) -> bool:
        """Write config.json and data.json, or check that an old workdir holds the same run.

        `data` identifies what the run reads (JSON values). Returns whether the workdir held this
        run before. UserError where a setting that decides the result differs; changes of runtime
        settings are logged. A run that ended before its first checkpoint left nothing to go on
        from, so another may take its folder.
        """
        # Checkpoints without a configuration: to go on would be to guess whose they are.
        done, is_claimed = self.newest_step(), self.config_file.exists()
        if not is_claimed and (runs := self.swept()):
            raise UserError(
                f'--workdir={self} holds a sweep of {_number_of(runs)}: go on with it by the same'
                ' command (--sweep=...), or use another folder'
            )
        if not is_claimed and done:
            raise UserError(
                f'--workdir={self} holds a checkpoint of step {done} and no config.json, so nothing'
                ' says of which run: put it back from a copy, or use another folder'
            )
        # The kind of run first: what it reads is another's where the kind is.
        if is_claimed:
            before = self.config()
            begun = done > 0 or (self.path / 'eval').exists()
            if begun and type(before) is not type(config):
                raise UserError(
                    f'--workdir={self} holds a run of another kind ({type(before).__name__}): use'
                    ' another folder'
                )

            # A run with its first checkpoint, or a result, is begun and is not replaced by another.
            config = self.as_begun(config)
            try:
                reads = self.data()
            except UserError as error:
                # Its checkpoints may be whole, and what the run reads is named again.
                if not isinstance(error.__cause__, ValueError | FileNotFoundError):
                    raise
                logging.warning(
                    f'{self.data_file}: damaged or gone: made again of what this command reads'
                )
                reads = data
            changed = changes((before, reads), (config, data), done)
            is_claimed = self._takes(changed, begun)
        # The configuration last: with it the folder is this run's.
        write_note(self.data_file, data, 2)
        atomic_write(self.config_file, schema.dumps(config))
        return is_claimed

    def swept(self) -> list[str]:
        """Return the names of the runs, where this is a sweep's folder."""
        return sorted(file.parent.name for file in self.path.glob('runs/*/config.json'))

    def _takes(self, changed: list[Change], begun: bool) -> bool:
        """Tell whether the run that is there goes on; False where it gives way to another."""
        # Nothing that decides the result differs: it is the same run, which may run otherwise.
        refused = [change for change in changed if change.refused]
        if not refused:
            for change in changed:
                logging.info(
                    f'resuming with {change.name} = {change.after!r} (was {change.before!r})'
                )
            return True

        # There is work to lose: the user decides.
        if begun:
            differences = ', '.join(f'{c.name}: {c.before!r} -> {c.after!r}' for c in refused)
            raise UserError(
                f'--workdir={self} holds another run ({differences}): use another folder, or the'
                ' same settings to resume'
            )

        # There is none: a mistyped setting should not cost a new folder's name.
        logging.info(
            f'{self}: a run with other settings ({", ".join(change.name for change in refused)})'
            ' ended there before its first checkpoint; this one takes its place'
        )
        if self.tokenizer_folder.exists():  # it belongs to what that run reads
            self.tokenizer_folder.rmtree()
        return False


def _is_result(path: pathlib.Path) -> bool:
    """Tell whether `path` is more than what a run writes before its first log line."""
    # Written by every run as it starts; event files have a header before their first number.
    claim = ('config.json', 'data.json', 'starts.json', 'guessing.json')
    return (
        path.is_file()
        and path.name not in claim
        and path.parent.name != 'tokenizer'
        and not path.name.startswith('events.out.tfevents')
        and path.stat().st_size > 0
    )


def _bytes(path: epath.Path) -> int:
    """Of a file, or of all files of a folder; in an object store too, where `rglob` is not.

    What a run that is going on has removed meanwhile is nothing.
    """
    try:
        return sum(map(_bytes, path.iterdir())) if path.is_dir() else path.stat().length
    except FileNotFoundError:
        return 0


def _number_of(runs: list[str]) -> str:
    """Return '1 run', '2 runs'."""
    return f'{len(runs)} run{"s" if len(runs) > 1 else ""}'
