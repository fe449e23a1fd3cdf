"""What a family has other than BERT: where positions begin, and dropout around its pooler."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model import heads
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.encoder import POOLER_SITE
from tests.helpers.numpy_bert import noisy_params
from tests.helpers.tiny import tiny_config

CONFIG = tiny_config(
    num_layers=1,
    max_position=8,
    type_vocab_size=1,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    family='roberta',
)
IDS = np.random.default_rng(0).integers(5, 40, (3, 8)).astype(np.int32)
BATCH = {'input_ids': IDS, 'input_mask': np.ones_like(IDS), 'segment_ids': np.zeros_like(IDS)}


def test_all_padding_stands_in_the_row_before_the_first_position():
    """As transformers has it: one vector for each of a row's padding, which is not trained."""
    model, lengths = heads.EncoderOnly(CONFIG), np.array([8, 5, 3])
    params, real = noisy_params(model), np.arange(8) < lengths[:, None]
    batch = BATCH | {'input_ids': IDS * real, 'input_mask': real.astype(np.int32)}

    @jax.jit
    def hidden(params):
        return model.apply({'params': params}, batch)[0]

    # Without a place of their own, attending to the same tokens, they come out alike.
    before = np.asarray(hidden(params))
    np.testing.assert_allclose(before[2, 4:], before[2, 3:4].repeat(4, 0), atol=1e-6)
    assert np.abs(before[0, 4:] - before[0, 3]).max() > 0.1
    moved = jax.tree.map(np.array, params)
    moved['encoder']['embeddings']['position'][1] += np.arange(16)
    after = np.asarray(hidden(moved))
    np.testing.assert_array_equal(after[real], before[real])
    assert np.abs(after - before)[~real].max(-1).min() > 0.1
    slopes = jax.jit(jax.grad(lambda params: jnp.square(hidden(params)).sum()))(params)
    trained = np.abs(slopes['encoder']['embeddings']['position']).max(-1) > 0
    np.testing.assert_array_equal(trained, [False] * 2 + [True] * 8)


def test_the_classifier_drops_before_both_of_its_layers():
    """dropout, dense, tanh, dropout, projection, composed here of the encoder's first token."""
    model = heads.Classifier(CONFIG, outputs=3, head_dropout=0.5)
    params, rng = (
        noisy_params(model),
        DropoutRng(jax.random.key(7), jnp.arange(3, dtype=jnp.uint32)),
    )
    hidden, _ = heads.EncoderOnly(CONFIG).apply({'params': {'encoder': params['encoder']}}, BATCH)
    layer = lambda x, of: x @ of['kernel'] + of['bias'][None]
    x = dropout(hidden[:, 0], 0.5, rng, POOLER_SITE)
    x = jnp.tanh(layer(x, params['encoder']['pooler']))
    x = dropout(x, 0.5, rng, heads.HEAD_SITE)
    found = model.apply({'params': params}, BATCH, rng)
    np.testing.assert_allclose(found, layer(x, params['classifier']), atol=1e-5)

    # BERT's has none before its pooler, which is the encoder's.
    bert = dataclasses.replace(CONFIG, family='bert')
    model = heads.Classifier(bert, outputs=3, head_dropout=0.5)
    params = noisy_params(model)
    _, pooled = heads.EncoderOnly(bert).apply({'params': {'encoder': params['encoder']}}, BATCH)
    wanted = layer(dropout(pooled, 0.5, rng, heads.HEAD_SITE), params['classifier'])
    np.testing.assert_allclose(model.apply({'params': params}, BATCH, rng), wanted, atol=1e-5)
