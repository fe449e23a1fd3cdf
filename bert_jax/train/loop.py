"""The training loop: from a state to a last step, with all that happens between the steps.

Owns the order of it: what is read, dispatched, measured, evaluated, written and saved after which
step, and when a run ends early. A resumed run does all of it as an undisturbed one would have. It
must not know what is trained (it takes a compiled step), whence batches come, or what files look
like: so pre-training and fine-tuning are both `train`, and so is training of your own.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.train import metrics_accumulator
from bert_jax.train.checkpoint import Checkpoints, Score
from bert_jax.train.learning_rate import Hparams
from bert_jax.train.losses.objective import Batch, MetricSums
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


class Run(NamedTuple):
    """The surroundings of the steps of a run; all its calls of `train` share them.

    Attributes:
      runtime: its settings; the loop reads log_every, checkpoint_every and on_full_disk.
      total_steps: steps of the run; a call of `train` may end before.
      writer: where lines of metrics go.
      checkpoints: where states go.
      meta: JSON values that are saved with each state.
      metrics: the sums of the steps since the last line.
      should_stop: returns the number of the signal that asks to save and stop, or None. The loop
        calls it once before the first step and once after each, in every process of the run; all
        of them must get the same answer.
      heartbeat: lets a watchdog know that a step is done.
      profile_folder: where the traces of a profile go.
      profile_steps: how many steps of each call are traced; 0 for no trace.
      show: receives the newest metrics after each step, for a bar on a terminal.
      forecast: receives the seconds that are left, once, as the first steps of a call measure them.
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
    forecast: Callable[[float], None] = lambda seconds: None


class TrainResult(NamedTuple):
    """The end of a call of `train`.

    Attributes:
      state: the state after the last step.
      signal: the number of the signal that stopped it, or None.
      early: whether an evaluation stopped it.
    """

    state: TrainState
    signal: int | None
    early: bool


def train(
    run: Run,
    train_step: Any,
    state: TrainState,
    batches: Iterator[Batch],
    hparams: Hparams,
    last: int,
    *,
    name: str,
    labels: Mapping[str, Any] | None = None,
    evaluation: Evaluation | None = None,
    costs: Any = None,
    read_by: Callable[[int, int], str] = lambda first, last: '',
    programs: int = 1,
    save_last: bool = True,
) -> TrainResult:
    """Train from `state` to the step `last`, to a signal, or until an evaluation ends it.

    Call it inside `jax.set_mesh`.

    Args:
      run: what surrounds the steps.
      train_step: the jitted step, as step.jit_train_step makes it.
      state: the state to go on from; its memory is reused.
      batches: batches on the devices, from the one of step `state.step` on (see `prefetch`).
      hparams: the traced scalars of the run.
      last: the number of the last step.
      name: the name of this training in the log.
      labels: what each line of metrics has besides its figures.
      evaluation: what is evaluated on the way.
      costs: measures memory, work and rates of the steps, as StepCosts of bert_jax/costs does.
      read_by: words for what the steps from one to another (from 1) have read, for the message
        about discarded steps.
      programs: how often the step may be compiled without a warning: once for each batch shape.
      save_last: whether the last step is saved too; else the caller saves it.

    Raises:
      UserError: after runtime.max_bad_steps non-finite steps in a row; where the batches end too
        early, whose state is saved.
      NoRoom: where the disk is full.
    """
    run.metrics.read_by = read_by
    training = _Training(run, train_step, hparams, last, name, labels or {}, costs)
    return training.loop(state, batches, evaluation, programs, save_last)


class _Training(NamedTuple):
    """The parts of one call of `train` that its steps share."""

    run: Run
    train_step: Any
    hparams: Hparams
    last: int
    name: str
    labels: Mapping[str, Any]
    costs: Any

    def loop(
        self,
        state: TrainState,
        batches: Iterator[Batch],
        evaluation: Evaluation | None,
        programs: int,
        save_last: bool,
    ) -> TrainResult:
        """Make the steps, in the order that a resumed run would keep."""
        # What this call counts from: another call of the same run may have compiled this step
        # already, and a signal may have come while the data was opened.
        run, step, last = self.run, int(state.step), self.last
        profile = metrics_accumulator.Profile(run.profile_folder, run.profile_steps, step, last)
        compiled_before = self.train_step._cache_size()
        signal, early, is_forecast = run.should_stop(), False, False
        while step < last and signal is None and not early:
            # Time spent here is the pipeline's fault, and logged as input_wait.
            with run.metrics.waiting():
                batch = next(batches, None)
            if batch is None:
                raise self._ran_out(state, step)
            state, sums = self._dispatch(state, batch, step + 1)
            step += 1
            profile.after(step, sums)
            # A step late, as it was read anyway: a bar makes nothing wait.
            entry = self._entry(step, run.metrics.newest())
            run.show(entry)
            if entry.eta is not None and not is_forecast:
                is_forecast = True
                run.forecast(entry.eta)

            # Evaluation comes before the line of training, because it may make this the last step,
            # and the last step always has a line; the lines themselves come in the other order.
            result = None
            if evaluation and (step % evaluation.every == 0 or step == last):
                with run.metrics.paused():
                    result = evaluation.evaluate(step, state)
                early = result.stop
            at_end = step == last or early
            if step % run.runtime.log_every == 0 or at_end:
                rates = self.costs.rates if self.costs else None
                run.writer.write(self._entry(step, run.metrics.drain(rates)))
                warn_of_recompilation(self.train_step, step, compiled_before + programs)
            if result:
                metrics = {**self.labels, **result.metrics}
                run.writer.write(LogEntry(step, metrics, run.total_steps))

            # Signals are looked for after the evaluation, which may have been long, and before the
            # save, which a signal makes due. All lines so far belong to steps before the saved one,
            # so a resumed run writes neither less nor twice.
            signal = run.should_stop()
            score = result.score if result else None
            in_turn = signal is not None or step % run.runtime.checkpoint_every == 0
            if save_last if at_end else in_turn or run.checkpoints.is_best(score):
                with run.metrics.paused():
                    self._save(state, score, required=early or step == run.total_steps)
                run.heartbeat()
        return TrainResult(state, signal, early)

    def _dispatch(
        self, state: TrainState, batch: Batch, step: int
    ) -> tuple[TrainState, MetricSums]:
        """Give the devices step number `step`, and take the metrics of the one before."""
        # The first program's memory is logged before it runs: a step that does not fit ends here,
        # with the figures in the log. It costs no second compilation, the call runs this program.
        compiled = self.train_step._cache_size()
        if self.costs and not compiled:
            program = self.train_step.lower(state, batch, self.hparams).compile()
            logging.info('%s: %s', self.name, self.costs.memory(program, state, batch))

        # This only dispatches the step. The accumulator then waits for the one before: the devices
        # always have the next step, and the host is never further ahead.
        state, sums = self.train_step(state, batch, self.hparams)
        work = self.costs.work(batch) if self.costs else metrics_accumulator.Work()
        self.run.metrics.push(step, sums, self.train_step._cache_size() > compiled, work)
        self.run.heartbeat()
        return state, sums

    def _entry(self, step: int, metrics: Mapping[str, float]) -> LogEntry:
        """Return the line of training at `step`."""
        total, step_ms = self.run.total_steps, metrics.get('step_ms')
        eta = None if step_ms is None else (total - step) * step_ms / 1e3
        return LogEntry(step, {**self.labels, 'split': 'train', **metrics}, total, eta)

    def _save(self, state: TrainState, score: Score | None, required: bool) -> None:
        """Save a state and the sums since the last line; a full disk ends the run if `required`."""
        meta = {**self.run.meta, 'meter': self.run.metrics.state()}
        required = required or self.run.runtime.on_full_disk == 'stop'
        self.run.checkpoints.save(state, meta, score, required)

    def _ran_out(self, state: TrainState, step: int) -> UserError:
        """Save the state after the last batch, and return the error that says so."""
        checkpoints = self.run.checkpoints
        if step:
            self._save(state, None, required=False)
            checkpoints.wait()
        return UserError(
            f'{self.name}: the batches ended after step {step} of {self.last};'
            f' {checkpoints.standing(step)}: give batches that do not end, or fewer steps'
        )


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


def one_ahead(started: Iterable[_T]) -> Iterator[_T]:
    """Yield each item when the next one is there too, so that the device is never idle."""
    for item, _ in itertools.pairwise(itertools.chain(started, [None])):
        assert item is not None, 'the last of a pair alone'
        yield item
