"""The training loop: from a state to a last step, with all that happens between the steps.

Owns the order of it: what is read, dispatched, measured, evaluated, written and saved after which
step, and when a run ends early. A resumed run does all of it as an undisturbed one would have. It
must not know what is trained (it takes a compiled step), whence batches come, or what files look
like: so pre-training and fine-tuning are both `train`, and so is training of your own.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.train import metrics_accumulator
from bert_jax.train.checkpoint import Checkpoints, Score
from bert_jax.train.losses import Batch, MetricSums
from bert_jax.train.schedule import Hparams
from bert_jax.train.state import TrainState
from bert_jax.train.step import warn_of_recompilation


class TrainStep(Protocol):
    """A jitted train step, as step.jit_train_step makes it."""

    def __call__(
        self, state: TrainState, batch: Batch, hparams: Hparams, /
    ) -> tuple[TrainState, MetricSums]: ...

    def lower(self, state: TrainState, batch: Batch, hparams: Hparams, /) -> jax.stages.Lowered: ...

    def _cache_size(self) -> int: ...


class LogEntry(NamedTuple):
    """What is told of a step.

    step: its number, of `total`; metrics: 'split' ('train', or what was evaluated), and a value for
    each name; eta: seconds until the last step, None where it is not known.
    """

    step: int
    metrics: Mapping[str, Any]
    total: int
    eta: float | None = None


class Writer(Protocol):
    """Where lines of metrics go: bert_jax/runs/workdir has those that write files.

    One that comes late to an interrupted run is told at which step that goes on: lines of later
    steps that it has been given come again.
    """

    def write(self, line: LogEntry) -> None:
        """Records a line."""

    def close(self) -> None:
        """Writes what is buffered; called by who opened it, not by the loop."""


class StepCosts(Protocol):
    """What steps take of the devices; bert_jax/costs has one."""

    def memory(self, program: jax.stages.Compiled, state: TrainState, batch: Batch) -> str:
        """The memory of a compiled step, in words."""

    def work(self, batch: Batch) -> metrics_accumulator.Work:
        """What a step on such a batch works through."""

    def rates(self, work: metrics_accumulator.Work, seconds: float) -> dict[str, float]:
        """The figures of a log line for steps that did that work in that time."""


class EvalResult(NamedTuple):
    """What an evaluation comes to.

    metrics: its line for the writer, 'split' among them; score: the state is saved where it is the
    best so far, higher is better (None: it is not ranked); stop: whether training ends here.
    """

    metrics: Mapping[str, Any]
    score: Score | None = None
    stop: bool = False


class Evaluation(NamedTuple):
    """`evaluate(step, state)`, to be called each `every` steps and after the last."""

    every: int
    evaluate: Callable[[int, TrainState], EvalResult]


class Run(NamedTuple):
    """What surrounds the steps of a run; the same in all its calls of `train`.

    runtime: its settings, of which the loop reads log_every, checkpoint_every and on_full_disk.
    total_steps: of the run; a call of `train` may end before.
    writer, checkpoints: where lines and states go.
    meta: what is saved beside each state, as JSON values.
    metrics: the sums of the steps since the last line.
    should_stop: the number of the signal that asks to save and stop, or None;
      called once before the first step and once after each, in every process of the run, which must
      all get the same answer.
    heartbeat: tells a watchdog that a step is done.
    profile_folder, profile_steps: a trace of so many steps of each call goes there; 0: none.
    show: is told of each step by the newest metrics that were read: for a bar on a terminal.
    """

    runtime: RuntimeConfig
    total_steps: int
    writer: Writer
    checkpoints: Checkpoints
    meta: Mapping[str, Any]
    metrics: metrics_accumulator.MetricsAccumulator
    should_stop: Callable[[], int | None]
    heartbeat: Callable[[], None]
    profile_folder: str = ''
    profile_steps: int = 0
    show: Callable[[LogEntry], None] = lambda line: None


class TrainResult(NamedTuple):
    """How a call of `train` ended.

    signal: the number of the one that stopped it; early: whether an evaluation did.
    """

    state: TrainState
    signal: int | None
    early: bool


def train(
    run: Run,
    train_step: TrainStep,
    state: TrainState,
    batches: Iterator[Batch],
    hparams: Hparams,
    last: int,
    *,
    name: str,
    labels: Mapping[str, Any] | None = None,
    evaluation: Evaluation | None = None,
    costs: StepCosts | None = None,
    read_by: Callable[[int, int], str] = lambda first, last: '',
    programs: int = 1,
    save_last: bool = True,
) -> TrainResult:
    """Trains from `state` to the step `last`, to a signal, or until an evaluation ends it.

    batches: on the devices, from the one of step `state.step` on (see `prefetch`).
    name: of this training, in the log; labels: what each line of metrics has besides.
    read_by: what the steps from one to another (from 1) have read, for the message about steps that
      were discarded.
    programs: how often the step may be compiled without a warning: once for each shape of a batch.
    save_last: whether the last step is saved too; else that is left to the caller.
    UserError after runtime.max_bad_steps non-finite steps in a row, and where the batches end
    before, whose state is saved; NoRoom where the disk is full.
    To be called inside `jax.set_mesh`.
    """
    # Before the first step: what this call counts from. Another call of the same run may have
    # compiled this step already, and a signal may have come while the data was opened.
    step, labels = int(state.step), labels or {}
    runtime, run.metrics.read_by = run.runtime, read_by
    profile = metrics_accumulator.Profile(run.profile_folder, run.profile_steps, step, last)
    compiled_before = train_step._cache_size()
    signal, early = run.should_stop(), False
    while step < last and signal is None and not early:
        # Time spent here is the pipeline's fault, and logged as input_wait.
        with run.metrics.waiting():
            batch = next(batches, None)
        if batch is None:
            raise _ran_out(run, state, step, last, name)

        # Before the first step its memory is told: a step that does not fit ends here, with the
        # figures in the log. It costs no second compilation, the call below runs this program.
        compiled = train_step._cache_size()
        if costs and not compiled:
            program = train_step.lower(state, batch, hparams).compile()
            logging.info('%s: %s', name, costs.memory(program, state, batch))

        # This only dispatches the step. The meter then waits for the one before, whose metrics it
        # takes: the devices always have the next step, and the host is never further ahead.
        state, sums = train_step(state, batch, hparams)
        step += 1
        work = costs.work(batch) if costs else metrics_accumulator.Work()
        run.metrics.push(step, sums, train_step._cache_size() > compiled, work)
        run.heartbeat()
        profile.after(step, sums)

        # A step late, as it was read anyway: a bar makes nothing wait.
        newest = run.metrics.newest()
        eta = metrics_accumulator.eta(run.total_steps - step, newest)
        run.show(LogEntry(step, {**labels, 'split': 'train', **newest}, run.total_steps, eta))

        # Evaluation comes before the line of training, because it may make this the last step,
        # and the last step always has a line; the lines themselves come in the other order.
        verdict = None
        if evaluation and (step % evaluation.every == 0 or step == last):
            with run.metrics.paused():
                verdict = evaluation.evaluate(step, state)
            early = verdict.stop
        at_end = step == last or early
        if step % runtime.log_every == 0 or at_end:
            figures = run.metrics.drain(costs.rates if costs else None)
            eta = metrics_accumulator.eta(run.total_steps - step, figures)
            line = LogEntry(step, {**labels, 'split': 'train', **figures}, run.total_steps, eta)
            run.writer.write(line)
            warn_of_recompilation(train_step, step, compiled_before + programs)
        if verdict:
            run.writer.write(LogEntry(step, {**labels, **verdict.metrics}, run.total_steps))

        # Signals are looked for after the evaluation, which may have been long, and before the
        # save, which a signal makes due. What has been written by now is before the saved step, so
        # that a resumed run writes neither less nor twice.
        signal = run.should_stop()
        due = signal is not None or step % runtime.checkpoint_every == 0
        best = verdict is not None and run.checkpoints.is_best(verdict.score)
        # At its end a run saves if it is asked to; on the way where a save is due, or where the
        # evaluation was the best so far.
        if save_last if at_end else due or best:
            meta = {**run.meta, 'meter': run.metrics.state()}
            required = runtime.on_full_disk == 'stop' or early or step == run.total_steps
            with run.metrics.paused():
                run.checkpoints.save(state, meta, verdict.score if verdict else None, required)
            run.heartbeat()
    return TrainResult(state, signal, early)


def _ran_out(run: Run, state: TrainState, step: int, last: int, name: str) -> UserError:
    """Saves the state after the last batch that there was; what is raised then."""
    if step:
        meta = {**run.meta, 'meter': run.metrics.state()}
        run.checkpoints.save(state, meta, required=run.runtime.on_full_disk == 'stop')
        run.checkpoints.wait()
    return UserError(
        f'{name}: the batches ended after step {step} of {last}; {run.checkpoints.standing(step)}:'
        ' give batches that do not end, or fewer steps'
    )


def prefetch(batches: Iterator[Any], place: Callable[[Any], Any], size: int = 2) -> Iterator[Any]:
    """Places batches on the devices `size` ahead of their use."""
    # deque of device arrays whose copies are under way: they overlap with the steps before them.
    queue: collections.deque[Any] = collections.deque(
        place(b) for b in itertools.islice(batches, size)
    )
    # One is placed for each that is taken, so that never more than `size` wait in the devices'
    # memory.
    while queue:
        yield queue.popleft()
        queue.extend(place(b) for b in itertools.islice(batches, 1))
