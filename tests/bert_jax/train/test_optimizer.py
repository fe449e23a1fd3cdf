"""Every optimizer against numpy on a list of layers, each block on its own.

Also schedules, rates by layer, and freezing.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.configs.load import load
from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import Piece
from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.schema import ModelConfig, OptimizerConfig
from bert_jax.mesh.sharding import format_path
from bert_jax.model import heads, layout
from bert_jax.train import learning_rate
from bert_jax.train.optimizer import compute_layer_rates, make_optimizer, mark_decayed
from bert_jax.train.state import init_params

L = 3
RNG = np.random.RandomState(0)
SHAPES = {
    'embeddings/word': (7, 4),
    'embeddings/norm/scale': (4,),
    'layers/query/kernel': (L, 4, 5),
    'layers/query/bias': (L, 5),
    'layers/output_norm/scale': (L, 4),
    'pooler/kernel': (4, 4),
    'nsp/bias': (2,),
}


def draw(scale: float) -> dict[str, np.ndarray]:
    """A flat tree of parameters or gradients.

    The blocks differ in size, so that one ratio for all of them would show.
    """
    size = lambda name, shape: (
        (1.0 + np.arange(L) * 3).reshape(-1, *(1,) * (len(shape) - 1)) if 'layers/' in name else 1.0
    )
    return {
        name: (RNG.normal(0, scale, shape) * size(name, shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def unstacked(tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tree with one entry a block, in float64.

    layers/query/kernel [L, ...] becomes layer_0/query/kernel and so on.
    """
    flat = {}
    for name, x in tree.items():
        parts = (
            {name.replace('layers', f'layer_{i}'): x[i] for i in range(L)}
            if 'layers/' in name
            else {name: x}
        )
        flat |= {n: np.array(part, np.float64) for n, part in parts.items()}
    return flat


def numpy_step(c: OptimizerConfig, lr: float, t: int, params, grads, m, v) -> None:
    """Step t (from 1) on a list of layers, as the published sources have it.

    That is optimization.py, lamb_optimizer.py and apex.
    """

    def rate(name: str) -> float:
        if 'embeddings' in name:
            return 0.0 if c.freeze_embeddings else c.layer_decay ** (L + 1)
        if 'layer_' in name:
            i = int(name.split('/')[0].removeprefix('layer_'))
            return 0.0 if i < c.freeze_layers else c.layer_decay ** (L - i)
        return 1.0

    free = [n for n in params if rate(n)]
    norm = math.sqrt(sum((grads[n] ** 2).sum() for n in free))
    for n in free:
        g = grads[n] / max(norm / c.clip_norm, 1.0) if c.clip_norm else grads[n]
        m[n] = c.b1 * m[n] + (1 - c.b1) * g
        v[n] = c.b2 * v[n] + (1 - c.b2) * g * g
        corrected = c.algorithm in ('adamw', 'lamb_mlperf', 'lamb_nvidia', 'lamb_nvlamb')
        m_hat, v_hat = (m[n] / (1 - c.b1**t), v[n] / (1 - c.b2**t)) if corrected else (m[n], v[n])
        u = m_hat / (np.sqrt(v_hat) + c.eps)
        excluded = n.endswith(('bias', 'scale'))
        # Of a rate that is a share of the peak: the decay does not depend on the peak.
        of_peak = c.peak_lr if c.decay == 'fully_decoupled' else 1.0
        decay = 0.0 if excluded else c.weight_decay / of_peak
        u = u + decay * params[n]
        match c.algorithm:
            case 'lamb_albert' | 'lamb_mlperf':
                adapts = not excluded
            case 'lamb_nvidia':
                adapts = decay != 0.0
            case _:
                adapts = c.algorithm == 'lamb_nvlamb'
        w_norm, u_norm = np.linalg.norm(params[n]), np.linalg.norm(u)
        ratio = w_norm / u_norm if adapts and w_norm > 0 and u_norm > 0 else 1.0
        params[n] = params[n] - lr * rate(n) * ratio * u


@pytest.mark.parametrize(
    'change',
    [
        {'algorithm': 'bert_adamw'},
        {'algorithm': 'adamw', 'decay': 'fully_decoupled'},
        {'algorithm': 'lamb_albert'},
        {'algorithm': 'lamb_mlperf', 'clip_norm': None},
        {'algorithm': 'lamb_nvidia', 'weight_decay': 0.0},
        {'algorithm': 'lamb_nvlamb'},
        {'algorithm': 'lamb_mlperf', 'freeze_embeddings': True, 'freeze_layers': 2},
        {'layer_decay': 0.8, 'freeze_layers': 1},
    ],
    ids=lambda change: '-'.join(map(str, change.values())),
)
def test_optimizers_equal_numpy_on_a_list_of_layers(change):
    config = OptimizerConfig(
        **{
            'peak_lr': 0.1,
            'schedule': 'constant',
            'warmup_steps': 0,
            'clip_norm': 0.5,
            'weight_decay': 0.1,
            **change,
        }
    )
    params = draw(1.0)
    params['embeddings/word'][5:] = 0.0
    params['nsp/bias'][:] = 0.0  # |w| = 0: the ratio is 1
    want, m = unstacked(params), {n: np.zeros_like(x) for n, x in unstacked(params).items()}
    v = {n: x.copy() for n, x in m.items()}
    optimizer = make_optimizer(config, learning_rate.hparams_of(config, 0, 10), 0)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for t in (1, 2, 3):
        grads = draw(10.0 if t == 1 else 0.01)  # clipped in the first step alone
        updates, state = update(grads, state, params)
        params = {n: np.asarray(params[n] + updates[n]) for n in params}
        numpy_step(config, 0.1, t, want, unstacked(grads), m, v)
        for name, got in unstacked(params).items():
            np.testing.assert_allclose(
                got,
                want[name],
                rtol=2e-5,
                atol=2e-6 * max(1, np.abs(want[name]).max()),
                err_msg=f'{name}, step {t}',
            )


def test_moments_in_bfloat16_keep_their_mean():
    """A second moment falls by a thousandth a step, and nearest rounding would never move it."""
    config = OptimizerConfig(moments='bfloat16', schedule='constant', warmup_steps=0)
    params = {'pooler/kernel': np.zeros((64, 64), np.float32)}
    ones, zeros = ({'pooler/kernel': np.full((64, 64), x, np.float32)} for x in (1.0, 0.0))

    @jax.jit
    def update(grads, state, step):
        h = learning_rate.hparams_of(config, 7, 1000)
        return make_optimizer(config, h, step).update(grads, state, params)[1]

    adam = lambda state: next(s for s in state if hasattr(s, 'mu'))
    state = make_optimizer(config, learning_rate.hparams_of(config, 7, 1000), 0).init(params)
    assert {x.dtype for x in jax.tree.leaves((adam(state).mu, adam(state).nu))} == {
        jnp.dtype('bfloat16')
    }
    # One gradient, scaled to the norm 1, then none: both decay, from 0.1 / 64 and 0.001 / 64**2.
    for step in range(101):
        state = update(zeros if step else ones, state, step)
        moments = adam(state)
        mean_m, mean_v = (
            float(np.asarray(x['pooler/kernel'], np.float64).mean())
            for x in (moments.mu, moments.nu)
        )
        if step in (1, 10):
            assert mean_m == pytest.approx(0.1 / 64 * 0.9**step, rel=1e-3)
    assert mean_v == pytest.approx(0.001 / 64**2 * 0.999**100, rel=2e-3)
    # Drawn for each place and each step.
    assert len(np.unique(np.asarray(moments.nu['pooler/kernel'], np.float32))) > 3


# Our arrays -> the tensors of code that fuses some of them, [outputs, inputs] as torch has them.
FUSED = {
    'Wqkv.weight': ['query/kernel', 'key/kernel', 'value/kernel'],
    'Wqkv.bias': ['query/bias', 'key/bias', 'value/bias'],
    'Wi.weight': ['intermediate/kernel', 'gate/kernel'],
    'norm.weight': ['output_norm/scale'],
}
WORDS, WIDTH, WIDE = 5, 4, 6


def to_tensors(tree: dict) -> dict[str, np.ndarray]:
    """The tensors of that code, in float64, of a tree with stacked blocks: without padding."""
    blocks = tree['encoder']['layers']
    leaf = lambda name, i: np.array(blocks[name.split('/')[0]][name.split('/')[1]][i], np.float64)
    tensors = {
        f'{i}.{name}': np.concatenate([leaf(part, i).T for part in parts])
        for name, parts in FUSED.items()
        for i in range(L)
    }
    tensors['words'] = np.array(tree['encoder']['embeddings']['word'][:WORDS], np.float64)
    tensors['bias'] = np.array(tree['mlm']['bias'][:WORDS], np.float64)
    return tensors


@pytest.mark.parametrize(('decay', 'is_stacked'), [('decoupled', True), ('fully_decoupled', False)])
def test_stable_adamw_equals_the_published_algorithm_on_its_own_tensors(
    decay, is_stacked, monkeypatch
):
    """Wqkv and Wi are one tensor each, and rows that pad the word table are in none."""
    pieces = {
        'encoder/layers/query': Piece('{}.Wqkv', 0, 3),
        'encoder/layers/key': Piece('{}.Wqkv', 1, 3),
        'encoder/layers/value': Piece('{}.Wqkv', 2, 3),
        'encoder/layers/intermediate': Piece('{}.Wi', 0, 2),
        'encoder/layers/gate': Piece('{}.Wi', 1, 2),
    }
    fused = dataclasses.replace(bert.FAMILY.transformers, arrays=bert.ARRAYS | pieces)
    monkeypatch.setitem(FAMILIES, 'bert', dataclasses.replace(bert.FAMILY, transformers=fused))
    model = ModelConfig(WORDS, WIDTH, L, 1, WIDE)
    config = OptimizerConfig(
        'stable_adamw', 0.02, 'linear', 5, b2=0.98, clip_norm=None, weight_decay=0.1, decay=decay
    )
    shapes = {f'{name}/kernel': (L, WIDTH, WIDTH) for name in ('query', 'key', 'value')}
    shapes |= {f'{name}/bias': (L, WIDTH) for name in ('query', 'key', 'value')}
    shapes |= {f'{name}/kernel': (L, WIDTH, WIDE) for name in ('intermediate', 'gate')}
    shapes |= {'output_norm/scale': (L, WIDTH)}

    def draw_tree(scale: float) -> dict:
        flat = {
            f'encoder/layers/{name}': RNG.normal(0, scale * RNG.uniform(0.1, 9), shape)
            for name, shape in shapes.items()
        }
        flat['encoder/embeddings/word'] = np.zeros((128, WIDTH))
        flat['encoder/embeddings/word'][:WORDS] = RNG.normal(0, scale, (WORDS, WIDTH))
        flat['mlm/bias'] = np.zeros(128)
        flat['mlm/bias'][:WORDS] = RNG.normal(0, scale, WORDS)
        flat = {name: x.astype(np.float32) for name, x in flat.items()}
        return traverse_util.unflatten_dict(flat, sep='/')

    h = learning_rate.hparams_of(config, 0, 20)
    update = jax.jit(
        lambda grads, state, params, step: make_optimizer(config, h, step, model=model).update(
            grads, state, params
        )
    )
    params = draw_tree(1.0)
    want = to_tensors(params)
    m, v = ({name: np.zeros_like(x) for name, x in want.items()} for _ in range(2))
    params = layout.arrange_for_program(params, is_stacked)
    state, shrunk = make_optimizer(config, h, 0, model=model).init(params), set()
    for t in range(1, 21):
        # Now and then a gradient is much larger than those before.
        grads = draw_tree(50.0 if t % 6 == 5 else 0.5)
        updates, state = update(layout.arrange_for_program(grads, is_stacked), state, params, t - 1)
        params = jax.tree.map(np.add, params, updates)
        lr = 0.02 * ((t - 1) / 5 if t <= 5 else (21 - t) / 15)
        for name, g in to_tensors(grads).items():
            b1, b2 = (1 - (1 - b) / (1 - b**t) for b in (config.b1, config.b2))
            m[name] += (1 - b1) * (g - m[name])
            v[name] = b2 * v[name] + (1 - b2) * g * g
            rms = math.sqrt(np.mean(g * g / np.maximum(v[name], config.eps**2)))
            lr_t = lr / max(1, rms)
            if rms > 1.5:
                shrunk.add(name)
            if g.ndim > 1:
                by = lr_t / 0.02 if decay == 'fully_decoupled' else lr_t
                want[name] *= 1 - by * 0.1
            want[name] -= lr_t * m[name] / (np.sqrt(v[name]) + config.eps)
        for name, got in to_tensors(layout.stack_blocks(params)).items():
            np.testing.assert_allclose(got, want[name], rtol=1e-4, atol=2e-6, err_msg=name)
    assert shrunk == want.keys()
    assert not np.any(params['encoder']['embeddings']['word'][WORDS:])


MODEL = ModelConfig(vocab_size=300, hidden_size=8, num_layers=4, num_heads=2, intermediate_size=16)


def test_what_decays_and_what_has_which_rate_in_the_model_itself():
    params = jax.eval_shape(lambda: init_params(heads.Pretraining(MODEL), 0))
    flat = lambda tree: {
        format_path(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    decayed = {name for name, decays in flat(mark_decayed(params)).items() if decays}
    kernels = ('query', 'key', 'value', 'attention_output', 'intermediate', 'output')
    tables = {f'encoder/embeddings/{name}' for name in ('word', 'position', 'segment')}
    heads_ = {'encoder/pooler/kernel', 'mlm/transform/kernel', 'nsp/kernel'}
    assert decayed == tables | heads_ | {f'encoder/layers/{name}/kernel' for name in kernels}
    rates = flat(compute_layer_rates(OptimizerConfig(layer_decay=0.5, freeze_layers=1), params))
    assert rates['encoder/layers/query/kernel'].ravel().tolist() == [0, 0.125, 0.25, 0.5]
    assert {float(rates[name]) for name in tables | {'encoder/embeddings/norm/scale'}} == {0.03125}
    assert {float(rates[name]) for name in heads_ | {'mlm/bias', 'mlm/norm/scale'}} == {1.0}


# Over 64 steps from 36 on, down to 0.2: 0.2 + 0.8 (1 - sqrt(done / 64)).
ONE_MINUS_SQRT = {
    'schedule': 'wsd', 'end_lr': 0.2, 'warmup_steps': 0, 'decay_fraction': 0.64,
    'decay_shape': 'one_minus_sqrt',
}  # fmt: skip
# {schedule: {step: rate}}, after ten steps of warm-up.
RATES = {
    'bert': {0: 0.0, 5: 0.5, 10: 0.9, 55: 0.45, 100: 0.0, 130: 0.0},
    'polynomial': {5: 0.5, 19: 0.9, 75: 0.5, 130: 0.0},
    'linear': {10: 1.0, 55: 0.5, 100: 0.0},
    'cosine': {10: 1.0, 55: 0.5, 100: 0.0},
    'wsd': {50: 1.0, 90: 0.5, 100: 0.0},
    'constant': {99: 1.0},
}


@pytest.mark.parametrize(
    ('settings', 'want'),
    [
        *(({'schedule': name}, rates) for name, rates in RATES.items()),
        (ONE_MINUS_SQRT, {36: 1.0, 37: 0.9, 52: 0.6, 100: 0.2, 999: 0.2}),
    ],
)
def test_learning_rate(settings, want):
    config = OptimizerConfig(**{'peak_lr': 1.0, 'warmup_steps': 10, 'power': 0.5, **settings})
    h = learning_rate.hparams_of(config, 0, 100)
    found = learning_rate.compute_learning_rate(config, h, np.array([*want])).tolist()
    assert found == pytest.approx([*want.values()], abs=1e-6)


def test_the_papers_two_phases_have_the_papers_rates():
    """Appendix A.2 and optimization.py:32-54: 1e-4 after 10,000 steps, then a line to 0.

    Steps count from 1, as in the log: the 10,001st is the first after warm-up.
    """
    config = load('bert_base')
    rates = {step: rate for step, _, rate in learning_rate.list_rates(config)}
    wanted = {1: 0.0, 10_000: 9.999e-5, 10_001: 9.9e-5, 900_001: 1e-5, 1_000_000: 1e-10}
    assert {step: rates[step] for step in wanted} == pytest.approx(wanted, rel=1e-4, abs=2e-12)
