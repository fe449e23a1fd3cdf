"""The results of a stage's tasks, kept as soon as each is there, and an engine that asks.

So an interrupted job does none of them twice. Owns the files of results, which are JSON, and what
the engines have in common; must not know what the tasks do. A result is kept after the files that
its task writes, which all appear whole: what is kept is finished.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files import typed_json
from bert_jax.input_pipeline.preprocess.runs import sealed_file, unsealed
from bert_jax.input_pipeline.progress import Progress

_READERS = 32  # files read at once: a bucket in the cloud takes its time for each
_FAILED = '.failed'


@dataclass(frozen=True)
class KeptResults:
    """The results of one stage, in a folder that every worker sees."""

    folder: str
    names: tuple[str, ...]  # of the stage's tasks, by their numbers

    @classmethod
    def numbered(cls, folder: str, tasks: int) -> KeptResults:
        """Return the results of tasks that have no other names than their numbers."""
        return cls(folder, tuple(f'{number:06}' for number in range(tasks)))

    def load(self, function: Callable) -> dict[int, Any]:
        """Return the results of `function` that are there, by the numbers of their tasks.

        They are what its annotation says that it returns. Raises UserError for a file that is
        something else.
        """
        # Other files are failures, or of tasks that are no more, or their writer was killed.
        files = {path.name: path for path in self._files()}
        paths = {i: files[name] for i, name in enumerate(self.names) if name in files}

        # The type comes from our code, never from the file: what a file says is only values.
        kind = typing.get_type_hints(function)['return'] if paths else None
        with ThreadPoolExecutor(_READERS) as pool:
            return dict(zip(paths, pool.map(lambda path: _read(path, kind), paths.values())))

    def _files(self) -> list[epath.Path]:
        folder = epath.Path(self.folder)
        return list(folder.iterdir()) if folder.exists() else []

    def run(self, number: int, function: Callable, task: tuple) -> Any:
        """Return `function(*task)`, and keep it as the result of task `number`."""
        result = function(*task)
        self._write(self.names[number], typed_json.dump(result))
        return result

    def _write(self, name: str, text: str) -> None:
        folder = epath.Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with sealed_file(str(folder / name)) as file:
            file.write(text.encode())

    def remove(self, number: int) -> None:
        """Remove the result of a task."""
        (epath.Path(self.folder) / self.names[number]).unlink()

    def fail(self, number: int, error: UserError | OSError) -> None:
        """Keep the error that ended task `number`, for another process to raise."""
        # Number and words apart: a full disk has to be an OSError again where it is raised, for
        # job_directory.py leaves the work in place then.
        code = error.errno if isinstance(error, OSError) else None
        message = error.strerror if isinstance(error, OSError) else str(error)
        self._write(f'{self.names[number]}{_FAILED}', json.dumps([code, message]))

    def raise_failure(self) -> None:
        """Raise the first error that is kept, if any, and forget all of them."""
        paths = sorted(path for path in self._files() if path.name.endswith(_FAILED))
        failures = [_read(path, tuple[int | None, str]) for path in paths]

        # Forgotten before the first is raised: the next attempt shall fail for its own reasons.
        for path in paths:
            path.unlink(missing_ok=True)

        for code, message in failures:
            raise UserError(message) if code is None else OSError(code, message)


def _read(path: epath.Path, kind: Any) -> Any:
    try:
        return typed_json.load(kind, unsealed(path.read_bytes()))
    except ValueError as error:
        raise UserError(
            f'{path}: is not what this job wrote there ({error}): run the same command again, which'
            ' begins anew'
        ) from error


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
