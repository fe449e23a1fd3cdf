"""EuroBERT's and DistilBERT's parts: published counts, shared heads of keys, norms, late means."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.presets import eurobert
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.costs import flops
from bert_jax.mesh.construction import make_mesh
from bert_jax.model import heads, layout, partition
from bert_jax.model.blocks.norms import RMSNorm
from bert_jax.model.dropout import DropoutRng
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config

# (preset, vocabulary): (the encoder, with the masked-LM head), by transformers' shapes.
GOLDEN = {
    ('eurobert_210m', 128_256): (211_766_016, 310_266_624),
    ('eurobert_610m', 128_256): (607_874_688, 755_625_600),
    ('eurobert_2_1b', 128_256): (2_107_590_912, 2_403_092_736),
    ('distilbert_base', 30_522): (66_362_880, 66_985_530),
    ('distilbert_base', 28_996): (65_190_912, 65_812_036),
    ('distilbert_base', 119_547): (134_734_080, 135_445_755),
}
RNG = DropoutRng(jax.random.key(7), jnp.arange(4, dtype=jnp.uint32))


def tiny(**changes) -> ModelConfig:
    """EuroBERT with heads of 4, of which two share keys and values."""
    sizes = {'vocab_size': 50, 'num_heads': 4, 'num_kv_heads': 2, 'max_position': 16}
    settings = {'hidden_size': 16, 'num_layers': 3, 'intermediate_size': 12, **sizes, **changes}
    return eurobert.make_shape(**settings)


@pytest.mark.parametrize(('name', 'entries'), GOLDEN)
def test_golden_parameter_counts(name, entries):
    model = dataclasses.replace(load.load(name).model, vocab_size=entries)
    counts = flops.count_parameters(model, False), flops.count_parameters(model)
    assert counts == GOLDEN[name, entries]
    assert f'{counts[0]:,}' in load.PRESETS[name].__doc__


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_the_root_mean_square_is_divided_by(dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, (4, 256)), dtype)
    scale = np.random.default_rng(1).normal(1, 0.2, 256)
    found = RMSNorm(1e-5).apply({'params': {'scale': jnp.float32(scale)}}, x)
    exact = np.asarray(x, np.float64)
    wanted = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * scale
    assert found.dtype == x.dtype
    np.testing.assert_allclose(np.float64(found), wanted, rtol=4 * float(jnp.finfo(dtype).eps))


def test_shared_heads_are_heads_that_are_alike():
    """The same as a head of keys and values for each of queries, with copies of the weights."""
    config = tiny()
    params, batch = noisy_params(heads.EncoderOnly(config)), make_batch(config)
    wide = jax.tree.map(lambda leaf: leaf, params)
    for name in ('key', 'value'):
        kernel_LHW = params['encoder']['layers'][name]['kernel']
        assert kernel_LHW.shape == (3, 16, 8)
        copied = np.repeat(kernel_LHW.reshape(3, 16, 2, 4), 2, axis=2).reshape(3, 16, 16)
        wide['encoder']['layers'][name] = {'kernel': copied}
    states = []
    for shape, weights in ((config, params), (tiny(num_kv_heads=None), wide)):
        states.append(jax.jit(heads.EncoderOnly(shape).apply)({'params': weights}, batch)[0])
    np.testing.assert_allclose(*states, atol=1e-5)
    fewer = (
        flops.count_flops_by_part(tiny(), 16, 2),
        flops.count_flops_by_part(tiny(num_kv_heads=None), 16, 2),
    )
    # 6 FLOPs of each weight and token, in two matrices of three blocks
    assert fewer[1]['layers'] - fewer[0]['layers'] == 6 * 16 * 3 * 2 * 16 * 8
    assert fewer[1]['attention'] == fewer[0]['attention']


def test_logits_of_tokens_are_averaged():
    """Late pooling, beside the classifier applied to each token."""
    config = tiny()
    model, batch = heads.Classifier(config, outputs=3), make_batch(config)
    params = noisy_params(model)
    found = jax.jit(model.apply)({'params': params}, batch)
    states = jax.jit(heads.EncoderOnly(config).apply)({'params': params}, batch)[0]
    dense, out = params['encoder']['pooler'], params['classifier']
    hidden = np.asarray(states) @ dense['kernel'] + dense['bias']
    hidden = hidden * scipy.special.ndtr(hidden)
    logits = hidden @ out['kernel'] + out['bias']
    mask = batch['input_mask'][..., None]
    np.testing.assert_allclose(found, (logits * mask).sum(1) / mask.sum(1), atol=1e-5)


@pytest.mark.parametrize('split', [2, 4])
def test_no_mesh_and_no_loop_changes_loss_or_gradient(split):
    """Eight devices, whole heads of keys on each or parts of them; blocks in a loop, made again."""
    config = tiny()
    model, batch = heads.Pretraining(config), make_batch(config, rows=8)
    params = noisy_params(model)

    def loss(params, module):
        logits = module.apply({'params': params}, batch)[0][..., : config.vocab_size]
        return jnp.square(logits).mean()

    slope = jax.value_and_grad(loss)
    wanted = jax.jit(slope, static_argnums=1)(layout.arrange_for_program(params, False), model)
    mesh = make_mesh(RuntimeConfig(fsdp=2, model_parallel=split))
    with jax.set_mesh(mesh):
        module = model.clone(scan=True, remat='full')
        found = jax.jit(slope, static_argnums=1)(partition.put(params, mesh, True), module)
    assert abs(float(found[0]) - float(wanted[0])) < 1e-5
    found, wanted = layout.stack_blocks(found[1]), layout.stack_blocks(wanted[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), found, wanted)


def test_dropout_is_before_the_spans_of_distilbert_alone():
    moved = {}
    for family in ('bert', 'distilbert'):
        config = tiny_config(family=family, hidden_dropout=0.0, attention_dropout=0.0)
        model, batch = heads.Span(config, head_dropout=0.5), make_batch(config)
        params = {'params': noisy_params(model)}
        logits = [np.asarray(model.apply(params, batch, rng)) for rng in (None, RNG)]
        moved[family] = np.abs(logits[0] - logits[1]).max() > 0.01
    assert moved == {'bert': False, 'distilbert': True}


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'num_kv_heads': 3}, 'num_kv_heads=3: must be a divisor of num_heads=2'),
        (
            {'num_kv_heads': 1, 'positions': 'disentangled'},
            'left alone with positions=disentangled',
        ),
        ({'family': 'modernbert', 'pooling': 'late'}, "pooling='late': must be cls or mean"),
    ],
)
def test_what_does_not_fit_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        tiny_config(**changes)
