"""How gradients are exchanged: each device is left with its own share of their sum.

That no exchange changes a loss is shown by tests/bert_jax/train/test_step.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import exchange
from bert_jax.mesh.construction import make_mesh
from bert_jax.mesh.exchange import sum_by_parts
from bert_jax.model import partition


def test_each_device_has_its_own_share_of_the_sum():
    # Whole numbers, which any order of adding them up leaves exact: row b of a batch has the
    # gradient b times the weights.
    table = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    kernels = np.stack([table + 7, table + 70])
    params = {'embeddings': {'word': table}, 'layers': {'query': {'kernel': kernels}}}
    rows = np.arange(24, dtype=np.float32)

    def summed(whole, _, rows):
        return jax.tree.map(lambda x: rows.sum() * x, whole), rows.sum()

    with jax.set_mesh(make_mesh(RuntimeConfig())):
        places = partition.find_places(params, True)
        by_parts = sum_by_parts(summed, places, P('data'))
        gradients, total = jax.jit(by_parts)(params, jnp.zeros(()), rows)
    assert total == rows.sum()
    for got, x in zip(jax.tree.leaves(gradients), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(got, rows.sum() * x)
        assert got.sharding.shard_shape(got.shape) == (*x.shape[:-2], 2, 3)


def test_a_sharded_update_without_effect_is_said():
    for parts in (8, 1):
        mesh = AbstractMesh((parts, 1, 1), ('data', 'fsdp', 'model'))
        found = exchange.list_without_effect(RuntimeConfig(shard_optimizer=True), mesh)
        assert bool(found) == (parts == 1)
