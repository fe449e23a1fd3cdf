"""The commands in this process: most tests here are of what a command does, not of its start."""

from tests.helpers.checkpoints import whole_arrays  # noqa: F401
from tests.helpers.commands import in_process  # noqa: F401
