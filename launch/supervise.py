"""Runs a command again until it is done: after a crash, a preemption or a lost host.

  bert-jax supervise [--max_restarts=1000] -- bert-pretrain ... --workdir=DIR

A run of bert-pretrain goes on from its newest checkpoint, so that to restart is to resume. Exit
code 0 of the command means done, 2 a mistake in its flags or data, which no restart mends: both are
passed on. Anything else, death by a signal included, is tried again after a pause, which doubles
while runs keep dying soon. SIGTERM and SIGINT to the supervisor go to the command, which saves; it
is not started again. So does the end of the terminal (SIGHUP), as SIGTERM, unless nohup keeps it
away. Of several processes each has its own supervisor: when one dies the others end too, and all
start again.
"""

from __future__ import annotations

from dataclasses import dataclass

from absl import flags

from bert_jax.cli import app
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.runs.supervision.supervisor import RestartOptions


@dataclass(frozen=True)
class Supervise(RestartOptions):
    """Run a command again until it is done.

    Attributes:
      command: the command, of which everything is, flags too.
    """

    command: tuple[str, ...] = option((), words='-- COMMAND')

    def __call__(self) -> int:
        """Return the exit code of the command."""
        if not self.command:
            raise UserError(
                'there is no command: write it after --, as in: bert-jax supervise --'
                ' bert-pretrain ...'
            )
        from bert_jax.runs.supervision.supervisor import Supervisor

        return Supervisor(list(self.command)).run(self)


if __name__ == '__main__':
    flags.FLAGS.set_gnu_getopt(False)  # the flags of a command are its own, with or without --
    app.run(Supervise)
