"""The mechanics of a training loop: metrics read one step late, evaluation sums, signals, prefetch.

Owns nothing of what is trained or logged: the loops themselves, which read as recipes, are in
launch/.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from bert_jax.train.losses import Batch, MetricSums
from configs.errors import UserError


class Meter:
    """Adds up (sum, weight) metrics of steps, fetching each step's only when the next has been
    dispatched.

    So the device never waits for the host, and the host is never more than one step ahead.

    Attributes:
      where: what the steps from one to another have read, in words for a message. Steps count from
        1, as in the log.
    """

    def __init__(self, max_bad_steps: int, kept: Mapping[str, Any] | None = None):
        """`kept` is the `state` of a meter whose run was interrupted: its steps count as if it had
        gone on.
        """
        self._max_bad_steps = max_bad_steps
        self.where: Callable[[int, int], str] = lambda first, last: ''
        self._pending: tuple[int, MetricSums] | None = None
        self._start()
        if kept:
            self._sums |= {name: list(entry) for name, entry in kept['sums'].items()}
            self._steps, self._discarded = kept['steps'], kept['discarded_steps']

    def _start(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._steps, self._discarded, self._timed = 0, 0, 0
        self._learning_rate: float | None = None
        self._since = self._last_push = time.perf_counter()
        self._waited = self._waited_before = 0.0

    def push(self, step: int, metrics: MetricSums, compiled: bool = False) -> None:
        """Takes the metrics of step number `step`, just dispatched.

        Where a program was `compiled` for it, the step is waited for and, with all the time since
        the one before, left out of `seconds` and `step_ms`: that time says nothing of the steps to
        come. UserError after too many non-finite steps in a row.
        """
        self._settle_pending()
        self._pending = step, metrics
        if compiled:
            jax.block_until_ready(metrics)
            self._since += time.perf_counter() - self._last_push
            self._waited = self._waited_before
        else:
            self._timed += 1
        self._last_push, self._waited_before = time.perf_counter(), self._waited

    def _settle_pending(self) -> None:
        """Waits for the step that was dispatched last, and adds up its metrics."""
        if self._pending is not None:
            step, metrics = self._pending
            self._pending = None
            self._add(step, metrics)

    def _add(self, step: int, metrics: MetricSums) -> None:
        host = {name: (float(s), float(w)) for name, (s, w) in jax.device_get(metrics).items()}
        bad, _ = host.pop('bad_steps')
        if 'learning_rate' in host:  # of the step itself: a mean over steps would be no step's rate
            self._learning_rate, _ = host.pop('learning_rate')
        self._steps += 1
        if bad:  # a discarded step: counted, and kept out of the means
            self._discarded += 1
            if bad >= self._max_bad_steps:
                first = step - int(bad) + 1
                raise UserError(
                    f'{int(bad)} steps in a row, {first} to {step}, had a non-finite loss or'
                    f' gradient and were discarded{self.where(first, step)}: lower'
                    ' optimizer.peak_lr, lengthen the warm-up, or look at the data (python -m'
                    ' launch.verify_data)'
                )
            return
        _add_to(self._sums, host)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the steps since the last `drain`, as JSON values; waits for
        the pending step.
        """
        self._settle_pending()
        return {'sums': self._sums, 'steps': self._steps, 'discarded_steps': self._discarded}

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the time inside the block out of `seconds`: to evaluate or save is not to
        train.
        """
        started = time.perf_counter()
        yield
        passed = time.perf_counter() - started
        self._since += passed
        self._last_push += passed

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside the block as waiting for input."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def drain(self) -> dict[str, float]:
        """Means since the last call, with `steps`, `discarded_steps` and `seconds`; waits for the
        pending step.

        `learning_rate` is that of the last step. `seconds` and `step_ms` are of the steps that this
        process made and compiled nothing for; `step_ms` is left out where there was none.
        `input_wait` is the share of the seconds in which the host waited for the next batch.
        """
        self._settle_pending()
        found = means(self._sums)
        if self._learning_rate is not None:
            found['learning_rate'] = self._learning_rate
        seconds = time.perf_counter() - self._since
        found |= {'steps': self._steps, 'discarded_steps': self._discarded, 'seconds': seconds}
        found['input_wait'] = self._waited / seconds if seconds else 0.0
        if self._timed:
            found['step_ms'] = 1e3 * seconds / self._timed
        self._start()
        return found


def eta(steps_left: int, measured: Mapping[str, float]) -> float | None:
    """Seconds that the steps that are left will take at the pace of a drained Meter; None where it
    has none.
    """
    return steps_left * measured['step_ms'] / 1e3 if 'step_ms' in measured else None


def _add_to(total: dict[str, list[float]], sums: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (value, weight) in sums.items():
        entry = total.setdefault(name, [0.0, 0.0])
        entry[0] += float(value)
        entry[1] += float(weight)


def means(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """sum / weight of each metric; those without any weight are left out."""
    return {name: total / weight for name, (total, weight) in sums.items() if weight}


def evaluate(
    eval_step: Callable[[Any, Batch], MetricSums], params: Any, batches: Iterable[Batch]
) -> dict[str, float]:
    """Means over all batches, with `masked` and `examples` counted and `mlm_perplexity` where there
    is an MLM loss.
    """
    total: dict[str, list[float]] = {}
    for sums in (jax.device_get(eval_step(params, batch)) for batch in batches):
        _add_to(total, sums)
    found = means(total)
    if 'mlm_loss' in found:
        found['mlm_perplexity'] = math.exp(min(found['mlm_loss'], 700.0))
        found['masked'] = total['mlm_loss'][1]
    if 'nsp_loss' in found:
        found['examples'] = total['nsp_loss'][1]
    return found


def prefetch(batches: Iterator[Any], place: Callable[[Any], Any], size: int = 2) -> Iterator[Any]:
    """Places batches on the devices `size` ahead of their use."""
    queue: collections.deque[Any] = collections.deque(
        place(b) for b in itertools.islice(batches, size)
    )
    while queue:
        yield queue.popleft()
        queue.extend(place(b) for b in itertools.islice(batches, 1))


class Profile:
    """A trace of `steps` steps for TensorBoard's profiler, from SKIPPED steps after `start` on;
    none where `steps` is 0.

    It ends with the step `last` at the latest, and does not begin where nothing would be left of
    it.
    """

    SKIPPED = 10  # the first steps compile and fill buffers

    def __init__(self, folder: str, steps: int, start: int, last: int):
        first = start + self.SKIPPED
        self._folder = folder
        # The steps after which it begins and ends.
        self._between: tuple[int, ...] = ()
        if steps and first < last:
            self._between = (first, min(first + steps, last))

    def after(self, step: int, metrics: MetricSums) -> None:
        """To be called when step number `step` has been dispatched; waits for its metrics where the
        trace begins and ends.
        """
        if step in self._between:
            jax.block_until_ready(metrics)
            try:
                (
                    jax.profiler.start_trace(self._folder)
                    if step == self._between[0]
                    else jax.profiler.stop_trace()
                )
            except (RuntimeError, OSError) as error:  # a full disk, for one: no reason to end a run
                logging.warning('%s: no profile (%s)', self._folder, str(error).split('\n')[0])
                self._between = ()
