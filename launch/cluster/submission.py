"""What a launcher starts, and how it is handed to the scheduler's own program.

Owns the command that stands after `--`, and the one-line errors of a scheduler that refuses or is
not here. Must not know any scheduler.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from configs.errors import UserError


def command_of(argv: Sequence[str]) -> list[str]:
    """The words after `--`; `argv` is that of a command's main. UserError where there are none."""
    if not argv[1:]:
        raise UserError(
            'there is no command: write it after --, as in: -- python -m launch.pretrain'
            ' --config=bert_base ...'
        )
    return list(argv[1:])


def submit(program: Sequence[str], text: str) -> str:
    """Runs `program` with `text` on its stdin; -> what it says on stdout.

    UserError where it is not installed here, or refuses.
    """
    try:
        done = subprocess.run(program, input=text, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(
            f'{program[0]} is not installed here: run this where it is (--dry_run shows what would'
            ' be submitted)'
        ) from error

    # All that it says, which becomes one line: the reason need not be the last.
    if done.returncode:
        said = done.stderr.strip() or f'exit code {done.returncode}'
        raise UserError(
            f'{program[0]} refuses: {said[:1000]} (--dry_run shows what would be submitted)'
        )
    return done.stdout.strip()
