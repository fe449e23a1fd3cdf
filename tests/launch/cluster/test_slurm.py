"""launch.slurm against stand-ins for sbatch, srun, scontrol and scancel.

They check the arguments as the real ones would, and run the job that was submitted.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[3]
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
    """A folder with the stand-ins, and a program for them to run."""
    (tmp_path / 'bin').mkdir()
    for name in ('sbatch', 'srun', 'scontrol', 'scancel'):
        file = tmp_path / 'bin' / name
        file.write_text(
            f'#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n'
            'from tests.helpers.clusters.slurm import main\nmain()\n'
        )
        file.chmod(0o755)
    (tmp_path / 'process.py').write_text(PROCESS)
    (tmp_path / 'state').write_text('RUNNING')
    return tmp_path


def environment(here: pathlib.Path) -> dict[str, str]:
    path = f'{here}/bin:{os.environ["PATH"]}'
    return {**os.environ, 'PATH': path, 'HERE': str(here), 'PYTHONPATH': str(ROOT)}


def slurm(here: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, '-m', 'launch.slurm', *arguments],
        cwd=here,
        env=environment(here),
        capture_output=True,
        text=True,
        timeout=60,
    )


def job(here: pathlib.Path, tasks: int) -> subprocess.Popen:
    """The submitted job, as Slurm starts it on its first node."""
    told = {
        'SLURM_JOB_ID': '4242',
        'SLURM_JOB_NAME': 'bert',
        'SLURM_JOB_NODELIST': 'node[007-008,012]',
        'SLURM_NTASKS': str(tasks),
    }
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
    return json.loads(file.read_text())


def calls(here: pathlib.Path, program: str) -> list[list[str]]:
    lines = [json.loads(line) for line in (here / 'calls').read_text().splitlines()]
    return [words for name, *words in lines if name == program]


def test_what_is_asked_of_slurm(here):
    done = slurm(
        here,
        *('--nodes=2', '--gpus=8', '--gpu_type=h100', '--process_per=gpu', '--time=1-00:00:00'),
        *('--cpus=12', '--mem=0', '--partition=gpu', '--account=lab', '--name=large'),
        *('--stop_before_s=600', '--sbatch=--qos=high', '--', 'python', 'process.py', '0'),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((here / 'asked').read_text()) == {
        'job-name': 'large',
        'nodes': '2',
        'ntasks-per-node': '8',
        'gpus-per-node': 'h100:8',
        'cpus-per-task': '12',
        'mem': '0',
        'time': '1-00:00:00',
        'partition': 'gpu',
        'account': 'lab',
        'output': f'{here}/logs/%x-%j.log',
        'open-mode': 'append',
        'signal': 'B:USR1@600',
        'requeue': '',
        'qos': 'high',
    }
    assert done.stdout.splitlines() == [
        'job 4242 is in the queue',
        '  squeue --jobs=4242',
        '  tail -F logs/large-4242-0.log',
        '  scancel --signal=INT 4242   # saves and stops',
    ]


@pytest.mark.parametrize(('per', 'devices'), [('node', '0,1,2,3'), ('gpu', None)])
def test_each_process_is_told_who_it_is(here, per, devices):
    """jax gives a process under Slurm one GPU: one process a node must be told of all."""
    command = ['python', 'process.py', '0', 'two words', "it's"]
    submitted = slurm(here, '--nodes=2', '--gpus=4', f'--process_per={per}', '--', *command)
    assert submitted.returncode == 0, submitted.stderr
    assert outcome(job(here, 2)) == (0, '')
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


def test_the_flags_that_a_process_gets_are_those_of_pretrain(binary):
    known = binary('pretrain', '--help').stdout
    assert all(f'--{flag}\n' in known for flag in ('coordinator', 'num_processes', 'process_id'))


def test_one_process_alone_meets_nobody(here):
    assert slurm(here, '--', 'python', 'process.py', '0').returncode == 0
    assert outcome(job(here, 1)) == (0, '')
    assert started(here, 0)[0][1:] == ['0']


@pytest.mark.parametrize(('state', 'again'), [('RUNNING', True), ('CANCELLED', False)])
def test_a_run_whose_time_is_up_saves_and_goes_back_into_the_queue(here, state, again):
    assert slurm(here, '--nodes=2', '--', 'python', 'process.py', 'stays').returncode == 0
    (here / 'state').write_text(state)
    running = job(here, 2)
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


@pytest.mark.parametrize(('ends', 'code'), [('2', 2), ('0,2', 2), ('0', 0)])
def test_the_job_ends_with_the_code_of_its_processes(here, ends, code):
    assert slurm(here, '--nodes=2', '--', 'python', 'process.py', ends).returncode == 0
    assert outcome(job(here, 2)) == (code, '')
    assert not (here / 'requeued').exists()


def test_dry_run_prints_the_script_that_would_be_submitted(here):
    arguments = ['--nodes=2', '--before=module load cuda/12', '--', 'python', 'process.py', '0']
    shown = slurm(here, '--dry_run', *arguments)
    assert shown.returncode == 0 and not (here / 'calls').exists() and not (here / 'logs').exists()
    script, _, command = shown.stdout.rpartition('\n# submitted by: ')
    assert command == 'sbatch --parsable, with this on its stdin\n'
    assert '\nmodule load cuda/12\n' in script
    assert slurm(here, *arguments).returncode == 0
    assert (here / 'job').read_text() == script + '\n'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'there is no command'),
        (['--process_per=gpu', '--', 'python'], '--process_per=gpu needs --gpus'),
        (['--gpu_type=h100', '--', 'python'], '--gpu_type=h100 needs --gpus'),
        (['--nodes=0', '--', 'python'], '--nodes=0'),
        (['--name=a b', '--', 'python'], '--name=a b: must be of letters'),
        (['--sbatch=qos', '--', 'python'], '--sbatch=qos: must be an option of sbatch'),
        (['--sbatch=--qos=a\nrm x', '--', 'python'], 'must be one line'),
        (['--partition=nowhere', '--', 'python'], 'invalid partition specified: nowhere'),
        (['--sbatch=--foo=1', '--', 'python'], "unrecognized option '--foo'"),
        (['--time=6', '--', 'python'], '--time=6: is 360 s'),
        (['--time=6:30', '--', 'python'], '--time=6:30: is 390 s'),
        (['--time=0:06:30', '--', 'python'], '--time=0:06:30: is 390 s'),
        (['--time=0-1', '--stop_before_s=3600', '--', 'python'], '--time=0-1: is 3600 s'),
        (['--time=0-0:50', '--stop_before_s=3600', '--', 'python'], '--time=0-0:50: is 3000 s'),
        (['--time=soon', '--', 'python'], 'Invalid --time specification'),
    ],
)
def test_mistakes_are_one_line(here, arguments, message):
    done = slurm(here, *arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count('\n') == 1
    assert not (here / 'job').exists()


def test_without_slurm_the_line_says_so(here):
    (here / 'bin' / 'sbatch').unlink()
    done = slurm(here, '--', 'python', 'process.py')
    assert done.returncode == 2 and done.stderr.count('\n') == 1
    assert 'slurm: error: sbatch is not installed here' in done.stderr
