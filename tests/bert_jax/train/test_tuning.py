"""Parameter-efficient tuning: what each method adds, computes and trains.

Outputs are held against a forward pass written in numpy, counts against the papers' own figures.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.configs.load import load
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, RuntimeConfig
from bert_jax.conversion.trained_model import assemble_tuned, fold_tuned
from bert_jax.model import heads
from bert_jax.train import task_heads
from bert_jax.train.learning_rate import hparams_of
from bert_jax.train.state import init_params, join_frozen, load_encoder, make_state, split_frozen
from bert_jax.train.step import StepOptions, make_train_step
from tests.helpers.numpy_bert import (
    ACTIVATION,
    dense,
    make_batch,
    noisy_params,
    norm,
    numpy_encode,
)
from tests.helpers.tiny import tiny_config
from tests.helpers.trees import assert_same

SMALL = tiny_config(num_layers=3)
BASE = ModelConfig()
LARGE = ModelConfig(hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
# Of a method that does not tell three kinds of blocks apart two show as much as three.
PAIR = tiny_config()
LORA = {'method': 'lora', 'rank': 3, 'matrices': 'query,attention_output,intermediate,output'}
PFEIFFER = {'method': 'pfeiffer', 'width': 5, 'frozen_layers': 1}
IA3 = {'method': 'ia3', 'vectors': 'peft'}
ADAMIX = {'method': 'adamix', 'width': 5, 'consistency': False}
SPAFIT = {'method': 'spafit', 'rank': 3, 'frozen_layers': 1, 'bias_layers': 1}
BITFIT, HOULSBY = {'method': 'bitfit'}, {'method': 'houlsby', 'width': 5}
EVERY_METHOD = (BITFIT, LORA, HOULSBY, PFEIFFER, IA3, ADAMIX, SPAFIT)


def shape_for(options) -> ModelConfig:
    return SMALL if 'bias_layers' in options else PAIR


def tuned(config: ModelConfig, **options) -> ModelConfig:
    return config.tuned(TuningConfig(**options))


def classifier(config: ModelConfig):
    config = dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0)
    return task_heads.make_model('classifier', config, 2, 0.0, RuntimeConfig())


def applied(config: ModelConfig, params, batch):
    """The logits. One by one, operations of a shape are compiled once for all methods."""
    return classifier(config).apply({'params': params}, batch)


# Without the classifier. BERT-base: Ben Zaken et al. 2022, table 1 (0.1 M; 0.09 % of all); Hu et
# al. 2021, table 2 (0.3 M); Houlsby et al. with m=64; AdapterHub with a reduction of 16; Liu et al.
# 2022; AdaMix, table 2 (0.9 M at inference). BERT-large: Arora and Wang, 4-9 with LoRA of rank 8.
@pytest.mark.parametrize(
    ('config', 'options', 'count'),
    [
        (BASE, BITFIT, 102_912),
        (BASE, {'method': 'lora'}, 294_912),
        (BASE, {'method': 'houlsby'}, 12 * 2 * (2 * 768 * 64 + 64 + 768) + 36_864),
        (BASE, IA3, 64_512),
        (LARGE, {'method': 'spafit'}, 716_800),
        # By hand: without the table, which is computed, and with two rows of a classifier.
        (load('eelbert_tiny').model, {}, 479_362 - 2 * 129),
    ],
)
def test_as_many_weights_are_trained_as_published(config, options, count):
    config = tuned(config, **options)
    model = classifier(config)
    trained, _ = jax.eval_shape(lambda: split_frozen(init_params(model, 0), config))
    head = 2 * (config.hidden_size + 1)
    assert sum(leaf.size for leaf in jax.tree.leaves(trained)) - head == count


def numpy_linear(method: str, options):
    """What the methods put in the place of a product, written from the papers."""

    def lora(layer, name, x):
        y = dense(x, layer[name])
        if f'{name}_lora_a' not in layer:
            return y
        a, b = layer[f'{name}_lora_a']['kernel'], layer[f'{name}_lora_b']['kernel']
        return y + 16.0 / options['rank'] * (x @ a @ b)

    def ia3(layer, name, x):
        scale = layer.get(f'{name}_ia3', {'scale': 1.0})['scale']
        if name in ('key', 'value'):
            return dense(x, layer[name]) * scale
        return dense(x * scale, layer[name])

    return {'lora': lora, 'spafit': lora, 'ia3': ia3}.get(method)


def numpy_residual(method: str, config: ModelConfig):
    """What they put in the place of norm(x + out)."""
    norms = {'attention_output': 'attention_norm', 'output': 'output_norm'}

    def adapter(layer, name, x, act):
        down, up = layer[f'{name}_adapter_down'], layer[f'{name}_adapter_up']
        if down['kernel'].ndim == 3:  # of all experts the mean
            down = {k: v.mean(0) for k, v in down.items()}
        return dense(act(dense(x, down)), up)

    def houlsby(layer, name, x, out):
        changed = out + adapter(layer, name, out, ACTIVATION[config.hidden_act])
        return norm(x + changed, layer[norms[name]])

    def pfeiffer(layer, name, x, out):
        own = layer[norms[name]]
        if name == 'attention_output':
            return norm(x + out, own)
        change = adapter(layer, name, norm(x + out, own), ACTIVATION['relu'])
        return norm(x + out + change, own)

    def adamix(layer, name, x, out):
        if name == 'output':
            out = out + adapter(layer, name, out, ACTIVATION['gelu_erf'])
        return norm(x + out, layer[norms[name]])

    return {'houlsby': houlsby, 'pfeiffer': pfeiffer, 'adamix': adamix}.get(method)


@pytest.mark.parametrize('options', [BITFIT, LORA, HOULSBY, IA3, ADAMIX], ids=str)
def test_a_method_computes_what_its_paper_says(options):
    config = tuned(PAIR, **options)
    model = heads.EncoderOnly(config)
    params, batch = noisy_params(model), make_batch(config)
    hidden, pooled = model.apply({'params': params}, batch)
    own = numpy_linear(config.tuning.method, options), numpy_residual(config.tuning.method, config)
    want = numpy_encode(params['encoder'], config, batch, *own)
    np.testing.assert_allclose(hidden, want[0], atol=2e-5)
    np.testing.assert_allclose(pooled, want[1], atol=2e-5)


# LoRA's matrices are in SPAFIT too.
@pytest.mark.parametrize('options', [PFEIFFER, IA3, SPAFIT], ids=str)
def test_a_fresh_start_is_the_source(options):
    """What is added changes nothing at first, or, of adapters, very little."""
    plain = shape_for(options)
    config, source = tuned(plain, **options), noisy_params(classifier(plain))
    trained, frozen = split_frozen(jax.jit(lambda: init_params(classifier(config), 1))(), config)
    state = make_state(trained, OptimizerConfig(), frozen)
    state = load_encoder(state, source['encoder'], config, 'the source')
    whole = {**join_frozen(state.params, state.frozen), 'classifier': source['classifier']}
    got, want = (
        applied(shape, params, make_batch(plain))
        for shape, params in ((config, whole), (plain, source))
    )
    np.testing.assert_allclose(got, want, atol=0.05 if options is PFEIFFER else 1e-6)


def moved(options, accumulation: int = 1):
    """(state before, state after, config) of a step of a classifier under tuning."""
    return _moved(tuple(options.items()), accumulation)


@functools.cache
def _moved(options, accumulation: int):
    shape = shape_for(dict(options))
    config = tuned(shape, **dict(options))
    model = classifier(config)
    trained, frozen = split_frozen(noisy_params(model), config)
    optimizer = OptimizerConfig(peak_lr=0.01, warmup_steps=0, schedule='constant')
    as_arrays = lambda tree: jax.tree.map(jnp.asarray, tree)
    state = make_state(as_arrays(trained), optimizer, as_arrays(frozen))
    objective = task_heads.make_objective('classifier', model)
    step = make_train_step(objective, optimizer, StepOptions(accumulation))
    batch = make_batch(shape) | {'labels': np.array([0, 1, 1, 0], np.int32)}
    after, metrics = step(state, batch, hparams_of(optimizer, 3, 1))
    assert np.isfinite(metrics['loss'][0])
    return state, after, config


@pytest.mark.parametrize('options', EVERY_METHOD, ids=str)
def test_all_that_is_trained_moves_and_nothing_else(options):
    before, after, _ = moved(options)
    assert_same(before.frozen, after.frozen)
    old, new, moments = (
        traverse_util.flatten_dict(tree, sep='/')
        for tree in (before.params, after.params, after.opt_state[1].mu)
    )
    still = [name for name, leaf in new.items() if np.array_equal(leaf, old[name])]
    # A bias of all keys of a head moves every score of a query alike, which a softmax ignores:
    # its gradient is 0 but for rounding. With the others none may stand still.
    assert [name for name in still if 'key/bias' not in name] == []
    # Moments are of the trained weights alone.
    assert {name: leaf.shape for name, leaf in moments.items()} == {
        name: leaf.shape for name, leaf in new.items()
    }


@pytest.mark.parametrize('options', EVERY_METHOD, ids=str)
def test_assembled_and_folded_answer_as_the_run_did(options):
    before, after, config = moved(options)
    batch = make_batch(SMALL, seed=5)
    want = applied(config, join_frozen(after.params, after.frozen), batch)

    # The encoder with all blocks in one stack, as a source has it.
    whole = join_frozen(before.params, before.frozen)
    encoder = traverse_util.flatten_dict(whole['encoder'], sep='/')
    below = {k: v for k, v in encoder.items() if k.startswith('below_layers/')}
    source = {
        name: np.concatenate([below[f'below_{name}'], leaf]) if f'below_{name}' in below else leaf
        for name, leaf in encoder.items()
        if name not in below and not any(part in name for part in ('_lora_', '_ia3', '_adapter'))
    }
    source = jax.device_get(traverse_util.unflatten_dict(source, sep='/'))
    params, shape = assemble_tuned(source, jax.device_get(after.params), config, 'run')
    np.testing.assert_allclose(applied(shape, params, batch), want, atol=1e-6)

    params, shape = fold_tuned(params, shape)
    np.testing.assert_allclose(applied(shape, params, batch), want, atol=1e-5)
    plain = config.tuning.method not in ('houlsby', 'pfeiffer', 'adamix')
    assert (shape.tuning == TuningConfig()) == plain


def test_experts_are_drawn_by_step_and_not_by_row():
    """Two micro-batches draw the same expert as the whole batch: accumulation changes nothing."""
    (before, once, _), (_, twice, _) = moved(ADAMIX), moved(ADAMIX, accumulation=2)
    # Another expert would move by Adam's first step of 1e-2; a sum in another order moves a
    # gradient near 0 by 2e-6 on some processors.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), once.params, twice.params
    )
    # Each block's draw moves one expert of its four in a step of one pass, without decay.
    path = ('encoder', 'layers', 'output_adapter_down', 'bias')
    pair = [traverse_util.flatten_dict(state.params)[path] for state in (before, once)]
    assert (np.any(pair[0] != pair[1], axis=2).sum(1) == 1).all()
