"""Commands of this package as a study starts them, and a line of progress."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from bert_jax.cli import commands as cli_commands


def command(name: str, *arguments: str) -> list[str]:
    """Return the command NAME with its arguments, as it runs from the current folder.

    It is the script for who has called a script, else the module. Either is of the environment that
    this program runs in, which need not be active: plain `python` may be another.
    """
    # What Python was started with: sys.argv names the command's file, whichever way it was called.
    called = Path(sys.orig_argv[1]) if sys.orig_argv[1:] else Path()
    if called.name.startswith('bert-'):
        # Next to the script that was called; by its name alone where a shell would find the same.
        script = called.absolute().with_name(cli_commands.script_name(name))
        typed = script.name if shutil.which(script.name) == str(script) else _short(script)
        return [typed, *arguments]

    # A package of the user's in the current folder may have our name: -P passes it.
    options = [] if Path.cwd() == Path(__file__).parents[3] else ['-P']
    module = f'bert_jax.launch.{name}'
    return [_short(Path(sys.executable)), *options, '-m', module, *arguments]


def _short(path: Path) -> str:
    """Return the path from the current folder where it is below it: it is read by people."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def say(message: str) -> None:
    """Print a line of progress."""
    print(f'[{time.strftime("%H:%M:%S")}] {message}', flush=True)
