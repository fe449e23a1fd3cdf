"""The commands as calls of a program: `bert_jax.pretrain`, `finetune` and `evaluate`.

Owns their arguments and what each of them means to a run. A command makes its flags into one such
call. What is here must not read flags.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.cli import app, log
from bert_jax.configs.errors import UserError
from bert_jax.runs.supervision.handlers import handlers_restored

Path = str | os.PathLike[str]
# {'optimizer.weight_decay': 0.1}, or 'optimizer.weight_decay=0.1' of each, as --set has it.
Settings = Mapping[str, Any] | Sequence[str]
# orbax numbers the saves of a process, and two that overlap wait for each other's signals.
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def called() -> Iterator[None]:
    """Be a part of a program: it gets the log of the commands, and its signal handlers back.

    Signals ask a run to save and stop where it is called in the main thread. A call from a second
    thread waits for the first to end.
    """
    if app.in_command():
        yield
        return
    log.set_up_in_program()
    with _ONE_AT_A_TIME, handlers_restored():
        try:
            yield
        except UserError as error:  # which may name the command's flag
            raise UserError(str(error).removeprefix('--')) from error


def paths(given: Path | Sequence[Path]) -> tuple[str, ...]:
    """Return one path or several as strings."""
    several = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(os.fspath(path) for path in several)


def changes_of(settings: Settings) -> list[str]:
    """Return settings as --set takes them: NAME=VALUE."""
    if not isinstance(settings, Mapping):
        return [settings] if isinstance(settings, str) else list(settings)
    return [f'{name}={_text(value)}' for name, value in settings.items()]


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return 'none' if value is None else value
    return json.dumps(value) if isinstance(value, bool | list | tuple | dict) else str(value)
