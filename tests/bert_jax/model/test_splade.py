"""Weights of sparse vectors: pooled from the logits of the masked-LM head, whole or in blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.model.vector_kinds import SparseConfig
from bert_jax.model import heads, splade
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config

SHAPE = tiny_config(num_layers=1)
ROWS, LENGTH = 6, 16


@pytest.mark.parametrize('pooling', ['max', 'sum'])
@pytest.mark.parametrize('activation', ['relu', 'log1p_relu'])
def test_weights_are_pooled_from_the_logits(pooling, activation, monkeypatch):
    """In blocks of positions, the last not full, the weights and gradients are the same."""
    batch = make_batch(SHAPE, ROWS, LENGTH)
    assert 0 < batch['input_mask'].mean() < 1
    words = heads.Pretraining(SHAPE)
    params = noisy_params(words)
    everywhere = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    logits, _ = words.apply({'params': params}, {**batch, 'masked_lm_positions': everywhere})
    weights = np.log1p(np.maximum(logits * batch['input_mask'][..., None], 0))
    if activation == 'log1p_relu':
        weights = np.log1p(weights)
    wanted = getattr(weights, pooling)(axis=1)[:, : SHAPE.vocab_size]
    assert (wanted > 0).mean() > 0.1 and wanted.shape[1] < logits.shape[2]

    model = heads.SparseEncoder(SHAPE, sentence=SparseConfig(pooling, activation))
    loss = lambda params: jnp.sum(jnp.square(model.apply({'params': params}, batch)))
    np.testing.assert_allclose(model.apply({'params': params}, batch), wanted, rtol=1e-5, atol=1e-6)
    gradients = jax.grad(loss)(params)
    monkeypatch.setattr(splade, 'choose_block_rows', lambda width: 5 * ROWS)
    assert 'scan' in str(jax.make_jaxpr(loss)(params))
    np.testing.assert_allclose(model.apply({'params': params}, batch), wanted, rtol=1e-5, atol=1e-6)
    for found, whole in zip(
        *map(jax.tree.leaves, (jax.grad(loss)(params), gradients)), strict=True
    ):
        np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)
    assert np.abs(gradients['mlm']['bias']).max() > 1e-3
