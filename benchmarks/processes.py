"""Runs a program and says what it took: time, processor time and memory, of all its processes."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """What a program took, and what it printed."""

    seconds: float
    cpu_seconds: float  # user and system, of all its processes
    peak_bytes: int  # most resident memory of all of them together; 0 where /proc does not tell
    output: str


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end; SystemExit, after showing its stderr, where it fails."""
    # Memory is sampled, 20 times a second: Linux keeps the peak of each process alone, and not of
    # all of them together.
    peak, ended = [0], threading.Event()

    def watch(process: int) -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], resident(process))

    # Files and not pipes: a full pipe would stop the program while nobody reads it.
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env={**os.environ, **(environment or {})}
        )
        watching = threading.Thread(target=watch, args=(process.pid,))
        watching.start()
        # It gives the usage of this child and of those that the child has waited for.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watching.join()
        out.seek(0), err.seek(0)
        if process.returncode:
            print(err.read(), file=sys.stderr)
            raise SystemExit(f'{" ".join(command)}: exit code {process.returncode}')
        return Cost(seconds, usage.ru_utime + usage.ru_stime, peak[0], out.read())


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process and its descendants; 0 where /proc has none.

    Of those that have ended only what was waited for.
    """
    total = 0.0
    try:
        with open(f'/proc/{process}/stat') as file:
            # Behind the name, which may hold anything: user and system, then those of ended
            # children (man 5 proc).
            ticks = file.read().rpartition(')')[2].split()[11:15]
        total = sum(map(int, ticks)) / os.sysconf('SC_CLK_TCK')
        total += sum(cpu_seconds(child) for child in children(process))
    except (OSError, IndexError):  # it has ended meanwhile
        pass
    return total


def resident(process: int) -> int:
    """Return resident bytes of a process and its descendants; shared pages count for each."""
    # From the process down through its children; whatever ends meanwhile counts with what it had.
    total = 0
    try:
        with open(f'/proc/{process}/statm') as file:
            total = int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
        total += sum(resident(child) for child in children(process))
    except (OSError, IndexError):  # it has ended meanwhile
        pass
    return total


def children(process: int) -> list[int]:
    """Return the processes that a process has started; OSError where it ends meanwhile."""
    ids = []
    for path in glob.glob(f'/proc/{process}/task/*/children'):
        with open(path) as file:
            ids += map(int, file.read().split())
    return ids
