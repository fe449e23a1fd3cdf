"""The template for Kubernetes: what its parts must say alike, and what its command takes."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from bert_jax.configs.errors import UserError
from bert_jax.costs.chips import parse_topology
from tests.helpers.processes import ROOT

TEMPLATE = ROOT / 'launch' / 'cluster' / 'jobset.yaml'


def manifest(kind: str) -> dict:
    """The template for TPUs as it is, and for GPUs by the command at its head."""
    text = TEMPLATE.read_text()
    if kind == 'GPU':
        (edit,) = re.findall(r"sed '(.*)' jobset.yaml", text)
        text = subprocess.run(
            ['sed', edit, TEMPLATE], capture_output=True, text=True, check=True
        ).stdout
    return yaml.safe_load(text)


def parts(whole: dict) -> tuple[dict, dict, dict]:
    """(job, pod, container)."""
    job = whole['spec']['replicatedJobs'][0]['template']['spec']
    pod = job['template']['spec']
    return job, pod, pod['containers'][0]


@pytest.mark.parametrize('kind', ['TPU', 'GPU'])
def test_a_mistake_ends_the_jobset_and_everything_else_starts_all_again(kind, binary):
    whole = manifest(kind)
    assert (whole['apiVersion'], whole['kind']) == ('jobset.x-k8s.io/v1alpha2', 'JobSet')
    job, pod, container = parts(whole)
    policy = whole['spec']['failurePolicy']
    assert policy['maxRestarts'] == 1000 and job['backoffLimit'] == 0
    assert policy['rules'][0]['action'] == 'FailJobSet'
    assert policy['rules'][0]['onJobFailureReasons'] == ['PodFailurePolicy']
    rule = job['podFailurePolicy']['rules'][0]['onExitCodes']
    assert rule['values'] == [UserError.exit_code]
    assert (pod['restartPolicy'], pod['terminationGracePeriodSeconds']) == ('Never', 300)

    known = binary('pretrain', '--help').stdout.replace('--[no]', '--')
    words = container['command']
    assert words[:4] == ['bert-jax', 'supervise', '--', 'bert-pretrain']
    assert not [w for w in words[4:] if f'  {w.partition("=")[0]}\n' not in known]


def test_a_slice_of_tpus():
    job, pod, container = parts(manifest('TPU'))
    selector = pod['nodeSelector']
    assert selector['cloud.google.com/gke-tpu-accelerator'] == 'tpu-v5-lite-podslice'
    slice_ = parse_topology('v5e:' + selector['cloud.google.com/gke-tpu-topology'])
    assert container['resources']['limits'] == {'google.com/tpu': str(slice_.chips_per_host)}
    assert job['parallelism'] == job['completions'] == slice_.chips // slice_.chips_per_host
    assert '--distributed' in container['command']
    assert any(word.startswith('--workdir=gs://') for word in container['command'])


def test_nodes_with_gpus_meet_at_the_first_pod():
    whole = manifest('GPU')
    job, pod, container = parts(whole)
    name, hosts = whole['metadata']['name'], whole['spec']['replicatedJobs'][0]['name']
    assert f'--coordinator={name}-{hosts}-0-0.{name}:12355' in container['command']
    assert f'--num_processes={job["parallelism"]}' in container['command']
    assert job['parallelism'] == job['completions'] and 'nodeSelector' not in pod
    # What is saved outlives the container, and the user of the image may write it.
    assert '--workdir=/mnt/run' in container['command']
    mounts = {mount['name']: mount['mountPath'] for mount in container['volumeMounts']}
    assert mounts == {'disk': '/mnt', 'shared-memory': '/dev/shm'}
    assert [volume['name'] for volume in pod['volumes']] == list(mounts)
    user = re.findall(r'--uid (\d+)', (ROOT / 'Dockerfile').read_text())
    assert [str(pod['securityContext']['fsGroup'])] == user
