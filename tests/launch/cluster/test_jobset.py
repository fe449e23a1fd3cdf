"""launch.jobset against a stand-in for kubectl, which checks the manifest as a cluster would."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import yaml

from launch.cluster import submission

ROOT = pathlib.Path(__file__).parents[3]
NAMED = ['--name=bert', '--image=registry/bert:1']
COMMAND = [
    'python',
    '-m',
    'launch.pretrain',
    '--config=bert_base',
    '--workdir=gs://b/a run',
    "it's",
]


@pytest.fixture
def here(tmp_path):
    """A folder with the stand-in."""
    (tmp_path / 'bin').mkdir()
    file = tmp_path / 'bin' / 'kubectl'
    file.write_text(
        f'#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n'
        'from tests.helpers.clusters.kubectl import main\nmain()\n'
    )
    file.chmod(0o755)
    return tmp_path


def submit(here: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    path = f'{here}/bin:{os.environ["PATH"]}'
    # A flag is given once: a test that names the set itself has its own.
    named = [
        flag
        for flag in NAMED
        if not any(a.startswith('--name=') for a in arguments) or not flag.startswith('--name=')
    ]
    return subprocess.run(
        [sys.executable, '-m', 'launch.jobset', *named, *arguments],
        cwd=ROOT,
        env={**os.environ, 'PATH': path, 'HERE': str(here)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def submitted(here: pathlib.Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(job, pod) of the manifest that was submitted."""
    done = submit(here, *arguments)
    assert done.returncode == 0, done.stderr
    spec = json.loads((here / 'manifest').read_text())['spec']
    job = spec['replicatedJobs'][0]['template']['spec']
    return job, job['template']['spec']


@pytest.mark.parametrize(
    ('topology', 'flags', 'accelerator', 'hosts', 'chips'),
    [
        # cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
        ('v4:2x2x4', [], 'tpu-v4-podslice', 4, 4),
        ('v5e:1x1', [], 'tpu-v5-lite-podslice', 1, 1),
        ('v5e:2x4', [], 'tpu-v5-lite-podslice', 1, 8),
        ('v5e:2x4', ['--chips_per_host=4'], 'tpu-v5-lite-podslice', 2, 4),
        ('v5e:4x4', [], 'tpu-v5-lite-podslice', 4, 4),
        ('v5p:2x2x1', [], 'tpu-v5p-slice', 1, 4),
        ('v5p:4x4x4', [], 'tpu-v5p-slice', 16, 4),
        ('v6e:16x16', [], 'tpu-v6e-slice', 64, 4),
    ],
)
def test_a_slice_of_tpus(here, topology, flags, accelerator, hosts, chips):
    job, pod = submitted(here, f'--topology={topology}', *flags, '--', *COMMAND)
    assert (job['parallelism'], job['completions'], job['completionMode']) == (
        hosts,
        hosts,
        'Indexed',
    )
    assert pod['nodeSelector'] == {
        'cloud.google.com/gke-tpu-accelerator': accelerator,
        'cloud.google.com/gke-tpu-topology': topology.partition(':')[2],
    }
    container = pod['containers'][0]
    assert container['resources']['limits'] == {'google.com/tpu': str(chips)}
    supervised = ['python', '-m', 'launch.supervise', '--', *COMMAND]
    assert container['command'] == supervised + ['--distributed'] * (hosts > 1)
    assert 'volumes' not in pod


@pytest.mark.parametrize('name', ['v5litepod-8', 'v5e:4x2'])
def test_a_slice_by_another_name_is_asked_of_gke_by_its_own(here, name):
    pod = submitted(here, f'--topology={name}', '--', *COMMAND)[1]
    assert pod['nodeSelector']['cloud.google.com/gke-tpu-topology'] == '2x4'


def test_nodes_with_gpus_meet_at_the_first_pod(here):
    claim = ['--pvc=disk:/mnt/runs', '--nodes=2', '--gpus=8']
    command = ['python', '-m', 'launch.pretrain', '--workdir', '/mnt/runs/a']
    job, pod = submitted(here, *claim, '--', *command)
    assert job['parallelism'] == 2 and 'nodeSelector' not in pod
    container = pod['containers'][0]
    assert container['command'][4:] == [
        *command,
        '--coordinator=bert-hosts-0-0.bert:12355',
        '--num_processes=2',
        '--process_id=$(PROCESS_ID)',
    ]
    assert container['resources']['limits'] == {'nvidia.com/gpu': '8'}
    assert container['volumeMounts'] == [
        {'name': 'claim-0', 'mountPath': '/mnt/runs'},
        {'name': 'shared-memory', 'mountPath': '/dev/shm'},
    ]
    assert pod['volumes'][0]['persistentVolumeClaim'] == {'claimName': 'disk'}
    assert pod['securityContext'] == {'fsGroup': 1000}  # the user of Dockerfile


def test_a_mistake_ends_the_jobset_and_everything_else_starts_all_again(here):
    job, pod = submitted(here, '--gpus=1', '--max_restarts=7', '--grace_s=40', '--', *COMMAND)
    policy = json.loads((here / 'manifest').read_text())['spec']['failurePolicy']
    assert policy['maxRestarts'] == 7 and job['backoffLimit'] == 0
    assert policy['rules'][0]['action'] == 'FailJobSet'
    assert policy['rules'][0]['onJobFailureReasons'] == ['PodFailurePolicy']
    assert job['podFailurePolicy']['rules'][0]['onExitCodes']['values'] == [2]
    assert (pod['restartPolicy'], pod['terminationGracePeriodSeconds']) == ('Never', 40)


def test_what_the_cluster_is_asked_for(here):
    flags = ['--env=A=b=c', '--env=EMPTY=', '--node_selector=cloud.google.com/gke-spot=true']
    flags += ['--cpu=32', '--memory=128Gi', '--service_account=writer', '--queue=lab']
    _, pod = submitted(here, '--gpus=8', '--namespace=team', *flags, '--', *COMMAND)
    assert json.loads((here / 'calls').read_text()) == [
        'create',
        '--namespace=team',
        '--filename=-',
    ]
    labels = json.loads((here / 'manifest').read_text())['metadata']['labels']
    assert labels == {'kueue.x-k8s.io/queue-name': 'lab'}
    assert pod['nodeSelector'] == {'cloud.google.com/gke-spot': 'true'}
    assert pod['serviceAccountName'] == 'writer'
    container = pod['containers'][0]
    assert container['env'][:2] == [
        {'name': 'A', 'value': 'b=c'},
        {'name': 'EMPTY', 'value': ''},
    ]
    requests = {'cpu': '32', 'memory': '128Gi', 'nvidia.com/gpu': '8'}
    assert container['resources'] == {'requests': requests, 'limits': {'nvidia.com/gpu': '8'}}


def test_dry_run_prints_the_manifest_that_would_be_submitted(here):
    arguments = ['--topology=v5e:4x4', '--namespace=team', '--', *COMMAND]
    shown = submit(here, '--dry_run', *arguments)
    assert shown.returncode == 0 and not (here / 'calls').exists()
    command = '# submitted by: kubectl create --namespace=team --filename=-'
    assert shown.stdout.startswith(command)
    done = submit(here, *arguments)
    assert yaml.safe_load(shown.stdout) == json.loads((here / 'manifest').read_text())
    assert done.stdout.splitlines() == [
        'jobset.jobset.x-k8s.io/bert created',
        '  kubectl --namespace=team get jobset bert',
        '  kubectl --namespace=team logs --follow job/bert-hosts-0',
        '  kubectl --namespace=team delete jobset bert   # saves and stops',
    ]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'give one of --topology=v5e:4x4 (TPUs) and --gpus=8'),
        (['--topology=v5e:4x4', '--gpus=8'], 'give one of --topology'),
        (['--topology=v5e:3x3'], 'there is no such topology'),
        (['--topology=h100:8'], '--topology=h100:8: no TPU'),
        (['--topology=v5e:4x4', '--chips_per_host=3'], '16 chips do not divide'),
        (['--topology=v5e:4x4', '--nodes=2'], '--topology says how many hosts'),
        (['--gpus=8', '--chips_per_host=4'], '--chips_per_host is of TPUs'),
        (['--gpus=8', '--name=Bert'], '--name=Bert: must be of small letters'),
        (['--gpus=8', '--name=' + 'b' * 41], 'have at most 40'),
        (['--gpus=8', '--pvc=disk'], '--pvc=disk: must be CLAIM:/PATH'),
        (['--gpus=8', '--env=A'], '--env=A: must be NAME=VALUE'),
        (['--gpus=8', '--node_selector=a'], '--node_selector=a: must be LABEL=VALUE'),
        (['--gpus=8', '--namespace=closed'], 'kubectl refuses: Error from server (Forbidden)'),
        (['--gpus=8', '--memory=much'], "Invalid value: 'much'"),
    ],
)
def test_mistakes_are_one_line(here, arguments, message):
    done = submit(here, *arguments, '--', *COMMAND)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count('\n') == 1
    assert not (here / 'manifest').exists()


@pytest.mark.parametrize(
    ('flags', 'claims', 'kept'),
    [
        (['--workdir=gs://b/run'], [], True),
        (['--workdir', '/mnt/run'], ['--pvc=disk:/mnt/'], True),
        (['--workdir=/mnt'], ['--pvc=disk:/mnt/run'], False),
        (['-workdir=/mnt2/run'], ['--pvc=disk:/mnt'], False),
        (['--workdir', 'runs/a'], [], False),
    ],
)
def test_a_workdir_that_is_lost_with_its_container_is_refused(here, flags, claims, kept):
    done = submit(here, '--gpus=1', *claims, '--', 'python', *flags)
    assert (done.returncode == 0) == kept
    if not kept:
        assert 'is lost with its container: name a gs:// address' in done.stderr


def test_no_command_and_no_kubectl_are_one_line(here, monkeypatch):
    with pytest.raises(submission.UserError, match='there is no command'):
        submission.command_of(['jobset'])
    monkeypatch.setenv('PATH', str(here))
    with pytest.raises(submission.UserError, match='kubectl is not installed here'):
        submission.submit(['kubectl'], '')
