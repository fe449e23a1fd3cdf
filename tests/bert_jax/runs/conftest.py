"""The commands in this process: most tests here are of what a command does, not of its start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers import commands


@pytest.fixture(scope='session')
def binary(binary: Callable) -> Callable:
    """Runs a command as `binary` does; without an environment of its own it is run here."""
    return lambda name, *arguments, **own: (binary if own else commands.run)(
        name, *arguments, **own
    )
