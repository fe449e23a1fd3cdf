"""The mechanics of a training loop: metrics read one step late, evaluation sums, signals, prefetch.

Owns nothing of what is trained or logged: the loops themselves, which read as recipes, are in launch/.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from bert_jax.losses import Batch, Sums
from configs.errors import UserError


class Meter:
    """Adds up (sum, weight) metrics of steps, fetching each step's only when the next has been dispatched.

    So the device never waits for the host, and the host is never more than one step ahead.
    """

    def __init__(self, max_bad_steps: int):
        self._max_bad_steps = max_bad_steps
        self._pending: Sums | None = None
        self._start()

    def _start(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._steps, self._discarded, self._since = 0, 0, time.perf_counter()
        self._waited = 0.0

    def push(self, metrics: Sums) -> None:
        """Takes the metrics of the step just dispatched. UserError after too many non-finite steps in a row."""
        before, self._pending = self._pending, metrics
        if before is not None:
            self._add(before)

    def _add(self, metrics: Sums) -> None:
        host = {name: (float(s), float(w)) for name, (s, w) in jax.device_get(metrics).items()}
        bad, _ = host.pop('bad_steps')
        self._steps += 1
        if bad:  # a discarded step: counted, and kept out of the means
            self._discarded += 1
            if bad >= self._max_bad_steps:
                raise UserError(
                    f'{int(bad)} steps in a row had a non-finite loss or gradient and were discarded: lower optimizer.peak_lr, '
                    'lengthen optimizer.warmup_steps, or look at the data (python -m launch.verify_data)'
                )
            return
        _add_to(self._sums, host)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the time inside the block out of `seconds`: evaluation is not training."""
        started = time.perf_counter()
        yield
        self._since += time.perf_counter() - started

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside the block as waiting for input."""
        started = time.perf_counter()
        yield
        self._waited += time.perf_counter() - started

    def drain(self) -> dict[str, float]:
        """Means since the last call, with `steps`, `seconds` and `discarded_steps`; waits for the pending step.

        `input_wait` is the share of the seconds in which the host waited for the next batch.
        """
        if self._pending is not None:
            self._add(self._pending)
            self._pending = None
        found = means(self._sums)
        seconds = time.perf_counter() - self._since
        found |= {'steps': self._steps, 'seconds': seconds, 'discarded_steps': self._discarded, 'input_wait': self._waited / seconds}
        self._start()
        return found


def _add_to(total: dict[str, list[float]], sums: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (value, weight) in sums.items():
        entry = total.setdefault(name, [0.0, 0.0])
        entry[0] += float(value)
        entry[1] += float(weight)


def means(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """sum / weight of each metric; those without any weight are left out."""
    return {name: total / weight for name, (total, weight) in sums.items() if weight}


def evaluate(eval_step: Callable[[Any, Batch], Sums], params: Any, batches: Iterable[Batch]) -> dict[str, float]:
    """Means over all batches, with `masked` and `examples` counted and `mlm_perplexity` where there is an MLM loss."""
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
    queue: collections.deque[Any] = collections.deque(place(b) for b in itertools.islice(batches, size))
    while queue:
        yield queue.popleft()
        queue.extend(place(b) for b in itertools.islice(batches, 1))


class Profile:
    """A trace of `steps` steps for TensorBoard's profiler, from SKIPPED steps after `start` on; none where `steps` is 0.

    It ends with the step `last` at the latest, and does not begin where nothing would be left of it.
    """

    SKIPPED = 10  # the first steps compile and fill buffers

    def __init__(self, folder: str, steps: int, start: int, last: int):
        first = start + self.SKIPPED
        self._folder, self._between = folder, (first, min(first + steps, last)) if steps and first < last else ()

    def after(self, step: int, metrics: Sums) -> None:
        """To be called when step number `step` has been dispatched; waits for its metrics where the trace begins and ends."""
        if step in self._between:
            jax.block_until_ready(metrics)
            jax.profiler.start_trace(self._folder) if step == self._between[0] else jax.profiler.stop_trace()


class StopSignal:
    """SIGTERM and SIGINT ask the loop to save and stop; a second one ends the process at once."""

    def __init__(self):
        self.received: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        del frame
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number
