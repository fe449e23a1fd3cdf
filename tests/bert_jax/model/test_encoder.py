"""The encoder and heads against a forward pass written in numpy from the paper's formulas alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.costs.flops import parameter_count
from bert_jax.model import heads
from bert_jax.model.embeddings import padded_vocab
from bert_jax.train.state import init_params
from configs.schema import ModelConfig
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward

CONFIG = ModelConfig(
    vocab_size=300, hidden_size=32, num_layers=3, num_heads=4, intermediate_size=64, max_position=24
)


@pytest.mark.parametrize('hidden_act', ['gelu_tanh', 'gelu_erf', 'relu'])
def test_forward_equals_numpy(hidden_act):
    config = ModelConfig(**{**CONFIG.__dict__, 'hidden_act': hidden_act})
    model, batch = heads.Pretraining(config), make_batch(config)
    params = noisy_params(model)
    mlm, nsp = jax.jit(model.apply)({'params': params}, batch)
    encode = jax.jit(heads.Encoder(config).apply)
    hidden, pooled, _ = encode(
        {'params': params['encoder']}, batch['input_ids'], batch['input_mask'], batch['segment_ids']
    )
    want_hidden, want_pooled, want_mlm, want_nsp = numpy_forward(params, config, batch)
    np.testing.assert_allclose(hidden, want_hidden, atol=2e-5)
    np.testing.assert_allclose(pooled, want_pooled, atol=2e-5)
    np.testing.assert_allclose(mlm[..., : config.vocab_size], want_mlm, atol=5e-5)
    np.testing.assert_allclose(nsp, want_nsp, atol=2e-5)
    assert np.all(np.isneginf(mlm[..., config.vocab_size :]))


def test_padding_to_a_longer_length_changes_no_real_position():
    model, batch = heads.Encoder(CONFIG), make_batch(CONFIG)
    params = noisy_params(heads.Pretraining(CONFIG))['encoder']
    apply = jax.jit(model.apply)
    short = apply(
        {'params': params}, batch['input_ids'], batch['input_mask'], batch['segment_ids']
    )[0]
    longer = [
        np.pad(batch[k], ((0, 0), (0, 8))) for k in ('input_ids', 'input_mask', 'segment_ids')
    ]
    long = apply({'params': params}, *longer)[0]
    real = batch['input_mask'].astype(bool)
    np.testing.assert_allclose(np.asarray(long)[:, :16][real], np.asarray(short)[real], atol=1e-5)


def test_scan_and_remat_change_nothing():
    batch, params = make_batch(CONFIG), noisy_params(heads.Pretraining(CONFIG))
    want = jax.jit(heads.Pretraining(CONFIG).apply)({'params': params}, batch)[1]
    for remat, scan in (('none', True), ('full', False), ('dots', True)):
        got = jax.jit(heads.Pretraining(CONFIG, jnp.float32, remat, scan).apply)(
            {'params': params}, batch
        )[1]
        np.testing.assert_allclose(got, want, atol=1e-6)


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
    # Rows of the table and entries of the output bias that stand for no word.
    padding = 24 * (128 + 1)
    assert sum(x.size for x in jax.tree.leaves(params)) - padding == parameter_count(model.config)
