"""What a run says while it goes on: short lines on stderr, from a shell as from a program.

Owns the form of a line, and whose lines are shown. It must not know flags but absl's --verbosity.
"""

from __future__ import annotations

import logging as std_logging
import pathlib
import sys
import warnings
from typing import TextIO

from absl import flags, logging

# Of the source, or of the installed packages: what lies below it is ours.
ROOT = pathlib.Path(__file__).parents[1]


def set_up(in_program: bool = False) -> None:
    """Write short lines on stderr, of libraries from a warning on.

    With --verbosity=0 all lines of theirs, with 1 Python's warnings too. Lines of the program that
    makes a call (`in_program`) are shown as ours are.
    """
    # Time, the level's letter and the message: enough to follow a run.
    handler = logging.get_absl_handler()
    handler.setFormatter(
        std_logging.Formatter('%(asctime)s %(levelname).1s %(message)s', '%H:%M:%S')
    )

    # Python's warnings speak to who writes programs, with a library's path: for --verbosity=1, or
    # as Python was asked to show them.
    if not sys.warnoptions:
        warnings.showwarning = _tell_of_debugging
    # It warns of its fonts and of its cache, which are no affair of a run.
    std_logging.getLogger('matplotlib').setLevel(std_logging.ERROR)

    # At the level of information libraries say much that is about themselves.
    if not flags.FLAGS['verbosity'].present:
        handler.addFilter(
            lambda record: (
                record.levelno >= std_logging.WARNING
                or record.pathname.startswith(f'{ROOT}/')
                or (in_program and 'site-packages' not in record.pathname)
            )
        )


def _tell_of_debugging(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Return a warning of Python's, where --verbosity=1 asks for all that is said."""
    del filename, lineno, file, line
    logging.debug('%s: %s', category.__name__, message)


def set_up_in_program() -> None:
    """Write the same lines for a call from a program or notebook that has set up no log itself."""
    if std_logging.root.handlers:
        return
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # else absl says with the first line that they are not
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    set_up(in_program=True)
