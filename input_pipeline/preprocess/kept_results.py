"""The results of a stage's tasks, kept as soon as each is there.

So an interrupted job does none of them twice. Owns their files, which are JSON; must not know what
the tasks do or who runs them. A result is kept after the files that its task writes, which all
appear whole: what is kept is finished.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files import typed_json
from bert_jax.input_pipeline.preprocess.runs import sealed_file, unsealed

_READERS = 32  # files read at once: a bucket in the cloud takes its time for each
_FAILED = '.failed'


@dataclass(frozen=True)
class KeptResults:
    """The results of one stage, in a folder that every worker sees."""

    folder: str

    def load(self, function: Callable) -> dict[int, Any]:
        """The results of `function` that are there, by the numbers of their tasks.

        They are what its annotation says that it returns. Raises UserError for a file that is
        something else.
        """
        # Digits only: beside results lie failures, and files whose writer was killed.
        paths = {int(path.name): path for path in self._files() if path.name.isdigit()}
        if not paths:
            return {}

        # The type comes from our code, never from the file: what a file says is only values.
        kind = typing.get_type_hints(function)['return']
        with ThreadPoolExecutor(_READERS) as pool:
            return dict(zip(paths, pool.map(lambda path: _read(path, kind), paths.values())))

    def _files(self) -> list[epath.Path]:
        folder = epath.Path(self.folder)
        return list(folder.iterdir()) if folder.exists() else []

    def run(self, number: int, function: Callable, task: tuple) -> Any:
        """`function(*task)`, and keeps what it gives as the result of task `number`."""
        result = function(*task)
        self._write(f'{number:06}', typed_json.dump(result))
        return result

    def _write(self, name: str, text: str) -> None:
        folder = epath.Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with sealed_file(str(folder / name)) as file:
            file.write(text.encode())

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Leaves these results alone, {number: its new number}."""
        # By way of another folder, where no two numbers meet; the rest goes with the old one. What
        # an interruption leaves on the way is made again.
        folder, between = epath.Path(self.folder), epath.Path(f'{self.folder}.new')
        between.rmtree(missing_ok=True)
        between.mkdir(parents=True)
        for old, new in numbers.items():
            (folder / f'{old:06}').replace(between / f'{new:06}')
        folder.rmtree(missing_ok=True)
        folder.mkdir()
        for path in between.iterdir():
            path.replace(folder / path.name)
        between.rmtree()

    def fail(self, number: int, error: UserError | OSError) -> None:
        """Keeps the error that ended task `number`, for another process to raise."""
        # Number and words apart: a full disk has to be an OSError again where it is raised, for
        # job_directory.py leaves the work in place then.
        code = error.errno if isinstance(error, OSError) else None
        said = error.strerror if isinstance(error, OSError) else str(error)
        self._write(f'{number:06}{_FAILED}', json.dumps([code, said]))

    def raise_failure(self) -> None:
        """Raises the first error that is kept, where there is one, and forgets all of them."""
        paths = sorted(path for path in self._files() if path.name.endswith(_FAILED))
        failures = [_read(path, tuple[int | None, str]) for path in paths]

        # Forgotten before the first is raised: the next attempt shall fail for its own reasons.
        for path in paths:
            path.unlink(missing_ok=True)

        for code, said in failures:
            raise UserError(said) if code is None else OSError(code, said)


def _read(path: epath.Path, kind: Any) -> Any:
    try:
        return typed_json.load(kind, unsealed(path.read_bytes()))
    except ValueError as error:
        raise UserError(
            f'{path}: is not what this job wrote there ({error}): run the same command again, which'
            ' begins anew'
        ) from error
