"""The results of a stage's tasks, kept as soon as each is there, so that an interrupted job does none of them twice.

Owns their files; must not know what the tasks do or who runs them. A result is kept after the
files that its task writes, which all appear whole: what is kept is finished.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etils import epath

from input_pipeline.whole_file import whole_file


@dataclass(frozen=True)
class KeptResults:
    """The results of one stage, in a folder that every worker sees."""

    folder: str

    def found(self) -> dict[int, Any]:
        """The results that are there, by the numbers of their tasks."""
        folder = epath.Path(self.folder)
        if not folder.exists():
            return {}
        return {int(path.name): pickle.loads(path.read_bytes()) for path in folder.iterdir() if path.name.isdigit()}

    def run(self, number: int, function: Callable, task: tuple) -> Any:
        """`function(*task)`, and keeps what it gives as the result of task `number`."""
        result = function(*task)
        epath.Path(self.folder).mkdir(parents=True, exist_ok=True)
        with whole_file(f'{self.folder}/{number:06}', durable=False) as file:
            file.write(pickle.dumps(result))
        return result
