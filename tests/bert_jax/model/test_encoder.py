"""The encoder and heads against a forward pass written in numpy from the paper's formulas alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import construction, sharding
from bert_jax.model import heads, partition
from bert_jax.model.blocks.block import Block
from bert_jax.model.embeddings import pad_vocab
from bert_jax.model.encoder import Packing
from bert_jax.train.state import init_params
from tests.helpers.numpy_bert import make_batch, noisy_params, numpy_forward
from tests.helpers.tiny import tiny_config


@pytest.mark.parametrize(
    ('changes', 'scan'),
    [
        ({}, False),
        ({'norm': 'pre', 'use_bias': False, 'positions': 'none'}, True),
        # Three settings of three parts, in one program.
        ({'hidden_act': 'gelu_erf', 'attention': 'left_to_right', 'embedding': 'hashed'}, False),
        ({'num_layers': 4, 'family': 'albert', 'embedding_size': 6, 'num_groups': 2}, False),
        # ModernBERT's parts: the second and third blocks see few keys, turned by a base of their
        # own.
        (
            {'num_layers': 3, 'norm': 'pre', 'feed_forward': 'geglu', 'positions': 'rotary'}
            | {'rope_theta': 50.0, 'local_window': 3, 'local_rope_theta': 5.0},
            False,
        ),
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


@pytest.mark.parametrize(('changes', 'kinds'), [({}, 1), ({'local_window': 8}, 2)], ids=str)
def test_blocks_of_one_kind_are_traced_once(changes, kinds, monkeypatch):
    """And not compiled by themselves where the model is not: they would be so in each call."""
    config = tiny_config(num_layers=4, **changes)
    model, batch = heads.Pretraining(config), make_batch(config)
    params = {'params': noisy_params(model)}
    called = sublayers_called(monkeypatch)
    jax.jit(model.apply).trace(params, batch)
    # Twice each: attention and the feed-forward part.
    assert len(called) == 2 * kinds
    called.clear()
    model.apply(params, batch)
    assert [isinstance(x, jax.core.Tracer) for x in called] == [False] * 2 * config.num_layers


def sublayers_called(monkeypatch) -> list[jax.Array]:
    """What the blocks' sub-layers are given from now on."""
    called: list[jax.Array] = []
    of_block = Block._sublayer

    def sublayer(block, part, x, *rest):
        called.append(x)
        return of_block(block, part, x, *rest)

    monkeypatch.setattr(Block, '_sublayer', sublayer)
    return called


def test_initial_parameters_are_berts():
    sizes = {'vocab_size': 1000, 'hidden_size': 128, 'intermediate_size': 512}
    model = heads.Pretraining(tiny_config(**sizes))

    @jax.jit
    def leaves():  # what is not asked for is not computed
        params = init_params(model, 3)
        block = params['encoder']['layers']
        word = params['encoder']['embeddings']['word']
        scale, bias = block['output_norm']['scale'], params['nsp']['bias']
        return block['intermediate']['kernel'], word, scale, bias

    kernel, word, scale, bias = jax.device_get(leaves())
    assert np.abs(kernel).max() <= 0.04  # resampled beyond two deviations, as TensorFlow does
    assert abs(kernel.std() - 0.0176) < 2e-4  # 0.02 * 0.8796: truncation is not rescaled
    assert pad_vocab(1000) == 1024 and not word[1000:].any() and word[:1000].any(axis=1).all()
    assert np.all(scale == 1) and not bias.any()


def test_on_a_mesh_that_splits_the_kernels_of_the_bilstm():
    """The paper's section 5.1, which is left to right."""
    config = tiny_config(attention='left_to_right', bilstm=True)
    runtime = RuntimeConfig(fsdp=4, model_parallel=2)
    mesh, model = construction.make_mesh(runtime), heads.Pretraining(config)
    batch = make_batch(config, 4, 10)
    params = noisy_params(model)
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, partition.choose_shardings(params, mesh))
        _, nsp = jax.jit(model.apply)({'params': placed}, sharding.place_batch(batch, mesh, 4))
    np.testing.assert_allclose(nsp, numpy_forward(params, config, batch)[3], atol=2e-5)
    kernel = placed['encoder']['bilstm']['forward']['ii']['kernel']
    assert kernel.sharding.shard_shape(kernel.shape) == (16 // 4, 8)


@pytest.mark.parametrize('change', [{'attention': 'left_to_right'}, {'bilstm': True}], ids=str)
def test_packed_records_are_refused(change):
    ids, encoder = np.zeros((1, 4), np.int32), heads.Encoder(tiny_config(**change))
    with pytest.raises(UserError, match='packed records are for an encoder of bidirectional'):
        encoder.init(jax.random.key(0), ids, ids, ids, None, Packing(ids, ids, ids))
