"""Commands of this package as a program starts them, and as people read and repeat them.

Owns how a command is written, and the lines of progress around it. It must not know what it does.
"""

from __future__ import annotations

import importlib.util
import runpy
import shlex
import shutil
import sys
import time
from pathlib import Path

from absl import flags

from bert_jax.cli import app
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


def run(name: str, *arguments: str) -> None:
    """Run the command NAME in this process, and end this program where it fails.

    The line that a user would type for it is printed before. A process of its own would import jax
    again, which takes seconds.
    """
    say('$ ' + shlex.join(command(name, *arguments)))
    if code := _call(name, *arguments):
        say(
            f'{cli_commands.script_name(name)} failed (exit code {code}), see above; the same'
            ' command goes on from here'
        )
        sys.exit(code)


def _call(name: str, *arguments: str) -> int:
    """Run a command as its script would, and return its exit code.

    The flags of the command that this process was started as are gone afterwards: two commands may
    have flags of one name.
    """
    started_as, module = sys.argv, f'bert_jax.launch.{name}'
    _forget_flags()
    # The path of its file, as runpy has it: by that absl knows whose flags they are.
    spec = importlib.util.find_spec(module)
    sys.argv = [spec.origin if spec and spec.origin else name, *arguments]
    try:
        runpy.run_module(module, run_name='__main__', alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        _forget_flags()
        sys.argv = started_as
    return 0


def _forget_flags() -> None:
    """Take the flags of the command under way away, so that others may have their names."""
    for flag in app.own_flags():
        delattr(flags.FLAGS, flag.name)


def say(message: str) -> None:
    """Print a line of progress."""
    print(f'[{time.strftime("%H:%M:%S")}] {message}', flush=True)
