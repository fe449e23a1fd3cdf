"""Stand-ins for Slurm's programs, first in PATH, which refuse what the real ones would.

Written from the manual pages, and compared with a real Slurm 22.05. A file of the program's name
calls `main`; what is submitted lies in $HERE/job, what is called in $HERE/calls, and the state of
the job in $HERE/state.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

SBATCH = (
    'job-name nodes ntasks-per-node gpus-per-node cpus-per-task mem time partition account output'
    ' open-mode signal requeue'
).split()
SRUN = 'kill-on-bad-exit wait open-mode output cpus-per-task'.split()


def main() -> None:
    """Does what the program of this file's name would."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as for any program in C
    program, *words = pathlib.Path(sys.argv[0]).name, *sys.argv[1:]
    with (here() / 'calls').open('a') as calls:
        calls.write(json.dumps([program, *words]) + '\n')
    {'sbatch': sbatch, 'srun': srun, 'scontrol': scontrol, 'scancel': scancel}[program](words)


def here() -> pathlib.Path:
    return pathlib.Path(os.environ['HERE'])


def options(program: str, known: list[str], words: list[str]) -> tuple[dict, list[str]]:
    """({option: value}, what follows them); ends the program for one that it does not know."""
    found = {}
    for place, word in enumerate(words):
        if not word.startswith('--'):
            return found, words[place:]
        name, _, value = word.removeprefix('--').partition('=')
        if name not in known:
            sys.exit(f"{program}: unrecognized option '--{name}'")
        found[name] = value
    return found, []


def sbatch(words: list[str]) -> None:
    script = pathlib.Path(words[0]).read_text()
    if not script.startswith('#!'):
        sys.exit('sbatch: error: This does not look like a batch script.')
    # Directives end at the first line that is neither empty nor a comment.
    directives: list[str] = []
    for line in script.splitlines():
        if line.startswith('#SBATCH '):
            directives += shlex.split(line.removeprefix('#SBATCH '))
        elif line and not line.startswith('#'):
            break
    asked, _ = options('sbatch', SBATCH, directives)
    if not pathlib.Path(asked['output']).parent.is_dir():
        sys.exit('the real one would go on, and the job would end without a log')
    (here() / 'job').write_text(script)
    (here() / 'asked').write_text(json.dumps(asked))


def srun(words: list[str]) -> None:
    """Starts the tasks, and ends with the highest of their exit codes."""
    given, command = options('srun', SRUN, words)
    tasks = []
    for number in range(int(os.environ['SLURM_NTASKS'])):
        values = {'%x': os.environ['SLURM_JOB_NAME'], '%j': os.environ['SLURM_JOB_ID']}
        path = given['output'].replace('%t', str(number))
        for mark, value in values.items():
            path = path.replace(mark, value)
        with open(path, 'a' if given['open-mode'] == 'append' else 'w') as log:
            environment = {**os.environ, 'SLURM_PROCID': str(number)}
            tasks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    (here() / 'tasks').write_text(' '.join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    sys.exit(max(128 - code if code < 0 else code for code in codes))


def scontrol(words: list[str]) -> None:
    job = os.environ['SLURM_JOB_ID']
    match words:
        case ['show', 'hostnames', listed]:
            prefix, numbers = re.fullmatch(r'(\w+)\[(.*)\]', listed).groups()
            for part in numbers.split(','):
                first, _, last = part.partition('-')
                for number in range(int(first), int(last or first) + 1):
                    print(f'{prefix}{number:0{len(first)}}')
        case ['show', 'job', named] if named == job:
            state = (here() / 'state').read_text()
            print(f'JobId={job} JobName=bert\n   JobState={state} Reason=None')
        case ['requeue', named] if named == job:
            (here() / 'requeued').touch()
        case _:
            sys.exit(f'scontrol: invalid: {words}')


def scancel(words: list[str]) -> None:
    """Signals the tasks; the batch script gets no signal but KILL, unless --batch is given."""
    match words:
        case ['--signal=TERM', job] if job == os.environ['SLURM_JOB_ID']:
            for task in (here() / 'tasks').read_text().split():
                os.kill(int(task), signal.SIGTERM)
        case _:
            sys.exit(f'scancel: invalid: {words}')
