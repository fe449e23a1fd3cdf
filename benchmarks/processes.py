"""Runs a program and says what it took: time, processor time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """What a program took, and what it printed."""

    seconds: float
    cpu_seconds: float  # user and system, of all its processes
    peak_bytes: int  # most resident memory of one of its processes
    output: str


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end; SystemExit, after showing its stderr, where it fails."""
    # Files and not pipes: a full pipe would stop the program while nobody reads it.
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env={**os.environ, **(environment or {})}
        )
        # It gives the usage of this child and of those that the child has waited for.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if process.returncode:
            print(err.read(), file=sys.stderr)
            raise SystemExit(f'{" ".join(command)}: exit code {process.returncode}')
        kilobytes = usage.ru_maxrss
        return Cost(seconds, usage.ru_utime + usage.ru_stime, kilobytes * 1024, out.read())
