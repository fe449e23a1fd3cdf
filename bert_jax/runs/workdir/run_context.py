"""What surrounds the steps of a run: its folder, devices, checkpoints, metrics and signals.

Owns which of a run's settings act on its folder (keep_checkpoints, keep_every, on_full_disk,
max_bad_steps), for every command that trains, and for a training of your own
(docs/extending.md). It must not know what is trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import jax
from absl import logging

from bert_jax.configs.schema import FinetuneConfig, Phase, PretrainConfig, RuntimeConfig
from bert_jax.input_pipeline.progress import Bar
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh import before_jax, processes, program_cache, sharding
from bert_jax.model.blocks import matmul
from bert_jax.runs.supervision.handlers import handlers_restored
from bert_jax.runs.supervision.signals import Agreement, StopSignal
from bert_jax.runs.supervision.watchdog import watchdog
from bert_jax.runs.workdir import metrics, notes, plots, trackers, word_vectors
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import Checkpoints, Score
from bert_jax.train.learning_rate import hparams_of
from bert_jax.train.loop import LogEntry, Writer
from bert_jax.train.metrics_accumulator import MetricsAccumulator, Profile
from bert_jax.train.state import TrainState

MakeWriters = Callable[[int], Sequence[Writer]]
C = TypeVar('C', bound=PretrainConfig | FinetuneConfig)


class RunContext(Generic[C]):
    """The surroundings of a run, from the lock of its folder to the last line of its metrics.

        with RunContext(workdir, config, mesh) as context:
            context.claim(tokenizer, reads)
            context.begin(fresh)
            train_steps(context, train_step, batches)

    Inside it other processes are kept out of the folder. From `begin` on the mesh is set, and
    SIGTERM, SIGINT and SIGHUP ask the loop to save and stop. At the end, however it comes, a save
    under way is on the disk, the metrics are closed and drawn. Of several processes
    (jax.distributed.initialize comes before) each makes the same calls.

    Attributes:
      folder: the workdir.
      config: the settings; `claim` puts in what the folder's run has chosen.
      runtime: those that change no result.
      mesh: the devices.
      total_steps: steps of the whole run.
      hparams: the traced scalars of its steps.
      state: what the run has come to; there after `begin`, and so is all that follows.
      is_resumed: whether it goes on from a checkpoint.
      writer: where lines of metrics go.
      metrics: the sums of the steps since the last line.
    """

    state: TrainState
    writer: Writer
    metrics: MetricsAccumulator

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        config: C,
        mesh: jax.sharding.Mesh,
        *,
        steps: int | None = None,
        signal: StopSignal | None = None,
        writers: MakeWriters = lambda step: (),
        profile_steps: int = 0,
    ):
        """Name the surroundings; nothing is opened yet.

        Args:
          workdir: folder of the run, which all processes share.
          config: the settings, which a resumed run must have alike but for those that the schema
            lets change.
          mesh: the devices of the run.
          steps: of the whole run; None: those of the phases.
          signal: that of a process which makes several runs, and holds their folder itself.
          writers: makes more writers of metrics, given the step that the run goes on from (0: the
            first); called in the first process alone, and closed at the end.
          profile_steps: how many steps of each call of `train_steps` are traced; 0 for no trace.
        """
        if steps is None:
            assert isinstance(config, PretrainConfig), 'fine-tuning counts its steps'
            steps = config.total_steps
        self.folder, self.config, self.mesh = Workdir(workdir), config, mesh
        self.total_steps = steps
        self.is_resumed = False
        self._signal, self._make_writers = signal, writers
        self._profile_steps = profile_steps
        self._writes = processes.is_lead_process()
        self._beat: Callable[[], None] | None = None
        warmup = None
        if isinstance(config, FinetuneConfig):
            warmup = int(steps * config.warmup_fraction)
        self.hparams = hparams_of(config.optimizer, config.seed, steps, warmup)

    @property
    def runtime(self) -> RuntimeConfig:
        """Return the settings that change no result."""
        return self.config.runtime

    def __enter__(self) -> Self:
        """Keep other processes out of the folder; one process holds the lock for all.

        Raises:
          UserError: the folder is in use, or a batch does not divide.
        """
        config = self.config
        if isinstance(config, PretrainConfig):
            check_batches(config.phases, config.runtime.accumulation, self.mesh)
        program_cache.use(config.runtime.compilation_cache)
        with contextlib.ExitStack() as stack:
            if self._signal is None and self._writes:
                stack.enter_context(self.folder.lock())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close what was opened, the last first."""
        return self._stack.__exit__(kind, error, traceback)

    def claim(self, tokenizer: Tokenizer, reads: Mapping[str, Any]) -> bool:
        """Make the folder this run's, or find that it is; the first process does it for all.

        What --init_from takes from the folder afterwards is the encoder of shape config.model under
        params['encoder'], where there is one, and the tokenizer.

        Args:
          tokenizer: kept in the folder.
          reads: what the run is besides its settings (its objective, its records), JSON values that
            a resumed run must have alike.

        Returns:
          Whether the folder held this run before.

        Raises:
          UserError: another run is there.
        """
        folder, identity, config = self.folder, dict(reads), self.config
        if isinstance(config, PretrainConfig):
            # Of fine-tuning the settings are complete before: models are made of them.
            identity |= word_vectors.identity(config.model, tokenizer)
            self.config = choose_products(folder, folder.as_begun(self.config))
        was_there = processes.broadcast_from_lead(
            lambda: folder.create_or_resume(self.config, identity)
        )
        if self._writes:
            tokenizer.save(folder.tokenizer_folder)
        return was_there

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """Return where states go; not to be asked for before the folder is this run's."""
        runtime = self.runtime
        return Checkpoints(self.folder, runtime.keep_checkpoints, runtime.keep_every)

    def watch(self) -> None:
        """End the process, from here on, when no step is done for runtime.stall_minutes."""
        if self._beat is None:
            self._beat = self._stack.enter_context(watchdog(self.runtime.stall_minutes))

    def begin(self, fresh: TrainState) -> None:
        """Go on from the newest checkpoint, or from `fresh`, which lies as the state shall lie.

        Raises:
          NoRoom: the disk cannot hold the checkpoints that will be made.
        """
        self.state, meter = fresh, None
        restored = self.checkpoints.restore(fresh)
        if restored is not None:
            self.state, meta = restored
            self.is_resumed = True
            meter = meta.get('meter')  # checkpoints of older versions have none
            step = int(self.state.step)
            logging.info(f'{self.folder}: resumed at step {step} of {self.total_steps}')
        if self._signal is None:
            self._stack.enter_context(handlers_restored())
            self._signal = StopSignal()
        self._agreement = Agreement(self._signal, self.mesh)
        self._stack.enter_context(jax.set_mesh(self.mesh))
        self.watch()

        # Before anything is opened: a run that cannot be saved should not begin.
        required = self.runtime.on_full_disk == 'stop'
        self.checkpoints.check_room(self.state, self._count_saves(), required)
        self.metrics = MetricsAccumulator(self.runtime.max_bad_steps, meter)
        self._open_writer(meter, required)
        self._stack.callback(self._close_writer)
        self._bar = self._stack.enter_context(Bar(self._writes))
        # Closed first: a save under way ends before the metrics that tell of it are closed.
        self._stack.enter_context(self.checkpoints)

    def _count_saves(self) -> int:
        """Return an upper bound of the checkpoints that will be written from here on."""
        left = self.total_steps - int(self.state.step)
        if not left:
            return 0
        saves = left // self.runtime.checkpoint_every
        if isinstance(self.config, FinetuneConfig):
            return saves + 1
        # One for each evaluation that is the best so far, and one at a phase's end; several may
        # fall on the same step.
        return saves + left // self.runtime.eval_every + len(self.config.phases)

    def _open_writer(self, meter: Mapping[str, Any] | None, required: bool) -> None:
        """Open the metrics; `meter`: the sums of the steps since the last line of them."""
        # All processes compute the same metrics;
        # one writes them, or lines would come several times.
        self.writer, step = metrics.Writers([]), int(self.state.step)
        if not self._writes:
            return
        if step < self.total_steps:  # else there is nothing left that it could make
            notes.note_start(self.folder, step)
        if meter:
            metrics.say_missing(self.folder.metrics_file, step - meter['steps'])
        more = [
            *trackers.writers_of(self.runtime.track, self.folder.name),
            *self._make_writers(step),
        ]
        self.writer = metrics.MetricWriter(self.folder, step, required, more)

    def _close_writer(self) -> None:
        """Close the metrics and draw them."""
        # Also after an error or a signal: a run that ended early is the one whose curves are
        # wanted.
        self.writer.close()
        if self._writes:
            plots.plot_workdir(self.folder)

    def stop_requested(self) -> int | None:
        """Return the number of the signal that asks to save and stop, or None.

        To be called once before each step: of several processes all get the same answer then.
        """
        return self._agreement()

    def heartbeat(self) -> None:
        """Tell the watchdog that something was done."""
        assert self._beat is not None, '`watch` or `begin` comes before'
        self._beat()

    def show(self, line: LogEntry) -> None:
        """Show the newest metrics in a bar, where there is a terminal."""
        if self._bar.due():
            self._bar.show(metrics.status(line))

    def trace(self, last: int) -> Profile:
        """Return the trace of the steps from here to `last`, of as many as were asked for."""
        folder = f'{self.folder}/profile'
        return Profile(folder, self._profile_steps, int(self.state.step), last)

    def save(self, score: Score | None = None, required: bool = False) -> None:
        """Save the state and the sums since the last line.

        Args:
          score: of the state, higher is better; the best is kept.
          required: whether a full disk ends the run whatever runtime.on_full_disk says.
        """
        required = required or self.runtime.on_full_disk == 'stop'
        meta = {'kind': self.kind, 'meter': self.metrics.state()}
        self.checkpoints.save(self.state, meta, score, required)

    @property
    def kind(self) -> str:
        """Return what its checkpoints say that they are of."""
        if isinstance(self.config, FinetuneConfig):
            return 'finetune'
        return 'pretrain'


def check_batches(phases: Sequence[Phase], accumulation: int, mesh: jax.sharding.Mesh) -> None:
    """Raise UserError where the batch of a phase does not divide among the devices."""
    for number, phase in enumerate(phases):
        setting = f'phases.{number}.batch_size'
        sharding.check_divides(mesh, phase.batch_size, accumulation, setting)


def choose_products(folder: Workdir, config: C) -> C:
    """Return `config` with runtime.matmul_dtype=auto replaced by what it is in the folder's run.

    A run that has a checkpoint keeps what it began with, on another processor too. For a new one
    the first process chooses.
    """
    if config.runtime.matmul_dtype != 'auto':
        return config
    if folder.config_file.exists() and folder.newest_step():
        chosen = folder.config().runtime.matmul_dtype
    else:
        chosen = matmul.choose_matmul_dtype(
            config.runtime,
            is_fast=lambda: processes.broadcast_from_lead(before_jax.multiplies_bfloat16),
        )
        logging.info(f'{folder}: runtime.matmul_dtype=auto is {chosen or "none"} here')
    return dataclasses.replace(
        config, runtime=dataclasses.replace(config.runtime, matmul_dtype=chosen)
    )


@contextlib.contextmanager
def own_run(
    workdir: str,
    config: PretrainConfig,
    fresh: TrainState,
    mesh: jax.sharding.Mesh,
    tokenizer: Tokenizer,
    reads: Mapping[str, Any],
    *,
    writers: MakeWriters = lambda step: (),
    profile_steps: int = 0,
) -> Iterator[tuple[RunContext[PretrainConfig], TrainState]]:
    """Open a `RunContext`; yield what loop.train takes, and the state to go on from.

    It is for programs for version 0.2.0, and goes with the next version. The arguments are those
    of RunContext, of its `claim` and its `begin`.
    """
    with RunContext(workdir, config, mesh, writers=writers, profile_steps=profile_steps) as context:
        context.claim(tokenizer, reads)
        context.begin(fresh)
        yield context, context.state


def say_stopped(signal_number: int, standing: str) -> None:
    """Log what a run that a signal stopped goes on from.

    Args:
      signal_number: the signal.
      standing: what of the run is on the disk, in words (checkpoint.describe_standing).
    """
    logging.info(f'signal {signal_number}: {standing}; the same command goes on from there')
