"""Blocks that share their weights, and a narrow word table (ALBERT).

Numbers are compared with numpy's, gradients and dropout with those of a model in which each block
has a copy of its own.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import (
    FinetuneConfig,
    OptimizerConfig,
    TuningConfig,
)
from bert_jax.model import heads
from bert_jax.model.dropout import DropoutRng
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config

SHARED = tiny_config(
    vocab_size=60,
    num_layers=4,
    attention_dropout=0.0,
    family='albert',
    embedding_size=6,
    num_groups=2,
)
APART = dataclasses.replace(SHARED, num_groups=None)


def copied(params):
    """Parameters of APART, where each block has what it shares in SHARED."""
    layers = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), params['encoder']['layers'])
    return {**params, 'encoder': {**params['encoder'], 'layers': layers}}


def test_gradients_are_summed_over_the_blocks_and_dropout_tells_them_apart():
    """As those of copies in all blocks, whose dropout has a name for each block.

    So are those of what tuning adds, which is of the block and shared like all of it.
    """
    tuning = TuningConfig('adamix')
    shared, apart = SHARED.tuned(tuning), APART.tuned(tuning)
    batch, params = make_batch(SHARED), noisy_params(heads.Pretraining(shared))
    rng = DropoutRng(jax.random.key(7), jnp.arange(4, dtype=jnp.uint32))

    def gradients(config, params, *how):
        def loss(params):
            mlm, order = heads.Pretraining(config, jnp.float32, *how).apply(
                {'params': params}, batch, rng
            )
            return jnp.square(mlm[..., :60]).mean() + jnp.square(order).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    found, of_shared = gradients(shared, params, 'dots', True)
    wanted, of_copies = gradients(apart, copied(params), 'none', True)
    assert found == pytest.approx(float(wanted), rel=1e-5)
    summed = jax.tree.map(
        lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]).sum(1), of_copies['encoder'].pop('layers')
    )
    of_copies['encoder']['layers'] = summed
    for got, want in zip(jax.tree.leaves(of_shared), jax.tree.leaves(of_copies), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_what_tells_blocks_apart_is_one_line():
    with pytest.raises(UserError, match='--set tuning.frozen_layers=0$'):
        SHARED.tuned(TuningConfig('lora', frozen_layers=1))
    optimizer = OptimizerConfig(warmup_steps=0, layer_decay=0.9)
    with pytest.raises(UserError, match='tell blocks apart'):
        FinetuneConfig(optimizer=optimizer).encoder(SHARED)
