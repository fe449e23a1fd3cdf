"""Actions as Python functions: `bert_jax.pretrain`, `finetune`, `evaluate` and others.

Owns what a call of a program has that a command has not: the log, the signal handlers given back,
one call at a time, and paths and settings as Python has them. An action is a dataclass of a command
(bert_jax/cli/flags.py). What is here must not read flags.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from bert_jax.cli import app, flags, log
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import list_command_options
from bert_jax.runs.supervision.handlers import handlers_restored

Path = str | os.PathLike[str]
# {'optimizer.weight_decay': 0.1}, or 'optimizer.weight_decay=0.1' of each, as --set has it.
Settings = Mapping[str, Any] | Sequence[str]
# orbax numbers the saves of a process, and two that overlap wait for each other's signals.
_ONE_AT_A_TIME = threading.RLock()

P = ParamSpec('P')
R = TypeVar('R')
R_co = TypeVar('R_co', covariant=True)


class Action(Protocol[R_co]):
    """What does one thing when it is called."""

    def __call__(self) -> R_co:
        """Do it, and return what it comes to."""


def make_function(action: Callable[P, Action[R]]) -> Callable[P, R]:
    """Return a function that carries out an action with its arguments as the action's options.

    It gets the log of the commands, and its signal handlers back. Signals ask a run to save and
    stop where it is called in the main thread. A call from a second thread waits for the first to
    end.
    """

    @functools.wraps(action, updated=())
    def call(*args: P.args, **options: P.kwargs) -> R:
        with _enter_call():
            plain: Any = action
            return plain(*map(_convert, args), **_convert_all(options))()

    # As the help of the command: its options may be those of several classes.
    if isinstance(action, type):
        call.__doc__ = _write_docstring(action)
    return call


def make_function_of_several(actions: Sequence[type], positional: str) -> Callable[..., Any]:
    """Return a function that carries out that of several actions which has the given options.

    Args:
      actions: the actions, of which the first is meant where nothing tells.
      positional: the option that may be given without its name.
    """

    def call(*args: Any, **options: Any) -> Any:
        given = {name: value for name, value in options.items() if value is not None}
        if len(args) > 1:
            raise TypeError(f'one positional argument is taken, {positional}: name the others')
        given |= dict(zip((positional,), args))
        for name in given:
            if not any(name in list_command_options(action) for action in actions):
                raise TypeError(f'unexpected keyword argument {name!r}')
        with _enter_call():
            given = _convert_all(given)
            action = flags.choose(actions, given)
            fields = {name: field.name for name, field in list_command_options(action).items()}
            return action(**{fields[name]: value for name, value in given.items()})()

    call.__doc__ = '\n\n'.join(map(_write_docstring, actions))
    return call


def _write_docstring(action: type) -> str:
    """Return what the docstring of an action says before its options, and all of its options."""
    opening = inspect.cleandoc(action.__doc__ or '').partition('\n\nAttributes:')[0]
    lines = [opening, '', 'Args:']
    for field in list_command_options(action).values():
        lines.append(f'  {field.name}: {field.option.help if field.option else ""}.')
    return '\n'.join(lines)


@contextlib.contextmanager
def _enter_call() -> Iterator[None]:
    """Be a part of a program; a command that calls a function stays as it is."""
    if app.in_command():
        yield
        return
    log.set_up_in_program()
    with _ONE_AT_A_TIME, handlers_restored():
        try:
            yield
        except UserError as error:  # which may name the command's flag
            raise UserError(str(error).removeprefix('--')) from error


def _convert_all(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _convert(value) for name, value in options.items()}


def _convert(value: Any) -> Any:
    """Return a path, or the paths of a list, as strings; a list as a tuple; all else as it is."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return tuple(map(_convert, value))
    return value


def list_paths(given: Path | Sequence[Path]) -> tuple[str, ...]:
    """Return one path or several as strings."""
    several = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(os.fspath(path) for path in several)


def list_settings(settings: Settings) -> list[str]:
    """Return settings as --set takes them: NAME=VALUE."""
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f'{name}={_write(value)}' for name, value in settings.items()]


def _write(value: Any) -> str:
    if value is None:
        return 'none'
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value)
    return str(value)
