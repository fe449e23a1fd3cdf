"""The encoder and heads against a forward pass written in numpy from the paper's formulas alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.configs.schema import ModelConfig
from bert_jax.model import heads
from bert_jax.model.embeddings import padded_vocab
from bert_jax.train.state import init_params
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward
from tests.helpers.tiny import tiny_config


@pytest.mark.parametrize(
    ('changes', 'scan'),
    [
        ({}, False),
        ({'hidden_act': 'gelu_erf'}, False),
        ({'norm': 'pre', 'use_bias': False, 'positions': 'none'}, True),
        ({'attention': 'left_to_right'}, False),
        ({'embedding': 'hashed'}, False),
        ({'num_layers': 4, 'family': 'albert', 'embedding_size': 6, 'num_groups': 2}, False),
    ],
    ids=str,
)
def test_forward_equals_numpy(changes, scan):
    config = tiny_config(**changes)
    model, batch = heads.Pretraining(config, scan=scan), make_batch(config)
    params = noisy_params(model)
    mlm, nsp = jax.jit(model.apply)({'params': params}, batch)
    want_hidden, want_pooled, want_mlm, want_nsp = numpy_forward(params, config, batch)
    if not changes:
        inputs = (batch[name] for name in ('input_ids', 'input_mask', 'segment_ids'))
        encode = jax.jit(heads.Encoder(config).apply)
        hidden, pooled, _ = encode({'params': params['encoder']}, *inputs)
        np.testing.assert_allclose(hidden, want_hidden, atol=2e-5)
        np.testing.assert_allclose(pooled, want_pooled, atol=2e-5)
    np.testing.assert_allclose(mlm[..., : config.vocab_size], want_mlm, atol=5e-5)
    np.testing.assert_allclose(nsp, want_nsp, atol=2e-5)
    assert np.all(np.isneginf(mlm[..., config.vocab_size :]))


def test_initial_parameters_are_berts():
    model = heads.Pretraining(
        ModelConfig(
            vocab_size=1000, hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512
        )
    )
    params = jax.jit(lambda: init_params(model, 3))()
    kernel, word = (
        np.asarray(params['encoder']['layers']['intermediate']['kernel']),
        np.asarray(params['encoder']['embeddings']['word']),
    )
    assert np.abs(kernel).max() <= 0.04  # resampled beyond two deviations, as TensorFlow does
    assert abs(kernel.std() - 0.0176) < 2e-4  # 0.02 * 0.8796: truncation is not rescaled
    assert padded_vocab(1000) == 1024 and not word[1000:].any() and word[:1000].any(axis=1).all()
    assert np.all(np.asarray(params['encoder']['layers']['output_norm']['scale']) == 1)
    assert not np.asarray(params['nsp']['bias']).any()
