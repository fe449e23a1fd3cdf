"""A workdir while its run goes on: claimed, opened before the first step, closed however it ends.

Owns which of a run's settings act on its folder (keep_checkpoints, keep_every, on_full_disk,
max_bad_steps), for every command that trains, and for a training of your own
(docs/extending.md). It must not know what is trained.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from absl import logging

from bert_jax.configs.schema import FinetuneConfig, PretrainConfig, RuntimeConfig
from bert_jax.input_pipeline.progress import Bar
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh import processes, processor, program_cache, sharding
from bert_jax.model.blocks import products
from bert_jax.runs.supervision.handlers import handlers_restored
from bert_jax.runs.supervision.signals import Agreement, StopSignal
from bert_jax.runs.supervision.watchdog import watchdog
from bert_jax.runs.workdir import metrics, notes, plots, trackers, word_vectors
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import loop
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.metrics_accumulator import MetricsAccumulator
from bert_jax.train.state import TrainState

# What a checkpoint keeps with the state: the sums of the steps since the last line.
MeterState = Mapping[str, Any]
MakeWriters = Callable[[int], Sequence[loop.Writer]]
C = TypeVar('C', bound=PretrainConfig | FinetuneConfig)


@contextlib.contextmanager
def locked(workdir: str) -> Iterator[Workdir]:
    """Yield the workdir, which other runs are kept out of; one process holds the lock for all."""
    folder = Workdir(workdir)
    with folder.lock() if processes.is_lead_process() else contextlib.nullcontext():
        yield folder


def with_products(folder: Workdir, config: C) -> C:
    """Return `config` with runtime.matmul_dtype=auto replaced by what it is in the folder's run.

    A run that has a checkpoint keeps what it began with, on another processor too. For a new one
    the first process chooses.
    """
    if config.runtime.matmul_dtype != 'auto':
        return config
    if folder.config_file.exists() and folder.newest_step():
        chosen = folder.config().runtime.matmul_dtype
    else:
        chosen = products.choose(
            config.runtime,
            is_fast=lambda: processes.broadcast_from_lead(processor.multiplies_bfloat16),
        )
        logging.info(f'{folder}: runtime.matmul_dtype=auto is {chosen or "none"} here')
    return dataclasses.replace(
        config, runtime=dataclasses.replace(config.runtime, matmul_dtype=chosen)
    )


def claim(
    folder: Workdir, config: PretrainConfig, tokenizer: Tokenizer, reads: Mapping[str, Any]
) -> PretrainConfig:
    """Make the folder this run's, or find that it is; the first process does it for all.

    Returns `config` with the choices that the folder's run has made (`with_products`), and with its
    older defaults (`Workdir.as_begun`).

    Args:
      folder: held by `locked`.
      config: the settings of the run.
      tokenizer: kept in the folder.
      reads: what the run reads, JSON values that a resumed run must have alike.

    Raises:
      UserError: another run is there.
    """
    config = with_products(folder, folder.as_begun(config))
    identity = {**reads, **word_vectors.identity(config.model, tokenizer)}
    processes.broadcast_from_lead(lambda: folder.create_or_resume(config, identity))
    if processes.is_lead_process():
        tokenizer.save(folder.tokenizer_folder)
    return config


def checkpoints_of(workdir: str, runtime: RuntimeConfig) -> Checkpoints:
    """Return the checkpoints of a run with such settings."""
    return Checkpoints(workdir, runtime.keep_checkpoints, runtime.keep_every)


def resumed(
    workdir: str, checkpoints: Checkpoints, fresh: TrainState, total_steps: int
) -> tuple[TrainState, MeterState | None] | None:
    """Return the newest state in the workdir, placed as `fresh` is, and what the meter had then.

    None where there is no checkpoint.
    """
    restored = checkpoints.restore(fresh)
    if restored is None:
        return None
    state, meta = restored
    logging.info(f'{workdir}: resumed at step {int(state.step)} of {total_steps}')
    return state, meta.get('meter')  # checkpoints of older versions have none


def saves_left(config: PretrainConfig, step: int) -> int:
    """Return an upper bound of the checkpoints that will be written after `step`."""
    # One a checkpoint_every, one for each evaluation that is the best so far, one at a phase's end;
    # an upper bound, since several may fall on the same step.
    steps_left, runtime = config.total_steps - step, config.runtime
    if not steps_left:
        return 0
    regular = steps_left // runtime.checkpoint_every
    return regular + steps_left // runtime.eval_every + len(config.phases)


@contextlib.contextmanager
def opened(
    workdir: str,
    checkpoints: Checkpoints,
    state: TrainState,
    runtime: RuntimeConfig,
    *,
    kind: str,
    total_steps: int,
    saves: int,
    meter_state: MeterState | None,
    should_stop: Callable[[], int | None],
    heartbeat: Callable[[], None],
    profile_steps: int,
    writers: MakeWriters = lambda step: (),
) -> Iterator[loop.Run]:
    """Yield what surrounds the steps of a run that goes on from `state`, or begins with it.

    At the end, however it comes, a save under way is on the disk, the metrics are closed and drawn.

    `kind` is what a checkpoint says it is of, 'pretrain' or 'finetune'; `saves` an upper bound of
    those that will be made; `writers` makes more writers, given the step that the run goes on from.
    All else is as loop.Run has it.

    Raises:
      NoRoom: the disk cannot hold the saves.
    """
    # Before anything is opened: a run that cannot be saved should not begin.
    required = runtime.on_full_disk == 'stop'
    checkpoints.check_room(state, saves, required)

    # All processes compute the same metrics; one writes them, or lines would come several times.
    writes, step = processes.is_lead_process(), int(state.step)
    if writes and step < total_steps:  # else there is nothing left that it could make
        notes.note_start(Workdir(workdir), step)
    writer = metrics.Writers([])
    if writes:
        if meter_state:  # it has the steps since the last line
            metrics_file = Workdir(workdir).metrics_file
            metrics.say_missing(metrics_file, step - meter_state['steps'])
        tracked = trackers.writers_of(runtime.track, workdir)
        writer = metrics.MetricWriter(workdir, step, required, [*tracked, *writers(step)])

    def show(line: loop.LogEntry) -> None:
        if bar.due():
            bar.show(metrics.status(line))

    # Checkpoints close first: a save under way ends before the metrics that tell of it are closed.
    try:
        with Bar(writes) as bar, checkpoints:
            accumulator = MetricsAccumulator(runtime.max_bad_steps, meter_state)
            yield loop.Run(
                runtime, total_steps, writer, checkpoints, {'kind': kind}, accumulator,
                should_stop, heartbeat, f'{workdir}/profile', profile_steps, show,
            )  # fmt: skip
    # Also after an error or a signal: a run that ended early is the one whose curves are wanted.
    finally:
        writer.close()
        if writes:
            plots.plot_workdir(workdir)


@contextlib.contextmanager
def opened_for_phases(
    workdir: str,
    fresh: TrainState,
    config: PretrainConfig,
    mesh: jax.sharding.Mesh,
    profile_steps: int = 0,
    writers: MakeWriters = lambda step: (),
) -> Iterator[tuple[loop.Run, TrainState]]:
    """Yield the run of all phases of `config` on `mesh`, and the state that it goes on from.

    That is the newest in the workdir, or `fresh`. The run is watched for stalls; all else is as
    `opened` has it.
    """
    checkpoints = checkpoints_of(workdir, config.runtime)
    restored = resumed(workdir, checkpoints, fresh, config.total_steps)
    state, meter_state = restored or (fresh, None)
    with (
        jax.set_mesh(mesh),
        watchdog(config.runtime.stall_minutes) as heartbeat,
        opened(
            workdir,
            checkpoints,
            state,
            config.runtime,
            kind='pretrain',
            total_steps=config.total_steps,
            saves=saves_left(config, int(state.step)),
            meter_state=meter_state,
            should_stop=Agreement(StopSignal(), mesh),
            heartbeat=heartbeat,
            profile_steps=profile_steps,
            writers=writers,
        ) as run,
    ):
        yield run, state


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
) -> Iterator[tuple[loop.Run, TrainState]]:
    """Open `workdir` for a run; yield what loop.train takes, and the state to go on from.

    Inside it the mesh is set, SIGTERM, SIGINT and SIGHUP ask the loop to save and stop, and other
    processes are kept out of the folder. What --init_from takes from the folder afterwards is the
    encoder of shape config.model under params['encoder'], where there is one, and the tokenizer. Of
    several processes (jax.distributed.initialize comes before) each makes the same call.

    Args:
      workdir: its folder, which all processes share.
      config: the settings, which a resumed run must have alike but for those that the schema lets
        change; of the phases the batch sizes are checked and the steps are counted.
      fresh: the state that the run begins with, on the mesh, where there is no checkpoint.
      mesh: the devices of the run.
      tokenizer: kept in the folder.
      reads: what the run is besides (its objective, its records), JSON values that a resumed run
        must have alike.
      writers: makes more writers of metrics, given the step that the run goes on from (0: the
        first); called in the first process alone, and closed at the end.
      profile_steps: see loop.Run.

    Raises:
      UserError: the folder holds another run or is in use, or a batch does not divide.
    """
    for number, phase in enumerate(config.phases):
        setting = f'phases.{number}.batch_size'
        sharding.check_divides(mesh, phase.batch_size, config.runtime.accumulation, setting)
    program_cache.use(config.runtime.compilation_cache)
    with locked(workdir) as folder:
        config = claim(folder, config, tokenizer, reads)
        with (
            handlers_restored(),
            opened_for_phases(
                workdir, fresh, config, mesh, profile_steps, writers
            ) as run_and_state,
        ):
            yield run_and_state


def say_stopped(signal_number: int, standing: str) -> None:
    """Log what a run that a signal stopped goes on from.

    Args:
      signal_number: the signal.
      standing: what of the run is on the disk, in words (checkpoint.standing).
    """
    logging.info(f'signal {signal_number}: {standing}; the same command goes on from there')
