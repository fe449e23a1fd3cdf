"""launch/tpu_vm.sh against a stand-in for gcloud.

It checks the arguments as the real one would, and runs what is sent over ssh.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.helpers.processes import ROOT, mistake, ok

SCRIPT = ROOT / 'launch' / 'tpu_vm.sh'
COMMON = {'--zone', '--project'}
# What each gcloud command takes: (needed, allowed besides).
KNOWN = {
    'tpu-vm create': ({'--accelerator-type', '--version'}, {'--spot', '--reserved'}),
    'tpu-vm describe': (set(), {'--format'}),
    'tpu-vm delete': ({'--quiet'}, set()),
    'tpu-vm ssh': ({'--worker', '--command'}, set()),
    'tpu-vm scp': ({'--worker'}, set()),
    'queued-resources create': (
        {'--node-id', '--accelerator-type', '--runtime-version'},
        {'--spot', '--reserved', '--valid-until-duration'},
    ),
    'queued-resources describe': (set(), {'--format'}),
    'queued-resources delete': ({'--force', '--quiet'}, set()),
}
# Notes its arguments, runs ssh commands in $HERE/worker, and answers describe from the lines of
# $HERE/states, one a call.
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, subprocess, sys
here = pathlib.Path(os.environ['HERE'])
with open(here / 'calls', 'a') as file:
    file.write(json.dumps(sys.argv[1:]) + '\\n')
if 'ssh' in sys.argv:
    command = next(a.removeprefix('--command=') for a in sys.argv if a.startswith('--command='))
    sys.exit(subprocess.run(['bash', '-c', command], cwd=here / 'worker').returncode)
if 'describe' in sys.argv:
    states = (here / 'states').read_text().split()
    (here / 'states').write_text(' '.join(states[1:]))
    if states[0] == 'ABSENT':
        sys.exit(1)
    print(states[0])
"""


@pytest.fixture
def here(tmp_path):
    """A folder with the stand-in, and a worker on which this project stands ready.

    The worker's supervisor notes its command.
    """
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'gcloud').write_text(STAND_IN)
    (tmp_path / 'bin' / 'gcloud').chmod(0o755)
    python = tmp_path / 'worker' / 'bert_jax' / '.venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@" > started\n')
    python.chmod(0o755)
    return tmp_path


def script(here: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        'PATH': f'{here}/bin:{os.environ["PATH"]}',
        'HERE': str(here),
        'TPU_VM_POLL_S': '0.05',
    }
    return subprocess.run(
        ['bash', str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )


def calls(here: pathlib.Path) -> list[tuple[str, dict[str, str], list[str]]]:
    """(command, flags, other words) of each call, after checking them against what gcloud takes."""
    found = []
    for line in (here / 'calls').read_text().splitlines():
        compute, tpus, group, verb, *rest = json.loads(line)
        assert (compute, tpus) == ('compute', 'tpus')
        flags = dict(word.partition('=')[::2] for word in rest if word.startswith('--'))
        needed, allowed = KNOWN[f'{group} {verb}']
        assert needed | {'--zone'} <= flags.keys() <= needed | allowed | COMMON, line
        found.append(
            (f'{group} {verb}', flags, [word for word in rest if not word.startswith('--')])
        )
    return found


def wait_for(path: pathlib.Path) -> str:
    until = time.monotonic() + 20
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.1)
    return path.read_text()


NAMED = ['--name=bert', '--zone=us-west4-a', '--project=p']


@pytest.mark.parametrize(
    'kind, accelerator, image',
    [
        ('v4-32', 'v4-32', 'tpu-ubuntu2204-base'),
        ('v5e-16', 'v5litepod-16', 'v2-alpha-tpuv5-lite'),
        ('v5p-128', 'v5p-128', 'v2-alpha-tpuv5'),
        ('v6e-4', 'v6e-4', 'v2-alpha-tpuv6e'),
    ],
)
def test_create_picks_the_image_of_the_generation(here, kind, accelerator, image):
    assert script(here, 'create', *NAMED, f'--type={kind}', '--spot').returncode == 0
    expected = {
        '--accelerator-type': accelerator,
        '--version': image,
        '--zone': 'us-west4-a',
        '--project': 'p',
        '--spot': '',
    }
    assert calls(here) == [('tpu-vm create', expected, ['bert'])]


@pytest.mark.parametrize('kind, extra', [('v5e-16', ['--distributed']), ('v5e-8', [])])
def test_start_supervises_the_command_as_it_was_written(here, kind, extra):
    command = ['python', '-m', 'bert_jax.launch.pretrain', '--workdir=gs://b/a run', "it's"]
    ok(script(here, 'start', *NAMED, f'--type={kind}', '--', *command))
    words = wait_for(here / 'worker' / 'bert_jax' / 'started').splitlines()
    supervised = ['-m', 'bert_jax.launch.supervise', '--', '.venv/bin/python']
    assert words == [*supervised, *command[1:], *extra]
    assert wait_for(here / 'worker' / 'bert_jax' / 'run.code') == '0\n'
    assert calls(here)[0][1]['--worker'] == 'all'


def test_keep_makes_a_vm_again_that_was_taken_away(here):
    (here / 'states').write_text('PREEMPTED ABSENT READY READY READY READY READY READY READY READY')
    # It stands for `git archive ... -o FILE HEAD`.
    (here / 'bin' / 'git').write_text('#!/bin/bash\ntouch "${@: -2:1}"\n')
    (here / 'bin' / 'git').chmod(0o755)
    (here / 'bin' / 'tar').write_text('#!/bin/bash\ntrue\n')
    (here / 'bin' / 'tar').chmod(0o755)
    (here / 'worker' / 'bert_jax' / 'launch').mkdir()
    (here / 'worker' / 'bert_jax' / 'launch' / 'install.sh').write_text('echo "$1" > what\n')
    command = ('--', 'python', '-m', 'bert_jax.launch.pretrain')
    kept = script(here, 'keep', *NAMED, '--type=v4-8', '--spot', *command)
    assert kept.returncode == 0 and 'the run is done' in kept.stdout, kept.stderr
    made = [call[0] for call in calls(here)]
    verbs = 'describe delete describe create scp ssh ssh'
    assert made[:7] == [f'tpu-vm {verb}' for verb in verbs.split()]
    assert (here / 'worker' / 'bert_jax' / 'what').read_text() == '.[tpu,gcs,tensorflow]\n'


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['create', *NAMED], '--type is required'),
        (['create', *NAMED, '--type=tpu7x-8'], 'not served by the Cloud TPU API'),
        (['create', *NAMED, '--type=v3-8'], 'too old'),
        (['create', *NAMED, '--type=v5e-8', '--spot', '--reserved'], 'exclude each other'),
        (['start', *NAMED, '--type=v4-8'], 'no command'),
        (['begin', *NAMED], 'unknown action'),
        (['create', *NAMED, '--typ=v4-8'], 'unknown argument'),
    ],
)
def test_mistakes_are_one_line(here, arguments, message):
    done = script(here, *arguments)
    assert message in mistake(done) and done.stderr.count('\n') == 1
    assert not (here / 'calls').exists()
