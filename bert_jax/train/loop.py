"""The training loop: from a state to a last step, with all that happens between the steps.

Owns the order of it: what is read, dispatched, measured, evaluated, written and saved after which
step, and when a run ends early. A resumed run does all of it as an undisturbed one would have. It
must not know what is trained (it takes a compiled step), whence batches come, or what files look
like: so pre-training, fine-tuning and training of your own are all `train_steps`.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.train.checkpoint import Checkpoints, Score
from bert_jax.train.learning_rate import Hparams
from bert_jax.train.losses.objective import Batch, MetricSums
from bert_jax.train.metrics_accumulator import MetricsAccumulator, Profile, Work
from bert_jax.train.state import TrainState
from bert_jax.train.step import warn_of_recompilation

_T = TypeVar('_T')


class LogEntry(NamedTuple):
    """A line of metrics of one step.

    Attributes:
      step: the number of the step, of `total`.
      metrics: 'split' ('train', or what was evaluated), and a value for each name.
      eta: seconds until the last step, None where that is not known.
    """

    step: int
    metrics: Mapping[str, Any]
    total: int
    eta: float | None = None


class Writer(Protocol):
    """A place for lines of metrics: bert_jax/runs/workdir has those that write files.

    A writer of an interrupted run learns at which step the run goes on: lines of later steps, which
    it has already, come again.
    """

    def write(self, line: LogEntry) -> None:
        """Record a line."""

    def close(self) -> None:
        """Write what is buffered; whoever opened the writer calls it, not the loop."""


class EvalResult(NamedTuple):
    """The result of one evaluation.

    Attributes:
      metrics: the line for the writer, 'split' included.
      score: its rank, higher is better: the best state so far is saved. None: it is not ranked.
      stop: whether training ends here.
    """

    metrics: Mapping[str, Any]
    score: Score | None = None
    stop: bool = False


class Evaluation(NamedTuple):
    """An evaluation, `evaluate(step, state)`, each `every` steps and after the last."""

    every: int
    evaluate: Callable[[int, TrainState], EvalResult]


class Surroundings(Protocol):
    """What the loop asks of a run; RunContext of bert_jax/runs/workdir is that.

    Attributes:
      total_steps: steps of the run.
      hparams: the traced scalars of its steps.
      state: what the run has come to, which the loop replaces with each step.
      writer: where lines of metrics go.
      metrics: the sums of the steps since the last line.
    """

    total_steps: int
    hparams: Hparams
    state: TrainState
    writer: Writer
    metrics: MetricsAccumulator

    @property
    def runtime(self) -> RuntimeConfig:
        """Return its settings; the loop reads log_every and checkpoint_every."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Return where states go."""

    def stop_requested(self) -> int | None:
        """Return the number of the signal that asks to save and stop, or None.

        The loop asks once before the first step and once after each, in every process of the run;
        all of them must get the same answer.
        """

    def heartbeat(self) -> None:
        """Let a watchdog know that a step is done."""

    def show(self, line: LogEntry) -> None:
        """Take the newest metrics after each step, for a bar on a terminal."""

    def trace(self, last: int) -> Profile:
        """Return the trace of some of the steps from here to `last`."""

    def save(self, score: Score | None = None, required: bool = False) -> None:
        """Save the state and the sums since the last line."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a run that one call of `train_steps` makes: by default all that is left of it.

    Attributes:
      last: the number of its last step; None: the run's.
      name: what it is called in the log.
      labels: what each line of metrics has besides its figures.
      costs: measures memory, work and rates of the steps, as StepCosts of bert_jax/costs does.
      read_by: words for what the steps from one to another (from 1) have read, for the message
        about discarded steps.
      forecast: receives the seconds that the run still takes, once, as the first steps measure
        them.
      programs: how often the step may be compiled without a warning: once for each batch shape.
      save_last: whether the last step is saved too; else the caller saves it.
    """

    last: int | None = None
    name: str = 'training'
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    costs: Any = None
    read_by: Callable[[int, int], str] = lambda first, last: ''
    forecast: Callable[[float], None] = lambda seconds: None
    programs: int = 1
    save_last: bool = True


_WHOLE = Part()


class TrainResult(NamedTuple):
    """The end of a call of `train_steps`.

    Attributes:
      state: the state after the last step.
      signal: the number of the signal that stopped it, or None.
      early: whether an evaluation stopped it.
    """

    state: TrainState
    signal: int | None
    early: bool


def train_steps(
    context: Surroundings,
    train_step: Any,
    batches: Iterator[Batch],
    evaluation: Evaluation | None = None,
    part: Part = _WHOLE,
) -> TrainResult:
    """Train from `context.state` to the last step, to a signal, or until an evaluation ends it.

    Args:
      context: what surrounds the steps.
      train_step: the jitted step, as step.jit_train_step makes it.
      batches: batches on the devices, from the one of step `context.state.step` on (`prefetch`).
      evaluation: what is evaluated on the way.
      part: which steps these are, and what the log says of them.

    Raises:
      UserError: after runtime.max_bad_steps non-finite steps in a row; where the batches end too
        early, whose state is saved.
      NoRoom: where the disk is full.
    """
    return _Loop(context, train_step, batches, evaluation, part).run()


class _Loop:
    """A call of `train_steps`, and how far it is.

    Attributes:
      step: the number of the last step that was dispatched.
      last: that of the last step of the part.
    """

    def __init__(
        self,
        context: Surroundings,
        train_step: Any,
        batches: Iterator[Batch],
        evaluation: Evaluation | None,
        part: Part,
    ):
        self._context, self._train_step, self._batches = context, train_step, batches
        self._evaluation, self._part = evaluation, part
        self.step = int(context.state.step)
        self.last = context.total_steps if part.last is None else part.last
        # Another call may have compiled this step.
        self._programs = train_step._cache_size() + part.programs
        self._is_forecast = False

    def run(self) -> TrainResult:
        """Make the steps that are left; see `train_steps`."""
        context, early = self._context, False
        profile = context.trace(self.last)
        context.metrics.read_by = self._part.read_by
        # A signal may have come while data was opened.
        signal = context.stop_requested()
        while self.step < self.last and signal is None and not early:
            sums = self._dispatch()
            self.step += 1
            profile.after(self.step, sums)
            self._show_newest()
            # Before the line of training: it may make this the last step, which always has a line.
            # The lines themselves come in the other order.
            result = self._evaluate()
            early = result.stop
            at_end = self.step == self.last or early
            if at_end or self.step % context.runtime.log_every == 0:
                self._write_line()
            if result.metrics:
                metrics = {**self._part.labels, **result.metrics}
                context.writer.write(LogEntry(self.step, metrics, context.total_steps))

            # Signals are looked for after the evaluation, which may have been long, and before the
            # save, which a signal makes due. All lines so far belong to steps before the saved one,
            # so a resumed run writes neither less nor twice.
            signal = context.stop_requested()
            if self._is_save_due(at_end, signal is not None, result.score):
                required = result.stop or self.step == context.total_steps
                with context.metrics.paused():
                    context.save(result.score, required=required)
                context.heartbeat()
        return TrainResult(context.state, signal, early)

    def _dispatch(self) -> MetricSums:
        """Give the devices the next step, and take the metrics of the one before."""
        context, part, train_step = self._context, self._part, self._train_step
        # Time spent here is the pipeline's fault, and logged as input_wait.
        with context.metrics.waiting():
            batch = next(self._batches, None)
        if batch is None:
            raise self._end_of_batches()

        # The first program's memory is logged before it runs: a step that does not fit ends here,
        # with the figures in the log. It costs no second compilation, the call runs this program.
        compiled = train_step._cache_size()
        if part.costs and not compiled:
            program = train_step.lower(context.state, batch, context.hparams).compile()
            logging.info('%s: %s', part.name, part.costs.memory(program, context.state, batch))

        # This only dispatches the step. The accumulator then waits for the one before: the devices
        # always have the next step, and the host is never further ahead.
        context.state, sums = train_step(context.state, batch, context.hparams)
        work = part.costs.work(batch) if part.costs else Work()
        is_new = train_step._cache_size() > compiled
        context.metrics.push(self.step + 1, sums, is_new, work)
        context.heartbeat()
        return sums

    def _end_of_batches(self) -> UserError:
        """Save the state after the last batch, and return the error that says so."""
        if self.step:
            self._context.save()
            self._context.checkpoints.wait()
        standing = self._context.checkpoints.describe_standing(self.step)
        return UserError(
            f'{self._part.name}: the batches ended after step {self.step} of {self.last};'
            f' {standing}: give batches that do not end, or fewer steps'
        )

    def _show_newest(self) -> None:
        """Show the metrics of the step before: as they were read anyway, nothing waits for them."""
        line = self._describe(self._context.metrics.newest())
        self._context.show(line)
        if line.eta is not None and not self._is_forecast:
            self._part.forecast(line.eta)
            self._is_forecast = True

    def _evaluate(self) -> EvalResult:
        """Evaluate the state, where it is due."""
        evaluation = self._evaluation
        if evaluation is None or (self.step % evaluation.every and self.step != self.last):
            return EvalResult({})
        with self._context.metrics.paused():
            return evaluation.evaluate(self.step, self._context.state)

    def _write_line(self) -> None:
        """Write the line of the steps since the last one."""
        costs = self._part.costs
        figures = self._context.metrics.drain(costs.rates if costs else None)
        self._context.writer.write(self._describe(figures))
        warn_of_recompilation(self._train_step, self.step, self._programs)

    def _describe(self, metrics: Mapping[str, float]) -> LogEntry:
        """Return the line of training at this step."""
        total, eta = self._context.total_steps, None
        if 'step_ms' in metrics:
            eta = (total - self.step) * metrics['step_ms'] / 1e3
        return LogEntry(self.step, {**self._part.labels, 'split': 'train', **metrics}, total, eta)

    def _is_save_due(self, at_end: bool, is_stopped: bool, score: Score | None) -> bool:
        """Tell whether to save: in turn, at a signal, where the state is the best, at the end."""
        if at_end:
            return self._part.save_last
        in_turn = is_stopped or self.step % self._context.runtime.checkpoint_every == 0
        return in_turn or self._context.checkpoints.is_best(score)


def train(
    run: Surroundings,
    train_step: Any,
    state: TrainState,
    batches: Iterator[Batch],
    hparams: Hparams,
    last: int,
    *,
    name: str,
    evaluation: Evaluation | None = None,
    **options: Any,
) -> TrainResult:
    """Call `train_steps` as programs for version 0.2.0 do; it goes with `own_run`."""
    run.state, run.hparams = state, hparams
    return train_steps(run, train_step, batches, evaluation, Part(last, name, **options))


def prefetch(
    batches: Iterator[Any], to_devices: Callable[[Any], Any], size: int = 2
) -> Iterator[Any]:
    """Place batches on the devices `size` ahead of their use.

    Args:
      batches: batches on the host.
      to_devices: starts the copy of a batch and returns its arrays on the devices.
      size: how many batches wait on the devices.
    """
    # Copies that are under way overlap with the steps before them.
    queue: collections.deque[Any] = collections.deque(
        to_devices(b) for b in itertools.islice(batches, size)
    )
    # One is placed for each that is taken, so that never more than `size` wait in the devices'
    # memory.
    while queue:
        yield queue.popleft()
        queue.extend(to_devices(b) for b in itertools.islice(batches, 1))


def iterate_ahead(started: Iterable[_T]) -> Iterator[_T]:
    """Yield each item when the next one is there too, so that the device is never idle."""
    for item, _ in itertools.pairwise(itertools.chain(started, [None])):
        assert item is not None, 'the last of a pair alone'
        yield item
