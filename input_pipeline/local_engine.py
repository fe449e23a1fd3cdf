"""Runs a stage's tasks in this process or in several, and adds up what they cost.

This file owns the worker processes: their number, their peak memory, and what to say when
one dies. It must not know what the tasks do; their results come back in the order of the
tasks, whichever ended first.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

from configs.errors import UserError
from input_pipeline.progress import Progress
from input_pipeline.stages import peak_memory


class LocalEngine:
    """`workers` processes, started afresh (spawn), or none where `workers` is 1: use as a context."""

    def __init__(self, workers: int):
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._peaks: dict[int, int] = {}
        self._cpu_before = _cpu_seconds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run(self, function: Callable, tasks: Sequence[tuple], weights: Sequence[float], progress: Progress) -> list[Any]:
        """`function(*task)` for every task; `weights` are what each adds to the progress."""
        results: list[Any] = [None] * len(tasks)
        done = 0.0
        if self._workers == 1 or (self._pool is None and len(tasks) == 1):
            for i, task in enumerate(tasks):
                results[i] = function(*task)
                done += weights[i]
                progress.update(done)
        else:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self._workers, multiprocessing.get_context('spawn'), _end_with_parent)
            try:
                futures = {self._pool.submit(_measured, function, task): i for i, task in enumerate(tasks)}
                for future in as_completed(futures):
                    i = futures[future]
                    results[i], process, peak = future.result()
                    self._peaks[process] = max(peak, self._peaks.get(process, 0))
                    done += weights[i]
                    progress.update(done)
            except BrokenProcessPool:
                raise UserError(
                    'a worker process died (killed by the system, perhaps for memory): nothing was written; run again, with fewer --workers if memory is short'
                ) from None
        progress.done()
        return results

    def cost(self, examples: int) -> str:
        """What the last line of the job says: CPU-seconds of this process and its workers since the engine was made, and the sum of their peaks.

        Workers count once the context is left, when they have ended.
        """
        cpu, peak = _cpu_seconds() - self._cpu_before, peak_memory() + sum(self._peaks.values())
        return f', {cpu:.1f} CPU-seconds: {examples / cpu:,.0f} examples/CPU-second; peak memory {peak / 2**20:,.0f} MiB over all processes'


def _end_with_parent() -> None:
    """Ends this worker when the job is killed: an idle worker would wait for its next task for ever."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measured(function: Callable, task: tuple) -> tuple[Any, int, int]:
    return function(*task), os.getpid(), peak_memory()


def _cpu_seconds() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)
