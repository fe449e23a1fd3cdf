"""Submits a run to Slurm: one process for each node or each GPU, put back into the queue when its
time is up.

  python -m launch.slurm --nodes=2 --gpus=8 --time=24:00:00 -- \\
      python -m launch.pretrain --config=bert_base --data=DIR --workdir=DIR

The job is a batch script, which --dry_run prints and does not submit. Each process runs the command
under launch.supervise, told where process 0 is and which it is itself, and has a log of its own. A
while before the job's time ends, and when it is preempted, the run saves and stops, and the job is
put back into the queue, where it goes on from its newest checkpoint. `scancel --signal=INT JOB`
saves and stops for good. The folder from which it is submitted and the environment of this Python
must be there on the nodes too (a shared disk).
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from configs.errors import UserError
from configs.options import option
from launch import app, flags


@dataclass(frozen=True)
class Options:
    """What the job asks for, and how its processes stand on the nodes."""

    nodes: int = option(1, 'nodes of the job', bounds=(1, None))
    gpus: int = option(0, 'GPUs of each node', bounds=(0, None))
    gpu_type: str | None = option(None, 'kind of GPU, as the cluster calls it: h100, a100')
    process_per: Literal['node', 'gpu'] = option(
        'node', 'start a process for each node, which has all its GPUs, or for each GPU'
    )
    time: str | None = option(None, 'longest time until the job is put back, as in 24:00:00')
    cpus: int | None = option(
        None, "CPU cores of each process; by default the cluster's, often 1", bounds=(1, None)
    )
    mem: str | None = option(None, 'memory of each node, as in 200G; 0 is all of it')
    partition: str | None = option(None, 'partition, or several with commas')
    account: str | None = option(None, 'account that pays for the job')
    name: str = option('bert', 'name of the job')
    logs: str = option('logs', 'folder for the logs: one of the job, one of each process')
    stop_before_s: int = option(
        300, "seconds before the job's end at which the run saves and stops", bounds=(1, 65535)
    )
    before: tuple[str, ...] = option(
        (), "a line of shell to run before the processes, as 'module load cuda'; repeatable"
    )
    sbatch: tuple[str, ...] = option(
        (), "one more option of sbatch, as in --sbatch='--qos=high'; repeatable"
    )
    dry_run: bool = option(False, 'print the batch script and the commands, and submit nothing')

    def __post_init__(self) -> None:
        if self.process_per == 'gpu' and not self.gpus:
            raise UserError('--process_per=gpu needs --gpus: how many GPUs each node has')
        if self.gpu_type and not self.gpus:
            raise UserError(f'--gpu_type={self.gpu_type} needs --gpus: how many of them')
        if not re.fullmatch(r'[\w.-]+', self.name):
            raise UserError(f'--name={self.name}: must be of letters, digits and _ . -')
        # Slurm may be a minute early; a job that saves before it has trained comes back for ever.
        seconds = _seconds(self.time or '')
        if seconds is not None and seconds < self.stop_before_s + 120:
            raise UserError(
                f'--time={self.time}: is {seconds} s, of which --stop_before_s={self.stop_before_s}'
                ' are for saving: give at least two minutes more'
            )
        if strange := [one for one in self.sbatch if not re.match(r'--\w', one)]:
            raise UserError(
                f"--sbatch={strange[0]}: must be an option of sbatch, as in --sbatch='--qos=high'"
            )
        if strange := [one for one in (*self.before, *self.sbatch) if '\n' in one]:
            raise UserError(f'{strange[0]!r}: must be one line; give the flag once for each')

    @property
    def processes_per_node(self) -> int:
        """How many processes are started on each node."""
        return self.gpus if self.process_per == 'gpu' else 1


flags.define(Options)


def _seconds(time: str) -> int | None:
    """What sbatch's --time says: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for anything else."""
    form = re.fullmatch(r'(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?', time)
    if not form:
        return None
    days, *parts = (int(part) if part else 0 for part in form.groups())
    # Without days the first is hours where there are three, else minutes.
    hours, minutes, seconds = parts if form[1] or form[4] else (0, parts[0], parts[1])
    return 86400 * days + 3600 * hours + 60 * minutes + seconds


# In the job Slurm tells when its time is nearly up, by USR1 to this script alone. Whoever cancels
# or preempts it sends TERM to the processes itself, and perhaps to this script too, which then only
# waits. The ports are below those that the system gives to connections, and another pair for each
# job.
_SCRIPT = """\
{environment}port=$((20000 + 2 * (SLURM_JOB_ID % 5000)))
coordinator=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$port

trap 'interrupted=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1  # to the processes
trap 'interrupted=1' TERM
srun {srun} bash -c {start} {arguments} &

# A signal ends the waiting, not what is waited for.
while interrupted=''; wait "$!"; code=$?; [ -n "$interrupted" ]; do :; done

# 143: saved and stopped by TERM. A job that is cancelled is no longer RUNNING.
if [ "$code" = 143 ] && scontrol show job "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
  echo 'saved and stopped: back into the queue'
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
# In each process: it is told who it is.
_MEMBER = (
    'exec "$@" --coordinator="$0" --num_processes="$SLURM_NTASKS" --process_id="$SLURM_PROCID"'
)


def main(argv: Sequence[str]) -> int:
    """Submits the command after `--`, or prints what would be submitted."""
    from launch.cluster.submission import command_of, submit

    options = flags.read(Options)
    text = script(options, command_of(argv))
    if options.dry_run:
        print(f'{text}# submitted by: sbatch --parsable, with this on its stdin')
        return 0

    # Slurm makes no folder: a job whose log cannot be written ends without a word.
    app.check_output('logs', f'{options.logs}/x')
    os.makedirs(options.logs, exist_ok=True)
    job = submit(['sbatch', '--parsable'], text).split(';')[
        0
    ]  # JOB;CLUSTER where there are several
    print(f'job {job} is in the queue')
    print(f'  squeue --jobs={job}')
    print(f'  tail -F {shlex.quote(options.logs)}/{options.name}-{job}-0.log')
    print(f'  scancel --signal=INT {job}   # saves and stops')
    return 0


def script(options: Options, command: Sequence[str]) -> str:
    """The batch script of a job that runs `command`."""
    logs = f'{os.path.abspath(options.logs)}/%x-%j'
    asked = {
        'job-name': options.name,
        'nodes': options.nodes,
        'ntasks-per-node': options.processes_per_node,
        # Not --gpus-per-task, which hides the GPUs of a node's processes from each other.
        'gpus-per-node': ':'.join(filter(None, (options.gpu_type, str(options.gpus))))
        if options.gpus
        else None,
        'cpus-per-task': options.cpus,
        'mem': options.mem,
        'time': options.time,
        'partition': options.partition,
        'account': options.account,
        'output': f'{logs}.log',
        'open-mode': 'append',
        'signal': f'B:USR1@{options.stop_before_s}',
    }
    lines = [f'--{name}={shlex.quote(str(it))}' for name, it in asked.items() if it is not None]
    directives = [f'#SBATCH {line}' for line in (*lines, '--requeue', *options.sbatch)]

    # Under Slurm jax gives each process the one GPU of its number on the node, unless it is told.
    environment = list(options.before)
    if options.process_per == 'node' and options.gpus:
        environment.append(f'export JAX_LOCAL_DEVICE_IDS={",".join(map(str, range(options.gpus)))}')

    # A process that ends must not end the others before they have saved. The cores of a process are
    # asked for again, since srun does not take them from the job.
    srun = ['--kill-on-bad-exit=0', '--wait=0', '--open-mode=append', f'--output={logs}-%t.log']
    if options.cpus:
        srun.append(f'--cpus-per-task={options.cpus}')
    alone = options.nodes * options.processes_per_node == 1
    text = _SCRIPT.format(
        environment=''.join(f'{line}\n' for line in environment),
        srun=shlex.join(srun),
        start=shlex.quote('exec "$@"' if alone else _MEMBER),
        arguments=f'"$coordinator" {shlex.join(supervised(command))}',
    )
    return '\n'.join(['#!/bin/bash', *directives, '', text])


def supervised(command: Sequence[str]) -> list[str]:
    """`command` under launch.supervise, with the programs of this Python's environment."""
    # On a node nobody has activated the environment.
    ours = pathlib.Path(sys.executable).with_name(command[0])
    words = [str(ours) if ours.is_file() else command[0], *command[1:]]
    return [sys.executable, '-m', 'launch.supervise', '--', *words]


if __name__ == '__main__':
    app.run(main, '-- COMMAND')
