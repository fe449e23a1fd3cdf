"""A command in this process, as a shell would run it: without the imports of a new one."""

from __future__ import annotations

import contextlib
import functools
import io
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from unittest import mock

import pytest
from absl import flags, logging


def run(name: str, *arguments: object) -> subprocess.CompletedProcess:
    """Runs `python -m bert_jax.launch.NAME ARGUMENTS` here: code, stdout and stderr.

    Or a file, NAME.py. On the devices of the tests. What is a matter of a process, such as a kill
    or what is imported, needs one of its own.
    """
    argv = [name, *map(str, arguments)]
    is_file = name.endswith('.py')
    start = functools.partial(runpy.run_path, name)
    if not is_file:
        start = functools.partial(runpy.run_module, f'bert_jax.launch.{name}', alter_sys=True)
    out, err = io.StringIO(), io.StringIO()
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    # absl has kept the stderr that was there when it was imported.
    handler = logging.get_absl_handler().python_handler
    stream, code = handler.setStream(err), 0
    try:
        with (
            mock.patch.object(sys, 'argv', argv),
            warnings.catch_warnings(),  # a function of the package may have imported the command
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.filterwarnings('ignore', '.*found in sys.modules', RuntimeWarning)
            start(run_name='__main__')
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        handler.setStream(stream)
        for number, before_it in handlers.items():
            signal.signal(number, before_it)
        flags.FLAGS.set_gnu_getopt(True)  # bert-jax supervise has turned it off
        # The flags of the next command may have the same names; those of libraries stay.
        for flag in list(flags.FLAGS):
            module = str(flags.FLAGS.find_module_defining_flag(flag))
            if module in ('bert_jax.cli.app', name) or module.endswith(f'launch/{name}.py'):
                delattr(flags.FLAGS, flag)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope='session', name='binary')
def in_process(binary: Callable) -> Callable:
    """Runs a command as `binary` does; without an environment of its own it is run here."""
    return lambda name, *arguments, **own: (binary if own else run)(name, *arguments, **own)
