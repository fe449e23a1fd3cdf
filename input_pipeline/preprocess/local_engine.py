"""Runs a stage's tasks in this process or in several, and adds up what they cost.

This file owns the worker processes: their number, their peak memory, and what to say when
one dies. It must not know what the tasks do.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bert_jax.input_pipeline.preprocess.job_directory import Interrupted
from bert_jax.input_pipeline.preprocess.kept_results import Engine, KeptResults


class LocalEngine(Engine):
    """`workers` processes, started new (spawn), or none where `workers` is 1."""

    def __init__(self, workers: int):
        super().__init__()
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None  # made when the first stage needs it
        self._peaks: dict[int, int] = {}  # bytes, by process id
        self._cpu_before = _cpu_seconds()

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _do(
        self, function: Callable, tasks: dict[int, tuple], count: int, kept: KeptResults
    ) -> Iterator[tuple[int, Any]]:
        # In this process where one worker is wanted, or starting several costs more than one task.
        if self._workers == 1 or (self._pool is None and len(tasks) == 1):
            for i, task in tasks.items():
                yield i, kept.run(i, function, task)
            return

        # One pool for all stages. Spawned, not forked: a copy of a process that has threads may
        # hang, and workers shall not hold a copy of this one's memory.
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers, multiprocessing.get_context('spawn'), _end_with_parent
            )

        # All tasks are handed out at once and taken in as they end, so that no worker waits for the
        # slowest of a round; each keeps its result itself before it is reported.
        try:
            run = self._pool.submit
            futures = {run(_measured, kept, i, function, task): i for i, task in tasks.items()}
            for future in as_completed(futures):
                result, process, peak = future.result()
                self._peaks[process] = max(peak, self._peaks.get(process, 0))
                yield futures[future], result
        except BrokenProcessPool:
            raise Interrupted(
                'a worker process died (killed by the system, perhaps for memory): no records were'
                ' written; the same command goes on from here, with fewer --workers if memory is'
                ' short'
            ) from None

    def cost(self, examples: int) -> str:
        """Return what the last line of the job says of CPU-seconds and memory.

        CPU-seconds of this process and its workers since the engine was made, and the sum of their
        peaks. Workers count once the context is left, when they have ended.
        """
        # Peaks of different moments are added: an upper bound of what was held at once.
        cpu, peak = _cpu_seconds() - self._cpu_before, _peak_memory() + sum(self._peaks.values())
        rate = f': {examples / cpu:,.0f} examples/CPU-second'

        # It would be wrong where part of the examples was paid for by an earlier run.
        if self._done_before:
            done = self._tasks - self._done_before
            rate = f' for {done} of {self._tasks} tasks, the others done before'
        memory = f'{peak / 2**20:,.0f} MiB'
        return f', {cpu:.2f} CPU-seconds{rate}; peak memory {memory} over all processes'


def _end_with_parent() -> None:
    """End this worker when the job is killed, and at Ctrl-C without a traceback.

    An idle one would wait for its next task for ever.
    """
    # Ctrl-C reaches all processes of the terminal: the parent alone says what happened.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    parent = multiprocessing.parent_process()
    assert parent is not None, 'this runs in a worker'

    # In a thread of its own: the worker itself is busy with a task, or waits for one. Without
    # clean-up, for files in the making have temporary names only.
    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measured(
    kept: KeptResults, number: int, function: Callable, task: tuple
) -> tuple[Any, int, int]:
    return kept.run(number, function, task), os.getpid(), _peak_memory()


def _cpu_seconds() -> float:
    # Children count once they have ended and were waited for.
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def _peak_memory() -> int:
    """Return the highest resident memory of this process so far, in bytes."""
    # ru_maxrss on Linux counts what the parent held when it spawned; VmHWM is this program's own.
    try:
        with open('/proc/self/status') as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith('VmHWM'))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS gives bytes, the others kilobytes.
        return peak if sys.platform == 'darwin' else peak * 1024
