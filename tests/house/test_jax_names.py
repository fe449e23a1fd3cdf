"""Which names of jax this program uses that jax may move: none private, few experimental.

A name is here because jax has no other place for it, on the oldest release that we support and on
the newest; these tests run on both.
"""

from __future__ import annotations

import importlib

import pytest

from tests.helpers.processes import ROOT
from tests.house.test_rooms import imported

EXPERIMENTAL = {
    # kernels for TPUs
    'pallas.ops.tpu.splash_attention': (
        'FullMask',
        'LocalMask',
        'MultiHeadMask',
        'SegmentIds',
        'make_splash_mha',
    ),
    # a mesh axis may share an axis of the torus, which jax.make_mesh refuses
    'mesh_utils': ('create_device_mesh',),
    # what several processes have to agree on
    'multihost_utils': ('process_allgather', 'sync_global_devices'),
    # chips that are not here, to compile for
    'topologies': ('get_topology_desc',),
    # tests open the cache anew
    'compilation_cache.compilation_cache': ('reset_cache',),
}
PRIVATE = ('jax._src', 'jaxlib._', 'flax.training', 'flax.linen.partitioning')


def test_nothing_private_and_nothing_experimental_that_is_not_in_the_list():
    folders = ('bert_jax', 'configs', 'input_pipeline', 'launch', 'benchmarks', 'tests')
    files = [path for folder in folders for path in (ROOT / folder).rglob('*.py')]
    files = [path for path in files if 'fixtures' not in path.parts]
    used = {name: path for path in files for name in imported(path)}
    assert 'jax' in used
    assert not {name: path for name, path in used.items() if name.startswith(PRIVATE)}
    ours = {name: path for name, path in used.items() if name.startswith('jax.experimental')}
    allowed = {f'jax.experimental.{name}' for name in EXPERIMENTAL}
    allowed |= {f'jax.experimental.{m}.{n}' for m, names in EXPERIMENTAL.items() for n in names}
    assert not {name: path for name, path in ours.items() if name not in allowed}
    assert not [m for m in EXPERIMENTAL if not any(f'experimental.{m}' in name for name in ours)]


@pytest.mark.oldest
@pytest.mark.parametrize('module', EXPERIMENTAL)
def test_what_is_experimental_is_there(module):
    found = importlib.import_module(f'jax.experimental.{module}')
    assert not [name for name in EXPERIMENTAL[module] if not hasattr(found, name)]
