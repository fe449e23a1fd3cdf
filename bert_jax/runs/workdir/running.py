"""A workdir while its run goes on: opened before the first step, closed however the run ends.

Owns which of a run's settings act on its folder (keep_checkpoints, keep_every, on_full_disk,
max_bad_steps),
for every command that trains. It must not know what is trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from bert_jax.configs.schema import PretrainConfig, RuntimeConfig
from bert_jax.input_pipeline.progress import Bar
from bert_jax.mesh import processes
from bert_jax.runs.workdir import metrics, notes, plots
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import loop
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.metrics_accumulator import MetricsAccumulator
from bert_jax.train.state import TrainState

# What a checkpoint keeps beside the state: the sums of the steps since the last line.
MeterState = Mapping[str, Any]


def checkpoints_of(workdir: str, runtime: RuntimeConfig) -> Checkpoints:
    """The checkpoints of a run with such settings."""
    return Checkpoints(workdir, runtime.keep_checkpoints, runtime.keep_every)


def resumed(
    workdir: str, checkpoints: Checkpoints, fresh: TrainState, total_steps: int
) -> tuple[TrainState, MeterState | None] | None:
    """The newest state in the workdir, placed as `fresh` is, and what the meter had then.

    None where there is no checkpoint.
    """
    restored = checkpoints.restore(fresh)
    if restored is None:
        return None
    state, meta = restored
    logging.info('%s: resumed at step %d of %d', workdir, int(state.step), total_steps)
    return state, meta.get('meter')  # checkpoints of older versions have none


def saves_left(config: PretrainConfig, step: int) -> int:
    """At most so many checkpoints will be written after `step`."""
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
    writers: Callable[[int], Sequence[loop.Writer]] = lambda step: (),
) -> Iterator[loop.Run]:
    """Yields what surrounds the steps of a run that goes on from `state`, or begins with it.

    kind: what a checkpoint says it is of, 'pretrain' or 'finetune'; saves: at most so many more
    will be made; writers: makes those of your own, beside those of the folder, given the step that
    the run goes on from; the rest as loop.Run has it. NoRoom where the disk cannot hold them. At
    the end, however it comes, a save under way is on the disk, the metrics are closed and drawn.
    """
    # Before anything is opened: a run that cannot be saved should not begin.
    required = runtime.on_full_disk == 'stop'
    checkpoints.check_room(state, saves, required)

    # All processes compute the same metrics; one writes them, or lines would come several times.
    writes, step = processes.is_lead_process(), int(state.step)
    if writes and step < total_steps:  # else there is nothing left that it could make
        notes.note_start(Workdir(workdir), step)
    writer = (
        metrics.MetricWriter(workdir, step, required, writers(step))
        if writes
        else metrics.Writers([])
    )

    def show(line: loop.LogEntry) -> None:
        if bar.due():
            bar.show(metrics.status(line))

    # Checkpoints close first: a save under way ends before the metrics that tell of it are closed.
    try:
        with Bar(writes) as bar, checkpoints:
            yield loop.Run(
                runtime,
                total_steps,
                writer,
                checkpoints,
                {'kind': kind},
                MetricsAccumulator(runtime.max_bad_steps, meter_state),
                should_stop,
                heartbeat,
                f'{workdir}/profile',
                profile_steps,
                show,
            )
    # Also after an error or a signal: a run that ended early is the one whose curves are wanted.
    finally:
        writer.close()
        if writes:
            plots.plot_workdir(workdir)


@contextlib.contextmanager
def opened_for_phases(
    workdir: str,
    checkpoints: Checkpoints,
    state: TrainState,
    config: PretrainConfig,
    mesh: jax.sharding.Mesh,
    *,
    meter_state: MeterState | None,
    profile_steps: int,
    writers: Callable[[int], Sequence[loop.Writer]] = lambda step: (),
) -> Iterator[loop.Run]:
    """As `opened`, for a run of all phases of `config`: on `mesh`, and watched for stalls."""
    with (
        jax.set_mesh(mesh),
        processes.watchdog(config.runtime.stall_minutes) as heartbeat,
        opened(
            workdir,
            checkpoints,
            state,
            config.runtime,
            kind='pretrain',
            total_steps=config.total_steps,
            saves=saves_left(config, int(state.step)),
            meter_state=meter_state,
            should_stop=processes.Agreement(processes.StopSignal(), mesh),
            heartbeat=heartbeat,
            profile_steps=profile_steps,
            writers=writers,
        ) as run,
    ):
        yield run


def exit_code(signal_number: int, standing: str) -> int:
    """Says what a run that a signal stopped goes on from; -> its command's exit code, 128 + signal.

    standing: what of the run is on the disk, in words (checkpoint.standing).
    """
    logging.info('signal %d: %s; the same command goes on from there', signal_number, standing)
    return 128 + signal_number
