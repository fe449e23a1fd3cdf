"""Runs a stage's tasks as an Apache Beam pipeline, on whatever runner Beam has.

The tasks, their order and their results are those of local_engine.py, so the bytes are the
same. What differs is how the runs of one stage reach the next: there every task opens all of
them, here each is read once, cut into the ranges of keys of all tasks, and brought together by
Beam's GroupByKey. Results come back as the files that kept_results.py keeps, in the folder in
which a job works, which has to be one that every worker sees.

Through Beam's shuffles go numbers, paths and bytes only, which Beam has coders for; it would
pickle anything else. The tasks travel with the functions, in the pipeline's definition, which
Beam itself always pickles. This file owns pipelines and their options; it must not know what
tasks do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bert_jax.configs.errors import UserError, is_disk_full
from bert_jax.input_pipeline.preprocess import runs, stages
from bert_jax.input_pipeline.preprocess.job_directory import Interrupted
from bert_jax.input_pipeline.preprocess.kept_results import Engine, KeptResults

# The stages whose tasks take one range of keys out of every run, and which argument is the list of
# these.
_SHUFFLED = {stages.make_records: 4, stages.write_output: 3}


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


# ---- what workers do: functions of this module, so that they travel by name


def _cut(
    element: tuple[int, str], numbers: list[int], count: int
) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yield (task number, (number of the run, its stretch for that task)) for each task.

    They are these of `count` tasks. A stretch is what `runs.dump` makes of it.
    """
    run_number, path = element
    run = runs.load(path)
    for number in numbers:
        stretch = runs.within(run, *runs.key_range(number, count))
        # Of the first run an empty one too, so that each task has a group.
        if stretch.num_rows or run_number == 0:
            yield number, (run_number, runs.dump(stretch).to_pybytes())


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
    of_group = [runs.parse(content) for _, content in sorted(stretches, key=lambda run: run[0])]

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
