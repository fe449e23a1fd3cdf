"""What a training loop measures of itself: means of metrics, speed, a trace of some steps.

Owns the arithmetic between the metrics of single steps and the figures of a log line, and what of
it a checkpoint keeps. It must not know what is trained, nor when a line is due.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.train.losses.objective import MetricSums


class Work(NamedTuple):
    """The work of steps on all devices; tokens with padding; model FLOPs, 0 if not known."""

    examples: float = 0
    tokens: float = 0
    flops: float = 0

    def plus(self, other: Work) -> Work:
        """Return the work of both."""
        return Work(
            self.examples + other.examples, self.tokens + other.tokens, self.flops + other.flops
        )


_NO_WORK = Work()


class MetricsAccumulator:
    """Adds up (sum, weight) metrics of steps, and fetches them when the next step is dispatched.

    So the device never waits for the host, and the host is never more than one step ahead.

    Attributes:
      read_by: words for what the steps from one number to another have read. Steps count from 1,
        as in the log.
    """

    def __init__(self, max_bad_steps: int, kept: Mapping[str, Any] | None = None):
        """Start an interval; `kept` is the `state` of an interrupted run: its steps count on."""
        self._max_bad_steps = max_bad_steps
        self.read_by: Callable[[int, int], str] = lambda first, last: ''
        self._pending: tuple[int, MetricSums] | None = None
        # For `newest`, which a line of metrics does not end.
        self._newest: dict[str, float] = {}
        self._start()
        if kept:
            # A line of metrics spans a restart: the sums of steps made before it are added to here.
            add_sums(self._sums, kept['sums'])
            self._steps, self._discarded = kept['steps'], kept['discarded_steps']

    def _start(self) -> None:
        # {metric: [sum, weight]} of the steps since the last line.
        self._sums: dict[str, list[float]] = {}
        # Steps by kind: all, those with non-finite values, those whose time counts.
        self._steps, self._discarded, self._timed = 0, 0, 0
        self._work = _NO_WORK
        self._learning_rate: float | None = None
        # Seconds: when the interval began, when the last step was dispatched, how long the host
        # waited for input in all and until that dispatch.
        self._since = self._last_push = time.perf_counter()
        self._waited = self._waited_before = 0.0

    def push(
        self, step: int, metrics: MetricSums, compiled: bool = False, work: Work = _NO_WORK
    ) -> None:
        """Take the metrics of step number `step`, just dispatched, and the `work` that it does.

        A step that was `compiled` is waited for. Its time, and all since the step before, is left
        out of `seconds` and `step_ms`: it says nothing of the steps to come.

        Raises:
          UserError: after too many non-finite steps in a row.
        """
        # Here the host waits for the step before, while the devices have this one to do.
        self._settle_pending()
        if self._timed:  # all of them are done by now
            self._newest['step_ms'] = 1e3 * (time.perf_counter() - self._since) / self._timed
        self._pending = step, metrics
        if compiled:
            # The interval now begins later by all that this step took, and by its wait for input.
            jax.block_until_ready(metrics)
            self._since += time.perf_counter() - self._last_push
            self._waited = self._waited_before
        else:
            self._timed += 1
            self._work = self._work.plus(work)
        self._last_push, self._waited_before = time.perf_counter(), self._waited

    def _settle_pending(self) -> None:
        """Wait for the step that was dispatched last, and add up its metrics."""
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        # One transfer for all metrics of the step.
        host = {name: (float(s), float(w)) for name, (s, w) in jax.device_get(metrics).items()}
        bad_steps = int(host.pop('bad_steps')[0])
        if 'learning_rate' in host:  # of the step itself: a mean over steps would be no step's rate
            self._learning_rate, _ = host.pop('learning_rate')
        self._steps += 1
        if bad_steps:  # a discarded step: counted, and kept out of the means
            self._discarded += 1
            if bad_steps >= self._max_bad_steps:
                first = step - bad_steps + 1
                raise UserError(
                    f'{bad_steps} steps in a row, {first} to {step}, had a non-finite loss or'
                    f' gradient and were discarded{self.read_by(first, step)}: lower'
                    ' optimizer.peak_lr, lengthen the warm-up, or look at the data'
                    ' (bert-preprocess verify)'
                )
            return
        self._newest |= compute_means(host)
        add_sums(self._sums, host)

    def newest(self) -> dict[str, float]:
        """Return the metrics of the newest step that was read, and `step_ms` if it was measured.

        Waits for nothing. Empty before a step was read.
        """
        return dict(self._newest)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the steps since the last `drain`, as JSON values.

        Waits for the pending step.
        """
        self._settle_pending()
        return {'sums': self._sums, 'steps': self._steps, 'discarded_steps': self._discarded}

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside the block out of `seconds`: evaluating and saving is not training.

        Waits for the pending step first, whose time is of training.
        """
        self._settle_pending()
        started = time.perf_counter()
        yield
        passed = time.perf_counter() - started
        # Both clocks move on: neither the interval nor a compilation has the pause in it.
        self._since += passed
        self._last_push += passed

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the block as waiting for input."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def drain(
        self, rates: Callable[[Work, float], Mapping[str, float]] | None = None
    ) -> dict[str, float]:
        """Return means since the last call, with `steps`, `discarded_steps` and `seconds`.

        Waits for the pending step. `learning_rate` is that of the last step. `seconds` and
        `step_ms` cover the steps that this process made without compiling; `step_ms` is left out
        if there was no such step. `input_wait` is the share of the seconds in which the host
        waited for the next batch. With `step_ms` come the figures that `rates` makes of the work
        of those steps and their seconds.
        """
        self._settle_pending()

        # Means first: they are of all steps, those of an earlier process included.
        figures = compute_means(self._sums)
        if self._learning_rate is not None:
            figures['learning_rate'] = self._learning_rate
        # Times are of this process's own steps: those of an earlier one were perhaps made on
        # another machine.
        seconds = time.perf_counter() - self._since
        figures |= {'steps': self._steps, 'discarded_steps': self._discarded, 'seconds': seconds}
        figures['input_wait'] = 0.0
        if seconds:
            figures['input_wait'] = self._waited / seconds
        if self._timed:
            figures['step_ms'] = 1e3 * seconds / self._timed
            if rates is not None:
                figures |= rates(self._work, seconds)
        self._start()
        return figures


def add_sums(total: dict[str, list[float]], sums: Mapping[str, tuple[Any, Any]]) -> None:
    """Add (sum, weight) of each metric to those of `total`."""
    for name, (value, weight) in sums.items():
        entry = total.setdefault(name, [0.0, 0.0])
        entry[0] += float(value)
        entry[1] += float(weight)


def compute_means(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return sum / weight of each metric; metrics without any weight are left out."""
    return {name: total / weight for name, (total, weight) in sums.items() if weight}


class Profile:
    """A trace of `steps` steps for TensorBoard's profiler, from SKIPPED after `start` on.

    It ends with the step `last` at the latest, and does not begin if no step would be left for it.
    """

    SKIPPED = 10  # the first steps compile and fill buffers

    def __init__(self, folder: str, steps: int, start: int, last: int):
        begins = start + self.SKIPPED
        self._folder = folder
        # The steps after which it begins and ends.
        self._between: tuple[int, ...] = ()
        if steps and begins < last:
            self._between = (begins, min(begins + steps, last))

    def after(self, step: int, metrics: MetricSums) -> None:
        """Begin or end the trace after step number `step`, if due, and wait for the step then."""
        if step in self._between:
            # What is traced begins and ends with whole steps: without this, dispatch would run
            # ahead of it.
            jax.block_until_ready(metrics)
            try:
                if step == self._between[0]:
                    jax.profiler.start_trace(self._folder)
                else:
                    jax.profiler.stop_trace()
            except (RuntimeError, OSError) as error:  # a full disk, for one: no reason to end a run
                logging.warning('%s: no profile (%s)', self._folder, str(error).split('\n')[0])
                self._between = ()
