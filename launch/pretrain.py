"""Pre-trains BERT on records made by bert-preprocess.

  bert-pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a=b]
  bert-pretrain --config=bert_mini_cpu --data=DIR --workdir=DIR --steps=5000
  bert-pretrain --config=modernbert_base --data=DIR --workdir=DIR --tokens=5e9

A preset takes its vocabulary and row lengths from the records, and its warm-up keeps its share of
the steps. The same command again goes on from the newest checkpoint in the workdir.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bert_jax.cli import app
from bert_jax.cli.common_flags import CommonFlags, apply_settings, check_growth_ends
from bert_jax.configs import load, schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.configs.schema import PretrainConfig
from bert_jax.mesh import before_jax
from bert_jax.runs.functions import Path, Settings, list_paths, list_settings, make_function

if TYPE_CHECKING:
    from bert_jax.mesh.processes import ClusterAddress
    from bert_jax.runs.pretraining.records import Records
    from bert_jax.runs.pretraining.train import PretrainResult


@dataclass(frozen=True)
class Pretrain(CommonFlags):
    """Pre-train on records made by bert-preprocess, as bert-pretrain does.

    The same call goes on from the newest checkpoint in the workdir. In the main thread SIGTERM,
    SIGINT and SIGHUP ask it to save and stop, which the result says.

    Attributes:
      config: a preset's name, a Python file with get_config() (it is run), or a saved config.json;
        in Python also the settings themselves. A preset takes its vocabulary and row lengths from
        the records.
      data: records directory; give it once for each length that the phases need. N=DIR: that of
        phases.N, where several phases have one length.
      workdir: folder of this run: configuration, checkpoints, metrics (required).
      settings: changes one setting, as in --set optimizer.peak_lr=2e-5; in Python all of them, as
        {'optimizer.peak_lr': 2e-5}.
      tokens: train for so many tokens, padding not counted: steps, warm-up, growth of the batch and
        decay of all phases keep their proportions.
      hours: likewise for so many hours of steps, whose rate is measured before the first one, once.
      init_from: start from these weights, at step 0 and with a new optimizer (but see --init_by): a
        workdir, a Hugging Face BERT directory or name, or a Google checkpoint; the shape of the
        model is theirs, all else is --config's.
      init_by: how --init_from is taken; weights: as they are; weights_and_moments: with the moments
        of the optimizer, of a workdir of bert-pretrain with the same optimizer.algorithm; tiling:
        repeated until they have the width and depth of --config, for a larger model; layers: as
        many of its blocks as --config has, evenly spread, for a student.
      print_map: print every name in --init_from and the array here that it holds.
      distributed: one of several processes, which the cluster tells apart (TPU pod, Slurm, MPI,
        Kubernetes).
      coordinator: HOST:PORT of process 0, where no cluster tells; the next port is used too.
      num_processes: how many processes there are, with --coordinator.
      process_id: which of them this is, from 0, with --coordinator.
      arrival_timeout_s: seconds within which all processes must have started.
      heartbeat_s: seconds without a sign after which a process counts as dead.
      dry_run: compile one step of each phase, print its sizes and end; nothing is written.
      profile: trace so many steps of each phase, after its first ten, into WORKDIR/profile.

    Raises:
      UserError: settings, records, source or folder do not fit, in one line.
    """

    after_interrupt: ClassVar[str] = 'the same command goes on from here'

    config: str | PretrainConfig | None = None
    data: Path | Sequence[Path] = ()
    workdir: Path | None = None
    _: KW_ONLY
    settings: Settings = option((), flag='set', settings=PretrainConfig)
    tokens: float | None = option(None, bounds=(0, None))
    hours: float | None = option(None, bounds=(0, None))
    init_from: Path | None = None
    init_by: Literal['weights', 'weights_and_moments', 'tiling', 'layers'] = 'weights'
    print_map: bool = False
    distributed: bool = False
    coordinator: str | None = None
    num_processes: int | None = option(None, bounds=(1, None))
    process_id: int | None = option(None, bounds=(0, None))
    arrival_timeout_s: int = option(300, bounds=(1, None))
    heartbeat_s: int = option(100, bounds=(1, None))
    dry_run: bool = False
    profile: int = option(0, bounds=(0, None))

    def __call__(self) -> PretrainResult:
        """Run every phase that is left."""
        before_jax.set_up(self.deterministic)
        folder = str(self.workdir or '')
        # One process: all is checked without jax. Several meet first, and compare what each was
        # started with, so that a mistake on one host ends all of them and none waits for it.
        cluster = self.find_cluster()
        with contextlib.ExitStack() as stack:
            if cluster is None:
                config, records = self.check()
            else:
                from bert_jax.mesh import processes
                from bert_jax.runs.pretraining import same_run

                # Paths as given: hosts that name another folder would part their checkpoints.
                names = ('workdir', 'init_from', 'init_by', 'dry_run')
                same = {f'--{name}': getattr(self, name) for name in names}
                config, records = stack.enter_context(
                    processes.join_run(
                        cluster, self.check, lambda made: same_run.describe_process(*made, same)
                    )
                )

            config = self.spend(config, records)
            from bert_jax.runs.pretraining import train

            if self.dry_run:
                train.print_sizes(config, records)
                return train.PretrainResult(folder, 0)
            return train.pretrain(
                config,
                records,
                folder,
                init_from=None if self.init_from is None else str(self.init_from),
                init_by=self.init_by,
                print_map=self.print_map,
                profile_steps=self.profile,
            )

    def check(self) -> tuple[PretrainConfig, list[Records]]:
        """Read what this process was asked for, and check it without jax."""
        from bert_jax.runs.pretraining.records import match_phases

        if self.init_by != 'weights' and not self.init_from:
            raise UserError(f'--init_by={self.init_by} needs --init_from')
        config = self.configure()
        begins_fresh = not (self.init_from or self.dry_run)
        if config.tuning.method != 'full' and begins_fresh:
            raise UserError(
                f'tuning.method={config.tuning.method} leaves most weights as they are, and fresh'
                ' ones are worth nothing: name trained ones with --init_from'
            )
        untrained = config.model.words.untrained(config.model)
        if untrained and begins_fresh:
            raise UserError(untrained)
        if not self.workdir and not self.dry_run:
            raise UserError('--workdir is required: a folder for this run')
        return config, match_phases(config, list_paths(self.data))

    def configure(self) -> PretrainConfig:
        """Return the settings of the run: of its configuration, what other options change in it.

        With `init_from` the model is the one there; a preset takes vocabulary and lengths of the
        records.

        Raises:
          UserError: they contradict each other, or the batch of a new run grows to its end.
        """
        from bert_jax.runs.pretraining import budget
        from bert_jax.runs.pretraining.records import (
            list_directories,
            list_record_settings,
            read_begun_settings,
        )

        config, is_preset = load.load_config(self.config, PretrainConfig)
        data, named = list_directories(list_paths(self.data)), list_settings(self.settings)
        workdir = None if self.workdir is None else str(self.workdir)
        changes: list[str] = []
        if is_preset:
            changes += list_record_settings(config, data, bool(self.init_from))
        label = budget.make_label(self.tokens, self.hours)
        begun = read_begun_settings(workdir, config.phases if is_preset else ())
        if label:
            budget.refuse_steps(label, self.steps, self._list_named())
            # Of a run that has begun they come with its steps.
            begun = [each for each in begun if 'warmup_steps=' not in each]
        changes += begun
        if self.init_from:
            from bert_jax.runs.sources.fitting import list_shape_settings

            changes += list_shape_settings(str(self.init_from), data, workdir, self.init_by)
        changes += self.settings_of_flags(config, named)
        made = apply_settings(config, [*changes, *named], is_preset)
        if not begun:
            check_growth_ends(made)
        return dataclasses.replace(made, budget=label) if label else made

    def spend(self, config: PretrainConfig, records: list[Records]) -> PretrainConfig:
        """Return the settings with the steps that a budget buys, those of a run that has begun.

        Tokens are counted; the rate of hours is measured.
        """
        if self.tokens is None and self.hours is None:
            return config
        from bert_jax.runs.pretraining import budget

        named = self._list_named()
        begun = budget.take_begun(config, self.workdir, named)
        if begun is not None:
            return begun
        if self.hours is not None:
            seconds = budget.time_steps(config, records)
            return budget.fit_hours(config, self.hours, seconds, named)
        assert self.tokens is not None, 'one of both'
        return budget.fit_tokens(config, self.tokens, records, named)

    def _list_named(self) -> list[str]:
        """Return the names of the settings that were given by --set."""
        return [each.partition('=')[0].strip() for each in list_settings(self.settings)]

    def settle(self) -> PretrainConfig:
        """Return the settings of the run with its steps, for a command that does not begin it."""
        config = self.configure()
        records: list[Records] = []
        if self.hours is not None:
            before_jax.set_up(self.deterministic)
        if self.hours is not None or (self.tokens is not None and self.data):
            from bert_jax.runs.pretraining.records import match_phases

            records = match_phases(config, list_paths(self.data))
        return self.spend(config, records)

    def find_cluster(self) -> ClusterAddress | None:
        """Return how the processes of the run find each other; None where it is alone."""
        if not self.coordinator:
            for name in ('num_processes', 'process_id'):
                if getattr(self, name) is not None:
                    raise UserError(
                        f'--{name} needs --coordinator=HOST:PORT; with --distributed the cluster'
                        ' tells it'
                    )
            if not self.distributed:
                return None
        from bert_jax.mesh.processes import ClusterAddress

        return ClusterAddress(
            self.coordinator,
            self.num_processes,
            self.process_id,
            self.arrival_timeout_s,
            self.heartbeat_s,
        )


@dataclass(frozen=True)
class PrintConfig(Pretrain):
    """Print the settings of a run that does not begin.

    Attributes:
      print_config: print every setting as it would be run, as JSON that --config reads, and end;
        needs only --config.
    """

    _: KW_ONLY
    print_config: bool

    def __call__(self) -> None:  # type: ignore[override]
        """Print them."""
        print(schema.dumps(self.settle()), end='')


@dataclass(frozen=True)
class PrintSchedule(Pretrain):
    """Print the phases and the learning rate of a run that does not begin.

    Attributes:
      print_schedule: print the phases, and the learning rate of chosen steps, and end; needs only
        --config.
    """

    _: KW_ONLY
    print_schedule: bool

    def __call__(self) -> None:  # type: ignore[override]
        """Print it."""
        from bert_jax.train.learning_rate import format_schedule

        config = self.settle()
        print(format_schedule(config))


pretrain = make_function(Pretrain)

if __name__ == '__main__':
    app.run(Pretrain, PrintConfig, PrintSchedule)
