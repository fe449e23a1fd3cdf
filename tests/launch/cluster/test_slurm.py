"""The template for Slurm against stand-ins for sbatch, srun, scontrol and scancel.

They check the arguments as the real ones would, and run the job that was submitted.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.files import read_json, read_jsonl
from tests.helpers.processes import ROOT, ok

TEMPLATE = ROOT / 'launch' / 'cluster' / 'slurm.sbatch'
# A process of a run: it notes its arguments, and saves when it is told to stop.
PROCESS = """
import json, os, signal, sys, time
def stop(*_):
    print('saved', flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
number = os.environ['SLURM_PROCID']
open(f'started{number}', 'a').write(json.dumps([sys.argv, os.environ.get('JAX_LOCAL_DEVICE_IDS')]))
ends = sys.argv[1].split(',')
if ends[int(number) % len(ends)] == 'stays':
    time.sleep(60)
sys.exit(int(ends[int(number) % len(ends)]))
"""


@pytest.fixture
def here(tmp_path):
    """A folder as a user has it, with the stand-ins and a program for them to run."""
    for folder in ('bin', 'logs', '.venv/bin'):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / '.venv' / 'bin' / 'activate').write_text('export ACTIVATED=yes\n')
    for name in ('sbatch', 'srun', 'scontrol', 'scancel'):
        file = tmp_path / 'bin' / name
        file.write_text(
            f'#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n'
            'from tests.helpers.clusters.slurm import main\nmain()\n'
        )
        file.chmod(0o755)
    file = tmp_path / 'bin' / 'bert-jax'
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m bert_jax.launch "$@"\n')
    file.chmod(0o755)
    (tmp_path / 'process.py').write_text(PROCESS)
    (tmp_path / 'state').write_text('RUNNING')
    return tmp_path


def environment(here: pathlib.Path) -> dict[str, str]:
    path = f'{here}/bin:{os.environ["PATH"]}'
    return {**os.environ, 'PATH': path, 'HERE': str(here), 'PYTHONPATH': str(ROOT)}


def submit(here: pathlib.Path, command: str, **directives: str) -> dict[str, str]:
    """Submits the template with that command and those directives; -> what it asks for.

    The name of a directive has _ for -.
    """
    text = TEMPLATE.read_text()
    edits = [(r'^command=\(.*\)$', f'command=({command})')]
    for name, value in directives.items():
        option = f'--{name.replace("_", "-")}='
        edits.append((f'^#*#SBATCH {option}.*$', f'#SBATCH {option}{value}' if value else ''))
    for line, edited in edits:
        text, count = re.subn(line, edited, text, flags=re.M)
        assert count == 1, line
    (here / 'run.sbatch').write_text(text)
    done = subprocess.run(
        ['sbatch', 'run.sbatch'],
        cwd=here,
        env=environment(here),
        capture_output=True,
        text=True,
        timeout=60,
    )
    ok(done)
    return read_json(here / 'asked')


def job(here: pathlib.Path) -> subprocess.Popen:
    """The submitted job, as Slurm starts it on its first node."""
    asked = read_json(here / 'asked')
    told = {
        'SLURM_JOB_ID': '4242',
        'SLURM_JOB_NAME': 'bert',
        'SLURM_JOB_NODELIST': 'node[007-008,012]',
        'SLURM_NTASKS': str(int(asked['nodes']) * int(asked['ntasks-per-node'])),
    }
    # Set where they are asked for.
    for option in ('ntasks-per-node', 'gpus-per-node', 'cpus-per-task'):
        if option in asked:
            told[f'SLURM_{option.upper().replace("-", "_")}'] = asked[option]
    return subprocess.Popen(
        ['bash', str(here / 'job')],
        cwd=here,
        env={**environment(here), **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(running: subprocess.Popen) -> tuple[int, str]:
    """(exit code, what it said) of a job."""
    said = running.communicate(timeout=60)[0]
    return running.returncode, said


def started(here: pathlib.Path, number: int) -> list:
    until = time.monotonic() + 30
    while not (file := here / f'started{number}').exists() or not file.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    return read_json(file)


def calls(here: pathlib.Path, program: str) -> list[list[str]]:
    lines = read_jsonl(here / 'calls')
    return [words for name, *words in lines if name == program]


def test_what_is_asked_of_slurm(here):
    """Each directive in its form, those that are commented out too; bash takes the script."""
    assert subprocess.run(['bash', '-n', TEMPLATE]).returncode == 0
    asked = submit(here, 'true', partition='gpu', account='lab', mem='0', gpus_per_node='h100:8')
    assert asked == {
        'job-name': 'bert',
        'nodes': '2',
        'ntasks-per-node': '1',
        'gpus-per-node': 'h100:8',
        'cpus-per-task': '64',
        'mem': '0',
        'time': '24:00:00',
        'partition': 'gpu',
        'account': 'lab',
        'output': 'logs/%x-%j.log',
        'open-mode': 'append',
        'signal': 'B:USR1@300',
        'requeue': '',
    }


def test_its_command_has_flags_of_pretrain(binary):
    known = binary('pretrain', '--help').stdout
    (command,) = re.findall(r'^command=\(bert-pretrain (.*)\)$', TEMPLATE.read_text(), re.M)
    added = ['--coordinator=', '--num_processes=', '--process_id=']
    assert all(flag in TEMPLATE.read_text() for flag in added)
    for word in [*command.split(), *added]:
        assert f'  {word.partition("=")[0]}\n' in known, word


@pytest.mark.parametrize('nodes, tasks, devices', [(2, 1, '0,1,2,3'), (1, 2, None)])
def test_each_process_is_told_who_it_is(here, nodes, tasks, devices):
    """jax gives a process under Slurm one GPU: one process a node must be told of all."""
    command = f'{sys.executable} process.py 0 "two words" "it\'s"'
    submit(here, command, nodes=str(nodes), ntasks_per_node=str(tasks), gpus_per_node='a100:4')
    assert outcome(job(here)) == (0, '')
    assert '--cpus-per-task=64' in calls(here, 'srun')[0]
    for number in range(2):
        words, visible = started(here, number)
        assert words[1:4] == ['0', 'two words', "it's"]
        # Job 4242: the port is 20000 + 2 * 4242 % 10000; the first node of the list.
        assert words[4:] == [
            '--coordinator=node007:28484',
            '--num_processes=2',
            f'--process_id={number}',
        ]
        assert visible == devices
        assert 'done after 0 restarts' in (here / 'logs' / f'bert-4242-{number}.log').read_text()


def test_one_process_alone_meets_nobody(here):
    submit(
        here,
        f'{sys.executable} process.py 0 $ACTIVATED',
        nodes='1',
        gpus_per_node='',
        cpus_per_task='',
    )
    assert outcome(job(here)) == (0, '')
    assert started(here, 0) == [['process.py', '0', 'yes'], None]


@pytest.mark.parametrize('state, again', [('RUNNING', True), ('CANCELLED', False)])
def test_a_run_whose_time_is_up_saves_and_goes_back_into_the_queue(here, state, again):
    submit(here, f'{sys.executable} process.py stays')
    (here / 'state').write_text(state)
    running = job(here)
    for number in range(2):
        started(here, number)
    running.send_signal(signal.SIGTERM)  # as Slurm may, beside the processes, for a job it cancels
    time.sleep(0.2)
    assert running.poll() is None
    running.send_signal(signal.SIGUSR1)
    code, output = outcome(running)
    assert code == 143
    assert calls(here, 'scancel') == [['--signal=TERM', '4242']]
    assert (here / 'requeued').exists() == again == ('back into the queue' in output)
    for number in range(2):
        assert (here / 'logs' / f'bert-4242-{number}.log').read_text().count('saved\n') == 1


@pytest.mark.parametrize('ends, code', [('0,2', 2), ('0', 0)])
def test_the_job_ends_with_the_code_of_its_processes(here, ends, code):
    submit(here, f'{sys.executable} process.py {ends}')
    assert outcome(job(here)) == (code, '')
    assert not (here / 'requeued').exists()
