"""Submits a run to Kubernetes as a JobSet: a slice of TPUs, or nodes with GPUs.

  python -m launch.jobset --name=bert --image=IMAGE --topology=v5e:4x4 -- \\
      python -m launch.pretrain --config=bert_base --data=gs://B/records --workdir=gs://B/run
  python -m launch.jobset --name=bert --image=IMAGE --nodes=2 --gpus=8 --pvc=CLAIM:/mnt -- \\
      python -m launch.pretrain --config=bert_base --data=/mnt/records --workdir=/mnt/run

--dry_run prints the manifest and submits nothing. Each host runs the command in the image under
launch.supervise. When a host is lost or preempted all start again, from the newest checkpoint; a
mistake in flags or data (exit code 2) ends the JobSet. The cluster needs the JobSet controller,
0.6 or newer. docs/clusters.md has the image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.errors import UserError
from configs.options import option, required
from launch import app, flags

if TYPE_CHECKING:
    from bert_jax.costs.chips import Topology

# What GKE calls the TPUs of launch.plan, as its nodes' label cloud.google.com/gke-tpu-accelerator.
GKE_NAMES = {
    'v4': 'tpu-v4-podslice',
    'v5e': 'tpu-v5-lite-podslice',
    'v5p': 'tpu-v5p-slice',
    'v6e': 'tpu-v6e-slice',
}
_HOSTS = 'hosts'  # the one replicated job: a pod for each host
_PORT = 12355  # of process 0, and the next
_USER = 1000  # of the image; files on a claim are its group's


@dataclass(frozen=True)
class Options:
    """What is run, on which hosts, and what of the cluster they see."""

    name: str = required('name of the JobSet: small letters, digits and -')
    image: str = required('container image with this program')
    topology: str | None = option(
        None, 'slice of TPUs, as launch.plan names it: v5e:4x4; a wrong name lists those that exist'
    )
    chips_per_host: int | None = option(
        None,
        'TPU chips of each host, where the node pool is not of the usual machines (8 for a slice'
        ' of v5e or v6e of up to 8 chips, else 4)',
        bounds=(1, None),
    )
    nodes: int | None = option(None, 'nodes with GPUs', bounds=(1, None))
    gpus: int | None = option(None, 'GPUs of each node', bounds=(0, None))
    cpu: str | None = option(None, 'CPU cores that each host asks for, as in 32')
    memory: str | None = option(None, 'memory that each host asks for, as in 128Gi')
    pvc: tuple[str, ...] = option(
        (), 'CLAIM:/PATH: a persistent volume claim and where the hosts see it; repeatable'
    )
    env: tuple[str, ...] = option((), 'NAME=VALUE of the environment; repeatable')
    node_selector: tuple[str, ...] = option(
        (), 'LABEL=VALUE that the nodes must have, as in cloud.google.com/gke-spot=true; repeatable'
    )
    namespace: str | None = option(None, "namespace; by default kubectl's")
    service_account: str | None = option(None, 'service account, as for gs://')
    queue: str | None = option(None, 'local queue of Kueue')
    max_restarts: int = option(1000, 'give up after so many restarts', bounds=(0, None))
    grace_s: int = option(
        300, 'seconds that a host has to save when it is asked to stop', bounds=(0, None)
    )
    dry_run: bool = option(False, 'print the manifest and the command, and submit nothing')

    def __post_init__(self) -> None:
        # Pods are called NAME-hosts-0-NUMBER-xxxxx, and a name in DNS has at most 63 letters.
        if not re.fullmatch(r'[a-z]([a-z0-9-]{0,38}[a-z0-9])?', self.name):
            raise UserError(
                f'--name={self.name}: must be of small letters, digits and -, begin with a letter,'
                ' end with no -, and have at most 40 of them'
            )
        if (self.topology is None) == (self.gpus is None):
            raise UserError('give one of --topology=v5e:4x4 (TPUs) and --gpus=8 --nodes=2 (GPUs)')
        if self.topology and self.nodes:
            raise UserError(f'--nodes={self.nodes}: --topology says how many hosts there are')
        if self.chips_per_host and not self.topology:
            raise UserError('--chips_per_host is of TPUs: it needs --topology')
        for flag, values, form in (
            ('pvc', self.pvc, r'[a-z0-9.-]+:/.*'),
            ('env', self.env, r'[A-Za-z_]\w*=.*'),
            ('node_selector', self.node_selector, r'[\w./-]+=[\w.-]*'),
        ):
            if strange := [one for one in values if not re.fullmatch(form, one, re.DOTALL)]:
                shape = {'pvc': 'CLAIM:/PATH', 'env': 'NAME=VALUE', 'node_selector': 'LABEL=VALUE'}
                raise UserError(f'--{flag}={strange[0]}: must be {shape[flag]}')


flags.define(Options)


def main(argv: Sequence[str]) -> int:
    """Submits the command after `--`, or prints what would be submitted."""
    from launch.cluster.submission import command_of, submit

    options = flags.read(Options)
    text = json.dumps(manifest(options, command_of(argv)), indent=2) + '\n'
    namespace = [f'--namespace={options.namespace}'] if options.namespace else []
    create = ['kubectl', 'create', *namespace, '--filename=-']
    if options.dry_run:
        # JSON is YAML, which has comments.
        print(f'# submitted by: {" ".join(create)}, with this on its stdin\n{text}', end='')
        return 0

    print(submit(create, text))
    where = ' '.join(['kubectl', *namespace])
    print(f'  {where} get jobset {options.name}')
    print(f'  {where} logs --follow job/{options.name}-{_HOSTS}-0')
    print(f'  {where} delete jobset {options.name}   # saves and stops')
    return 0


def manifest(options: Options, command: Sequence[str]) -> dict[str, Any]:
    """The JobSet, of jobset.x-k8s.io/v1alpha2, that runs `command` on every host."""
    from bert_jax.costs.chips import topology

    # Where it runs: how many hosts, what each has, and by which labels they are found.
    selector = dict(one.split('=', 1) for one in options.node_selector)
    requests = {'cpu': options.cpu, 'memory': options.memory}
    if options.topology:
        slice_ = topology(options.topology)
        hosts, chips = hosts_of(slice_, options.chips_per_host)
        limits = {'google.com/tpu': str(chips)}
        selector |= {
            'cloud.google.com/gke-tpu-accelerator': GKE_NAMES[slice_.chip.name],
            'cloud.google.com/gke-tpu-topology': slice_.name.partition(':')[2],
        }
    else:
        hosts = options.nodes or 1
        limits = {'nvidia.com/gpu': str(options.gpus)} if options.gpus else {}
    check_workdir(command, options.pvc)

    # What runs there. Process 0 is the first pod, whose name in DNS JobSet makes.
    words = ['python', '-m', 'launch.supervise', '--', *command]
    if hosts > 1 and options.topology:
        # GKE tells the hosts of a slice about each other. A flag is given once.
        words += [] if '--distributed' in words else ['--distributed']
    elif hosts > 1:
        words += [
            f'--coordinator={options.name}-{_HOSTS}-0-0.{options.name}:{_PORT}',
            f'--num_processes={hosts}',
            '--process_id=$(PROCESS_ID)',
        ]
    environment: list[dict[str, Any]] = [
        {'name': name, 'value': value} for name, value in (one.split('=', 1) for one in options.env)
    ]
    number = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    environment.append({'name': 'PROCESS_ID', 'valueFrom': {'fieldRef': {'fieldPath': number}}})

    # What it sees: the claims, and for GPUs more shared memory than the 64 MB of a container, for
    # NCCL passes data through it.
    volumes: list[dict[str, Any]] = []
    mounts = []
    for place, one in enumerate(options.pvc):
        claim, path = one.split(':', 1)
        volumes.append({'name': f'claim-{place}', 'persistentVolumeClaim': {'claimName': claim}})
        mounts.append({'name': f'claim-{place}', 'mountPath': path})
    if options.gpus:
        volumes.append({'name': 'shared-memory', 'emptyDir': {'medium': 'Memory'}})
        mounts.append({'name': 'shared-memory', 'mountPath': '/dev/shm'})

    container = {
        'name': 'run',
        'image': options.image,
        'command': words,
        'env': environment,
        'resources': {'requests': _set({**requests, **limits}), 'limits': limits},
        'volumeMounts': mounts,
    }
    pod = {
        'restartPolicy': 'Never',
        'terminationGracePeriodSeconds': options.grace_s,
        'serviceAccountName': options.service_account,
        'nodeSelector': selector,
        'securityContext': {'fsGroup': _USER} if options.pvc else None,
        'containers': [_set(container)],
        'volumes': volumes,
    }
    return {
        'apiVersion': 'jobset.x-k8s.io/v1alpha2',
        'kind': 'JobSet',
        'metadata': _set(
            {
                'name': options.name,
                'labels': {'kueue.x-k8s.io/queue-name': options.queue} if options.queue else None,
                # All hosts of a slice are one node pool, and another pool may have its shape.
                'annotations': {
                    'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'
                }
                if options.topology
                else None,
            }
        ),
        'spec': {
            # All hosts start again together, unless one ended with code 2.
            'failurePolicy': {
                'maxRestarts': options.max_restarts,
                'rules': [
                    {
                        'name': 'mistake',
                        'action': 'FailJobSet',
                        'onJobFailureReasons': ['PodFailurePolicy'],
                    }
                ],
            },
            # A name for each pod, before it is ready: so process 0 is found.
            'network': {'enableDNSHostnames': True, 'publishNotReadyAddresses': True},
            'replicatedJobs': [
                {
                    'name': _HOSTS,
                    'replicas': 1,
                    'template': {
                        'spec': {
                            'parallelism': hosts,
                            'completions': hosts,
                            'completionMode': 'Indexed',
                            'backoffLimit': 0,  # one host lost is all lost
                            'podFailurePolicy': {
                                'rules': [
                                    {
                                        'action': 'FailJob',
                                        'onExitCodes': {
                                            'containerName': 'run',
                                            'operator': 'In',
                                            'values': [UserError.exit_code],
                                        },
                                    }
                                ]
                            },
                            'template': {'spec': _set(pod)},
                        }
                    },
                }
            ],
        },
    }


def hosts_of(slice_: Topology, chips_per_host: int | None) -> tuple[int, int]:
    """(hosts, chips of each) of a slice of TPUs. UserError where its chips do not divide.

    By default the chips of the usual machines.
    """
    if slice_.chip.name not in GKE_NAMES:
        raise UserError(f'--topology={slice_.name}: no TPU: give --gpus=8 --nodes=2')
    chips = chips_per_host or slice_.chips_per_host
    if slice_.chips % chips:
        raise UserError(
            f'--topology={slice_.name}: its {slice_.chips} chips do not divide by'
            f' --chips_per_host={chips}'
        )
    return slice_.chips // chips, chips


def check_workdir(command: Sequence[str], claims: Sequence[str]) -> None:
    """UserError for a --workdir that is lost with its container."""
    for place, word in enumerate(command):
        flag, equals, value = word.partition('=')
        if flag.lstrip('-') != 'workdir':
            continue
        path = value if equals else ''.join(command[place + 1 : place + 2])
        mounts = [claim.partition(':')[2].rstrip('/') + '/' for claim in claims]
        if not path.startswith(('gs://', *mounts)):
            raise UserError(
                f'--workdir={path}: is lost with its container: name a gs:// address, or a folder'
                ' on a claim (--pvc=CLAIM:/PATH)'
            )


def _set(fields: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that are not set, or empty."""
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


if __name__ == '__main__':
    app.run(main, '-- COMMAND')
