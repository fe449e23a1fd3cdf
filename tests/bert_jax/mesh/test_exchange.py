"""How gradients are exchanged, as settings and devices choose it.

And that each device is left with its own share of their sum, in one step or in several. That no
exchange changes a loss is shown by tests/bert_jax/train/test_step.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from jax.sharding import PartitionSpec as P

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import exchange
from bert_jax.mesh.construction import make_mesh
from bert_jax.mesh.exchange import is_all_to_all, per_data_shard
from bert_jax.model import partition

V5E, V6E, V5P = ('TPU v5 lite', 'tpu'), ('TPU v6 lite', 'tpu'), ('TPU v5', 'tpu')
GPU = ('NVIDIA H100', 'gpu')


def mesh_of(device: tuple[str, str] | None, parts: int) -> AbstractMesh:
    kind = device and AbstractDevice(device[0], 1, device[1])
    return AbstractMesh((parts, 1, 1), ('data', 'fsdp', 'model'), abstract_device=kind)


def chosen(device: tuple[str, str] | None, parts: int, **runtime: object) -> bool:
    return is_all_to_all(RuntimeConfig(**runtime), mesh_of(device, parts))


@pytest.mark.parametrize(
    ('device', 'parts', 'runtime', 'expected'),
    [
        (V5E, 8, {}, True),
        (V5E, 32, {}, False),
        (V5E, 8, {'accumulation': 2}, False),
        (V5E, 8, {'scan_layers': True}, False),
        (V6E, 8, {}, False),  # its sparse cores reduce-scatter
    ],
)
def test_an_all_to_all_is_taken_by_itself_where_a_scatter_has_nothing_beside_it(
    device, parts, runtime, expected
):
    assert chosen(device, parts, **runtime) == expected


def test_what_libtpu_does_not_have_is_refused_in_a_line():
    assert chosen(GPU, 32, gradient_exchange='all_to_all')
    with pytest.raises(UserError, match='for up to 16 chips, and there are 32: use reduce_scatter'):
        chosen(V5E, 32, gradient_exchange='all_to_all')


@pytest.mark.parametrize(('sides', 'all_to_all'), [([2, 4], False), ([8], True)])
def test_each_device_has_its_own_share_of_the_sum_in_however_many_steps(
    monkeypatch, sides, all_to_all
):
    monkeypatch.setattr(exchange, '_scatter_sides', lambda mesh: sides)
    # Whole numbers, which any order of adding them up leaves exact: row b of a batch has the
    # gradient b times the weights.
    table = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    kernels = np.stack([table + 7, table + 70])
    params = {'embeddings': {'word': table}, 'layers': {'query': {'kernel': kernels}}}
    rows = np.arange(24, dtype=np.float32)

    def summed(whole, _, rows):
        return jax.tree.map(lambda x: rows.sum() * x, whole), rows.sum()

    with jax.set_mesh(make_mesh(RuntimeConfig())):
        places = partition.places_of(params, True)
        by_parts = per_data_shard(summed, places, P('data'), all_to_all=all_to_all)
        gradients, total = jax.jit(by_parts)(params, jnp.zeros(()), rows)
    assert total == rows.sum()
    for got, x in zip(jax.tree.leaves(gradients), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(got, rows.sum() * x)
        assert got.sharding.shard_shape(got.shape) == (*x.shape[:-2], 2, 3)


@pytest.mark.parametrize(
    ('device', 'parts', 'sides'),
    [
        (V5E, 4, [4]),
        (V5E, 8, [8]),  # 2x4, and all that is longer than it is wide
        (V5E, 64, [8, 8]),
        (V5P, 448, [16, 28]),  # 4x4x28
        (GPU, 64, [64]),
    ],
)
def test_tpus_scatter_along_one_side_of_their_wiring_after_the_other(device, parts, sides):
    assert exchange._scatter_sides(mesh_of(device, parts)) == sides


@pytest.mark.parametrize(
    ('device', 'parts', 'runtime', 'said'),
    [
        (None, 8, {'gradient_exchange': 'all_to_all', 'shard_optimizer': True}, []),
        (
            None, 8, {'gradient_exchange': 'all_to_all'},
            ['gradient_exchange=all_to_all has no effect: the update is not sharded'],
        ),
        (
            None, 1, {'gradient_exchange': 'all_to_all', 'shard_optimizer': True},
            [
                'gradient_exchange=all_to_all has no effect: one part of the mesh axis `data`',
                'shard_optimizer=true has no effect: one part of the mesh axis `data`',
            ],
        ),
        (
            V5E, 8,
            {'gradient_exchange': 'all_to_all', 'shard_optimizer': True, 'dropout_rng': 'rbg'},
            ['gradient_exchange=all_to_all has no effect: under runtime.dropout_rng=rbg'],
        ),
    ],
)  # fmt: skip
def test_a_named_exchange_without_effect_is_said(device, parts, runtime, said):
    found = exchange.without_effect(RuntimeConfig(**runtime), mesh_of(device, parts))
    assert len(found) == len(said)
    assert all(line.startswith(f'runtime.{begin}') for line, begin in zip(found, said, strict=True))
