"""The template for Kubernetes, checked as a cluster would check it."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest
import yaml

from bert_jax.configs.errors import UserError
from bert_jax.costs.chips import topology
from tests.helpers.clusters import jobset

ROOT = pathlib.Path(__file__).parents[3]
TEMPLATE = ROOT / 'launch' / 'cluster' / 'jobset.yaml'


def manifest(kind: str) -> dict:
    """The template for TPUs as it is, and for GPUs by the command at its head."""
    if kind == 'TPU':
        return yaml.safe_load(TEMPLATE.read_text())
    (edit,) = re.findall(r"sed '(.*)' jobset.yaml", TEMPLATE.read_text())
    edited = subprocess.run(['sed', edit, TEMPLATE], capture_output=True, text=True, check=True)
    return yaml.safe_load(edited.stdout)


def parts(kind: str) -> tuple[dict, dict, dict]:
    """(job, pod, container)."""
    job = manifest(kind)['spec']['replicatedJobs'][0]['template']['spec']
    pod = job['template']['spec']
    return job, pod, pod['containers'][0]


@pytest.mark.parametrize('kind', ['TPU', 'GPU'])
def test_a_cluster_would_take_it(kind):
    assert not jobset.slips_of(manifest(kind), jobset.JOBSET, '')
    assert not jobset.clashes_of(manifest(kind))


def test_what_a_cluster_would_refuse_is_seen():
    wrong = manifest('GPU')
    job = wrong['spec']['replicatedJobs'][0]['template']['spec']
    job['template']['spec']['restartPolicy'] = 'Always'
    job['template']['spec']['containers'][0]['volumeMounts'][0]['name'] = 'other'
    job['colour'] = 'red'
    slips = jobset.slips_of(wrong, jobset.JOBSET, '')
    assert len(slips) == 2 and 'colour: unknown field' in slips[0] and "'Always'" in slips[1]
    assert 'volumeMounts: other: not found' in jobset.clashes_of(wrong)


@pytest.mark.parametrize('kind', ['TPU', 'GPU'])
def test_its_command_has_flags_of_pretrain(kind, binary):
    known = binary('pretrain', '--help').stdout
    words = parts(kind)[2]['command']
    assert words[:3] == ['bert-supervise', '--', 'bert-pretrain']
    for word in words[3:]:
        assert f'  {word.partition("=")[0]}\n' in known.replace('--[no]', '--'), word


def test_a_slice_of_tpus():
    job, pod, container = parts('TPU')
    selector = pod['nodeSelector']
    assert selector['cloud.google.com/gke-tpu-accelerator'] == 'tpu-v5-lite-podslice'
    slice_ = topology('v5e:' + selector['cloud.google.com/gke-tpu-topology'])
    assert container['resources']['limits'] == {'google.com/tpu': str(slice_.chips_per_host)}
    assert job['parallelism'] == job['completions'] == slice_.chips // slice_.chips_per_host
    assert '--distributed' in container['command']
    assert any(word.startswith('--workdir=gs://') for word in container['command'])


def test_nodes_with_gpus_meet_at_the_first_pod():
    job, pod, container = parts('GPU')
    whole = manifest('GPU')
    name, hosts = whole['metadata']['name'], whole['spec']['replicatedJobs'][0]['name']
    assert f'--coordinator={name}-{hosts}-0-0.{name}:12355' in container['command']
    assert f'--num_processes={job["parallelism"]}' in container['command']
    assert job['parallelism'] == job['completions'] and 'nodeSelector' not in pod
    # What is saved outlives the container, and the user of the image may write it.
    assert '--workdir=/mnt/run' in container['command']
    assert container['volumeMounts'][0] == {'name': 'disk', 'mountPath': '/mnt'}
    user = re.findall(r'--uid (\d+)', (ROOT / 'Dockerfile').read_text())
    assert [str(pod['securityContext']['fsGroup'])] == user


@pytest.mark.parametrize('kind', ['TPU', 'GPU'])
def test_a_mistake_ends_the_jobset_and_everything_else_starts_all_again(kind):
    job, pod, _ = parts(kind)
    policy = manifest(kind)['spec']['failurePolicy']
    assert policy['maxRestarts'] == 1000 and job['backoffLimit'] == 0
    assert policy['rules'][0]['action'] == 'FailJobSet'
    assert policy['rules'][0]['onJobFailureReasons'] == ['PodFailurePolicy']
    codes = job['podFailurePolicy']['rules'][0]['onExitCodes']['values']
    assert codes == [UserError.exit_code]
    assert (pod['restartPolicy'], pod['terminationGracePeriodSeconds']) == ('Never', 300)
