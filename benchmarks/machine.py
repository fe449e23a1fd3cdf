"""What a measurement was taken on: hardware and versions, for every benchmark's JSON.

And how a benchmark starts and ends.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app

from bert_jax.cli import log
from bert_jax.cli.app import report_end


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Parse absl's flags and call `main`; a mistake of the user's ends it in one line."""

    def call(argv: Sequence[str]) -> None:
        log.set_up()
        with report_end(pathlib.Path(sys.argv[0]).stem):
            main(argv)

    app.run(call)


def describe(*packages: str) -> dict[str, Any]:
    """Return processor, cores, load, memory, and versions of Python and of `packages`."""
    # Names as on the package index: lower case, dashes.
    installed = {
        distribution.name.lower().replace('_', '-'): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    # `load` is how many processes wanted a core in the last minute, this one included.
    return {
        'processor': _value_in('/proc/cpuinfo', 'model name') or platform.processor(),
        'cores': os.cpu_count(),
        'load': round(os.getloadavg()[0], 1),
        'memory_GiB': round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30, 1),
        'system': platform.platform(),
        'python': platform.python_version(),
        **{name: installed[name] for name in packages if name in installed},
    }


def _value_in(file: str, name: str) -> str:
    """Return the value of the first `name : value` line of a file in /proc, or ''."""
    try:
        with open(file) as lines:
            return next(line.partition(':')[2].strip() for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return ''
