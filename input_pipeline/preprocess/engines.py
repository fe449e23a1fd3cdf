"""What runs the tasks of a stage: processes of this machine, or an Apache Beam pipeline.

This file owns worker processes (their number, their peak memory, and what to say when one dies),
pipelines and their options. It must not know what tasks do. Both engines do the same tasks in the
same order, so the bytes are the same. Results are kept by job_directory.py.

In processes every task opens all runs of the stage before. In Beam each run is read once, cut into
the ranges of keys of all tasks, and brought together by GroupByKey. Through Beam's shuffles go
numbers, paths and bytes only, which Beam has coders for; it would pickle anything else. The tasks
travel with the functions, in the pipeline's definition, which Beam itself always pickles.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

from bert_jax.configs.errors import UserError, is_disk_full
from bert_jax.input_pipeline.preprocess import job_stages, sorted_runs
from bert_jax.input_pipeline.preprocess.job_directory import Interrupted, KeptResults
from bert_jax.input_pipeline.progress import Progress

# The stages whose tasks take one range of keys out of every run, and which argument is the list of
# these.
_SHUFFLED = {job_stages.make_records: 4, job_stages.write_output: 3}


class Engine:
    """What runs the tasks of a stage, but those whose results are kept. Use as a context."""

    def __init__(self) -> None:
        self._tasks = self._done_before = 0  # of all stages so far

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs the tasks."""

    def run(
        self,
        function: Callable,
        tasks: Sequence[tuple],
        progress: Progress,
        kept: KeptResults,
        weights: Sequence[float] = (),
    ) -> list[Any]:
        """Return `function(*task)` for every task, in their order.

        `weights` are what each adds to the progress; without, each adds as much.
        """
        weights = weights or [progress.total / len(tasks)] * len(tasks)
        # What an interrupted job has finished counts as progress at once, and is not done again.
        results = kept.load(function)
        self._tasks, self._done_before = self._tasks + len(tasks), self._done_before + len(results)
        done = sum(weights[i] for i in results)
        to_do = {i: task for i, task in enumerate(tasks) if i not in results}
        with progress:
            progress.skip(done)
            for i, result in self._do(function, to_do, len(tasks), kept) if to_do else ():
                results[i] = result
                done += weights[i]
                progress.update(done)

        # In the order of the tasks, whichever ended first: the next stage depends on it.
        return [results[i] for i in range(len(tasks))]

    def _do(
        self, function: Callable, tasks: dict[int, tuple], count: int, kept: KeptResults
    ) -> Iterator[tuple[int, Any]]:
        """Do these of the `count` tasks, keep their results, and yield them by number."""
        raise NotImplementedError

    def cost(self, examples: int) -> str:
        """Return what the last line of the job says of the cost of `examples`."""
        del examples
        return ''


# ---- processes


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


# ---- Apache Beam


class BeamEngine(Engine):
    """Does the tasks of a stage by one pipeline; what they cost is the runner's to say.

    `arguments`: Beam's pipeline options, as on its command lines; without --runner the pipeline
    runs in this process. Raises UserError where apache_beam is not installed.
    """

    def __init__(self, arguments: Sequence[str]):
        super().__init__()
        self._options = _pipeline_options(arguments)

    def _do(
        self, function: Callable, tasks: dict[int, tuple], count: int, kept: KeptResults
    ) -> Iterator[tuple[int, Any]]:
        self._pipeline(function, tasks, count, kept)
        results = kept.load(function)

        # Fewer than tasks? A worker has kept its error, or writes where this process does not look.
        if len(results) < count:
            kept.raise_failure()
            raise Interrupted(
                f'{kept.folder}: has the results of {len(results)} of {count} tasks, and Beam says'
                ' that all are done: --output must be a folder that every worker sees'
            )
        yield from ((i, results[i]) for i in tasks)

    def _pipeline(
        self, function: Callable, tasks: dict[int, tuple], count: int, kept: KeptResults
    ) -> None:
        """Run these of the `count` tasks; what becomes of them is kept."""
        import apache_beam as beam

        with beam.Pipeline(options=self._options) as pipeline:
            if function not in _SHUFFLED:
                # A task's number is all that moves. Spread, or the runner would fuse it with the
                # list that it is in, and one worker would do all.
                _ = (
                    pipeline
                    | 'tasks' >> beam.Create(list(tasks))
                    | 'spread' >> beam.Reshuffle()
                    | function.__name__ >> beam.Map(_attempt, function, tasks, kept)
                )
                return

            # All tasks of such a stage take from the same runs: each run is opened once and cut
            # for all of them, and the tasks travel without it.
            index = _SHUFFLED[function]
            paths = next(iter(tasks.values()))[index]
            bare = {i: (*task[:index], *task[index + 1 :]) for i, task in tasks.items()}
            _ = (
                pipeline
                | 'runs' >> beam.Create(list(enumerate(paths)))
                | 'spread' >> beam.Reshuffle()
                # The declared types choose the coder: without them Beam would take its general one.
                | 'cut'
                >> beam.FlatMap(_cut, list(tasks), count).with_output_types(
                    tuple[int, tuple[int, bytes]]
                )
                | 'bring together' >> beam.GroupByKey()
                | function.__name__ >> beam.Map(_call_with_runs, function, index, bare, kept)
            )


def _pipeline_options(arguments: Sequence[str]) -> Any:
    try:
        import apache_beam as beam
    except ImportError:
        raise UserError(
            '--engine=beam: Apache Beam is not installed: pip install -c constraints-beam.txt'
            " '.[beam]' in an environment of its own (it needs older versions of some packages)"
        ) from None

    # Named, because Beam's own choice, DirectRunner, may be a runner that it downloads first. The
    # last one counts.
    options = beam.options.pipeline_options.PipelineOptions(['--runner=FnApiRunner', *arguments])
    try:
        beam.Pipeline(options=options)  # finds the runner and has the options checked
    except (ValueError, ImportError, AttributeError) as error:
        raise UserError(f'-- {" ".join(arguments)}: {error}') from error
    return options


# What workers of Beam do: functions of this module, so that they travel by name.


def _cut(
    element: tuple[int, str], numbers: list[int], count: int
) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yield (task number, (number of the run, its stretch for that task)) for each task.

    They are these of `count` tasks. A stretch is what `sorted_runs.dump` makes of it.
    """
    run_number, path = element
    run = sorted_runs.load(path)
    for number in numbers:
        stretch = sorted_runs.within(run, *sorted_runs.key_range(number, count))
        # Of the first run an empty one too, so that each task has a group.
        if stretch.num_rows or run_number == 0:
            yield number, (run_number, sorted_runs.dump(stretch).to_pybytes())


def _call_with_runs(
    group: tuple[int, Iterable[tuple[int, bytes]]],
    function: Callable,
    index: int,
    tasks: dict[int, tuple],
    kept: KeptResults,
) -> None:
    """Do a task of `tasks`, which lack argument number `index`: the runs of the group."""
    # In the order of the runs, as the local engine has them: GroupByKey promises none.
    number, stretches = group
    of_group = [
        sorted_runs.parse(content) for _, content in sorted(stretches, key=lambda run: run[0])
    ]

    task = tasks[number]
    whole = (*task[:index], of_group, *task[index:])
    _attempt(number, function, {number: whole}, kept)


def _attempt(number: int, function: Callable, tasks: dict[int, tuple], kept: KeptResults) -> None:
    """Keep the result of one of the tasks, or its error where that is the user's to mend.

    Raised, it would come back as the runner's own, after retries.
    """
    try:
        kept.run(number, function, tasks[number])
    # What another attempt would meet again. Any other error is the runner's: it tries again.
    except UserError as error:
        kept.fail(number, error)
    except OSError as error:
        if not is_disk_full(error):
            raise
        kept.fail(number, error)
