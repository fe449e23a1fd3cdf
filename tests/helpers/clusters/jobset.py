"""Finds in the manifest of a JobSet what a cluster would refuse.

The fields are those of JobSet v1alpha2 (jobset.x-k8s.io, 0.6 and newer), Job and Pod that a run may
need; what else a manifest has is taken for a slip.
"""

from __future__ import annotations

import re
from typing import Any

TEXT, NUMBER, BOOL = re.compile(r'(?s).+'), int, bool
LABEL = re.compile(r'[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?')  # a label of DNS
VALUE = re.compile(r'([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?')  # of a label of an object
QUANTITY = re.compile(r'\d+(\.\d+)?(m|[kKMGTP]i?)?')


class Required:
    """A field that may not be left out."""

    def __init__(self, form: Any):
        self.form = form


class Map:
    """A map of names to values of one form."""

    def __init__(self, form: Any):
        self.form = form


POD = {
    'restartPolicy': Required({'Never', 'OnFailure'}),
    'terminationGracePeriodSeconds': NUMBER,
    'serviceAccountName': TEXT,
    'nodeSelector': Map(VALUE),
    'securityContext': {'fsGroup': NUMBER, 'runAsUser': NUMBER},
    'containers': Required(
        [
            {
                'name': Required(LABEL),
                'image': Required(TEXT),
                'command': [TEXT],
                'env': [
                    {
                        'name': Required(re.compile(r'[A-Za-z_][\w.-]*')),
                        'value': re.compile(r'(?s).*'),
                        'valueFrom': {'fieldRef': {'fieldPath': Required(TEXT)}},
                    }
                ],
                'resources': {'requests': Map(QUANTITY), 'limits': Map(QUANTITY)},
                'volumeMounts': [
                    {'name': Required(LABEL), 'mountPath': Required(re.compile(r'/[^:]*'))}
                ],
            }
        ]
    ),
    'volumes': [
        {
            'name': Required(LABEL),
            'emptyDir': {'medium': {'Memory'}},
            'persistentVolumeClaim': {'claimName': Required(TEXT)},
        }
    ],
}
JOB = {
    'parallelism': NUMBER,
    'completions': NUMBER,
    'completionMode': {'Indexed', 'NonIndexed'},
    'backoffLimit': NUMBER,
    'podFailurePolicy': {
        'rules': Required(
            [
                {
                    'action': Required({'FailJob', 'Ignore', 'Count', 'FailIndex'}),
                    'onExitCodes': {
                        'containerName': TEXT,
                        'operator': Required({'In', 'NotIn'}),
                        'values': Required([NUMBER]),
                    },
                }
            ]
        )
    },
    'template': Required({'spec': Required(POD)}),
}
JOBSET = {
    'apiVersion': Required({'jobset.x-k8s.io/v1alpha2'}),
    'kind': Required({'JobSet'}),
    'metadata': Required({'name': Required(LABEL), 'labels': Map(VALUE), 'annotations': Map(TEXT)}),
    'spec': Required(
        {
            'failurePolicy': {
                'maxRestarts': NUMBER,
                'rules': [
                    {
                        'name': Required(re.compile(r'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')),
                        'action': Required(
                            {'FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts'}
                        ),
                        'onJobFailureReasons': [
                            {'BackoffLimitExceeded', 'DeadlineExceeded', 'PodFailurePolicy'}
                        ],
                    }
                ],
            },
            'network': {'enableDNSHostnames': BOOL, 'publishNotReadyAddresses': BOOL},
            'replicatedJobs': [
                {
                    'name': Required(LABEL),
                    'replicas': NUMBER,
                    'template': Required({'spec': Required(JOB)}),
                }
            ],
        }
    ),
}


def slips_of(value: Any, form: Any, where: str) -> list[str]:
    """What of `value` is not of its form, each with its place."""
    match form:
        case dict():
            if not isinstance(value, dict):
                return [f'{where}: no object']
            found = [f'{where}.{name}: unknown field' for name in value if name not in form]
            for name, inner in form.items():
                needed = isinstance(inner, Required)
                if name in value:
                    inner = inner.form if needed else inner
                    found += slips_of(value[name], inner, f'{where}.{name}')
                elif needed:
                    found.append(f'{where}.{name}: Required value')
            return found
        case [inner]:
            if not isinstance(value, list) or not value:
                return [f'{where}: no list, or empty']
            return [
                slip
                for n, one in enumerate(value)
                for slip in slips_of(one, inner, f'{where}[{n}]')
            ]
        case Map():
            if not isinstance(value, dict):
                return [f'{where}: no map']
            return [
                slip
                for name in value
                for slip in slips_of(value[name], form.form, f'{where}[{name}]')
            ]
        case set():
            return [] if value in form else [f'{where}: Unsupported value: {value!r}']
        case re.Pattern():
            good = isinstance(value, str) and form.fullmatch(value)
            return [] if good else [f'{where}: Invalid value: {value!r}']
    return [] if type(value) is form else [f'{where}: Invalid value: {value!r}']


def clashes_of(manifest: Any) -> list[str]:
    """What is of the right form and does not go together."""
    found = []
    for job in manifest['spec']['replicatedJobs']:
        spec = job['template']['spec']
        pod = spec['template']['spec']
        name = f'{manifest["metadata"]["name"]}-{job["name"]}-0-{spec["completions"]}'
        if not LABEL.fullmatch(name):
            found.append(f'{name}: pod names must be no more than 63 characters')
        if 'podFailurePolicy' in spec and pod['restartPolicy'] != 'Never':
            found.append('podFailurePolicy needs restartPolicy Never')
        volumes = [volume['name'] for volume in pod['volumes']] if 'volumes' in pod else []
        for container in pod['containers']:
            # Extended resources cannot be overcommitted: a request of one is its limit.
            for kind, least in container['resources'].get('requests', {}).items():
                if '/' in kind and container['resources']['limits'].get(kind) != least:
                    found.append(f'{kind}: request and limit must be equal')
            for mount in container.get('volumeMounts', []):
                if mount['name'] not in volumes:
                    found.append(f'volumeMounts: {mount["name"]}: not found')
            for one in container['env']:
                if ('value' in one) == ('valueFrom' in one):
                    found.append(f'env: {one["name"]}: one of value and valueFrom')
            known = {one['name'] for one in container['env']}
            used = set(re.findall(r'\$\((\w+)\)', ' '.join(container['command'])))
            found += [f'command: $({one}) is no variable' for one in used - known]
    return found
