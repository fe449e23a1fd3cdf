"""Left-to-right attention and the BiLSTM on top (paper section 5.1).

Numbers are compared with numpy's.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import construction, sharding
from bert_jax.model import heads, partition
from bert_jax.model.encoder import Packing
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward
from tests.helpers.tiny import tiny_config

PLAIN = tiny_config(vocab_size=60)
LEFT = dataclasses.replace(PLAIN, attention='left_to_right')
BILSTM = dataclasses.replace(PLAIN, bilstm=True)
BOTH = dataclasses.replace(LEFT, bilstm=True)


def test_on_a_mesh():
    """The numbers of one device on a mesh that splits the BiLSTM's kernels too."""
    runtime = RuntimeConfig(fsdp=4, model_parallel=2)
    mesh, model = construction.make_mesh(runtime), heads.Pretraining(BOTH)
    batch = make_batch(BOTH, 4, 10)
    params = noisy_params(model)
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, partition.shardings(params, mesh))
        _, nsp = jax.jit(model.apply)({'params': placed}, sharding.place(batch, mesh, 4))
    np.testing.assert_allclose(nsp, numpy_forward(params, BOTH, batch)[3], atol=2e-5)
    kernel = placed['encoder']['bilstm']['forward']['ii']['kernel']
    assert kernel.sharding.shard_shape(kernel.shape) == (16 // 4, 8)


def test_packed_records_are_refused():
    batch = {
        name: np.zeros((1, 4), np.int32) for name in ('input_ids', 'input_mask', 'segment_ids')
    }
    for config in (LEFT, BILSTM):
        with pytest.raises(
            UserError,
            match='packed records are for an encoder of bidirectional attention without a BiLSTM',
        ):
            jax.eval_shape(
                heads.Encoder(config).init,
                jax.random.key(0),
                *batch.values(),
                None,
                Packing(*batch.values()),
            )
