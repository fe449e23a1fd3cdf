"""Processes that tests start, and how they end."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 1200  # what a process may take in a slow test; any other test ends sooner


def python(
    *arguments: object, cwd: pathlib.Path = ROOT, **environment: str
) -> subprocess.CompletedProcess:
    """Runs Python with these arguments: code, stdout and stderr."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def ok(run: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    """Fails, with what the program said, unless it succeeded."""
    assert run.returncode == 0, run.stderr or run.stdout
    return run


def mistake(run: subprocess.CompletedProcess) -> str:
    """The last line of a program that ended over a mistake of the user, without a traceback."""
    assert run.returncode == 2 and 'Traceback' not in run.stderr, run.stderr or run.stdout
    return run.stderr.splitlines()[-1]
