"""Positions that add to scores: the formulas in numpy, and the same by any way of computing."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs import load
from bert_jax.configs.errors import UserError
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.costs import flops
from bert_jax.mesh import construction, sharding
from bert_jax.model import heads, layout, partition
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.model.blocks.block import make_parts
from bert_jax.model.blocks.part import Rows
from bert_jax.model.blocks.positions import DisentangledPositions
from bert_jax.model.dropout import DropoutRng
from bert_jax.train.losses import masked_lm
from bert_jax.train.optimizer import compute_layer_rates
from tests.helpers.numpy_bert import as64, dense, make_batch, noisy_params, norm
from tests.helpers.packed import pack
from tests.helpers.tiny import tiny_config

# (with its pooler, if it has one) as computed from transformers' shapes.
GOLDEN = {
    'mpnet_base': 109_486_464,
    'deberta_v3_xsmall': 70_682_112,
    'deberta_v3_small': 141_304_320,
    'deberta_v3_base': 183_831_552,
    'deberta_v3_large': 434_012_160,
    'mdeberta_v3_base': 278_218_752,
    'deberta_v2_xlarge': 884_593_152,
    'deberta_v2_xxlarge': 1_564_549_632,
}
SHAPES = {
    'bias': {'positions': 'relative_bias'},
    'shared': {'positions': 'disentangled', 'relative_buckets': 8},
    'own': {
        'positions': 'disentangled', 'relative_buckets': 8, 'relative_max': 12,
        'relative_projections': 'own', 'convolution': 3,
    },
    'p2c': {'positions': 'disentangled', 'relative_buckets': None, 'relative_terms': 'p2c'},
}  # fmt: skip


def bias_bucket(distance: int) -> int:
    """MPNet's bucket of key - query."""
    away = abs(distance)
    if away >= 8:
        # log2 counts doublings of 8, of which each has two buckets
        away = min(8 + math.floor(2 * math.log2(away / 8)), 15)
    return away + 16 * (distance > 0)


def distance_row(distance: int, buckets: int, farthest: int) -> int:
    """DeBERTa's row of query - key."""
    half, away = buckets // 2, abs(distance)
    if away > half:
        share = math.log(away / half) / math.log((farthest - 1) / half)
        away = half + math.ceil(share * (half - 1) - 1e-9)
    return min(max(buckets + int(math.copysign(away, distance)), 0), 2 * buckets - 1)


def encode(encoder, c, batch):
    """Hidden states in float64, score by score."""
    p = as64({'encoder': encoder})['encoder']
    e = p['embeddings']
    T, N, D = batch['input_ids'].shape[1], c.num_heads, c.hidden_size // c.num_heads
    x = e['word'][batch['input_ids']] + e['segment'][batch['segment_ids']]
    x = norm(x + e['position'][:T] if 'position' in e else x, e['norm'])
    table = p['relative']['table']
    if 'norm' in p['relative']:
        table = norm(table, p['relative']['norm'])
    first = x * batch['input_mask'][..., None]
    for i in range(c.num_layers):
        layer = jax.tree.map(lambda w, i=i: w[i], p['layers'])
        split = lambda y: y.reshape(*y.shape[:-1], N, D)
        q, k, v = (split(dense(x, layer[name])) for name in ('query', 'key', 'value'))
        own = 'position_' if c.relative_projections == 'own' else ''
        terms = c.relative_terms.split('_')
        scores = np.einsum('btnd,bsnd->bnts', q, k)
        divisor = D * (1 if c.positions == 'relative_bias' else 1 + len(terms))
        for t in range(T):
            for s in range(T):
                if c.positions == 'relative_bias':
                    scores[:, :, t, s] += table[bias_bucket(s - t)] * math.sqrt(D)
                    continue
                row = min(max(t - s + c.max_position, 0), 2 * c.max_position - 1)
                if c.relative_buckets:
                    far = c.relative_max or c.max_position
                    row = distance_row(t - s, c.relative_buckets, far)
                if 'c2p' in terms:
                    key = split(dense(table[row], layer[f'{own}key']))
                    scores[:, :, t, s] += np.einsum('bnd,nd->bn', q[:, t], key)
                if 'p2c' in terms:
                    query = split(dense(table[row], layer[f'{own}query']))
                    scores[:, :, t, s] += np.einsum('bnd,nd->bn', k[:, s], query)
        scores = scores / math.sqrt(divisor) + (batch['input_mask'][:, None, None] - 1) * 1e4
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        context = np.einsum('bnts,bsnd->btnd', probs, v).reshape(x.shape)
        x = norm(x + dense(context, layer['attention_output']), layer['attention_norm'])
        gelu = lambda y: y * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        out = dense(gelu(dense(x, layer['intermediate'])), layer['output'])
        x = norm(x + out, layer['output_norm'])
        if i == 0 and c.convolution:
            wide = np.pad(first, [(0, 0), (1, 1), (0, 0)])
            conv = p['convolution']
            y = sum(wide[:, j : j + T] @ conv['kernel'][j] for j in range(3)) + conv['bias']
            x = norm(x + np.vectorize(lambda a: a * 0.5 * (1 + math.erf(a / 2**0.5)))(y),
                     conv['norm'])  # fmt: skip
    return x


@pytest.mark.parametrize('name', SHAPES)
def test_states_equal_numpy(name):
    config = tiny_config(**SHAPES[name])
    model, batch = heads.EncoderOnly(config), make_batch(config, length=40)
    params = noisy_params(model)
    hidden, _ = jax.jit(model.apply)({'params': params}, batch)
    wanted = encode(params['encoder'], config, batch)
    real = batch['input_mask'] > 0
    np.testing.assert_allclose(np.asarray(hidden)[real], wanted[real], atol=2e-5)


@pytest.mark.parametrize(
    ('name', 'method'), [('bias', 'full'), ('shared', 'lora'), ('own', 'full')]
)
def test_a_loop_computes_what_blocks_in_turn_compute(name, method):
    """With dropout, on the table of distances too, and what tuning adds to a matrix read twice."""
    config = tiny_config(num_layers=3, **SHAPES[name]).tuned(TuningConfig(method))
    model, batch = heads.Pretraining(config, remat='dots'), make_batch(config)
    params, values = noisy_params(model), []
    rng = DropoutRng(jax.random.key(7), jnp.arange(4, dtype=jnp.uint32))
    for is_scanned in (False, True):
        module = model.clone(scan=is_scanned)

        def loss(params, module=module):
            logits = module.apply({'params': params}, batch, rng)[0][..., : config.vocab_size]
            return jnp.square(logits).mean()

        arranged = layout.arrange_for_program(params, is_scanned)
        value, gradient = jax.jit(jax.value_and_grad(loss))(arranged)
        values.append((value, layout.stack_blocks(gradient)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), *values)
    assert np.abs(values[0][1]['encoder']['relative']['table']).max() > 1e-4


def test_each_block_drops_other_numbers_of_the_table():
    config = tiny_config(hidden_dropout=0.5, **SHAPES['shared'])
    ids, heads_BTND, given = jnp.ones((2, 5), jnp.int32), jnp.ones((2, 5, 2, 8)), []

    def linear(name, x):
        given.append(np.asarray(x))
        return x

    rng = DropoutRng(jax.random.key(7), jnp.arange(2, dtype=jnp.uint32))
    for site, dropout_rng in ((1, rng), (4, rng), (1, None)):
        rows = Rows(ids, dropout_rng=dropout_rng, relative=jnp.ones((16, 16)))
        DisentangledPositions(config).biased(heads_BTND, heads_BTND, linear, rows, site)
    first, as_first, second, _, whole, _ = given
    assert (first == as_first).all() and (whole == 1).all()
    assert set(np.unique(first)) == {0, 2} and 0.3 < (first != second).mean() < 0.7


@pytest.mark.parametrize('name', ['bias', 'own'])
def test_packed_rows_are_as_rows_of_one_example(name):
    config = tiny_config(**SHAPES[name])
    single = make_batch(config, rows=5, length=12)
    model = heads.Pretraining(config, scan=True)
    objective, params = masked_lm.make_pretraining_objective(model, nsp=True), noisy_params(model)

    @jax.jit
    def measure(params, batch):
        def loss(params):
            sums, weights = objective.sums(params, batch, None), objective.weights(batch)
            return sum(sums[name][0] / weight for name, weight in weights.items())

        return jax.value_and_grad(loss)(params)

    results = measure(params, single), measure(params, pack(single))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), *results)


@pytest.mark.parametrize('name', ['bias', 'own'])
def test_eight_devices_compute_what_one_computes(name):
    config = tiny_config(**SHAPES[name])
    runtime = RuntimeConfig(fsdp=2, model_parallel=2)
    mesh, model = construction.make_mesh(runtime), heads.Pretraining(config)
    batch = make_batch(config, 8, 12)
    params = noisy_params(model)
    rng = DropoutRng(jax.random.key(3), jnp.arange(8, dtype=jnp.uint32))

    def loss(params, batch):
        return jnp.square(model.apply({'params': params}, batch, rng)[0][..., :100]).mean()

    compute = jax.jit(jax.value_and_grad(loss))
    wanted = compute(params, batch)
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, partition.choose_shardings(params, mesh))
        found = jax.jit(jax.value_and_grad(loss))(placed, sharding.place_batch(batch, mesh, 8))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4),
        *map(jax.device_get, (wanted, found)),
    )
    if name == 'own':
        kernel = placed['encoder']['layers']['position_key']['kernel']
        assert kernel.sharding.shard_shape(kernel.shape) == (2, 8, 8)


@pytest.mark.parametrize('name', GOLDEN)
def test_published_sizes(name):
    assert flops.count_parameters(load.load(name).model, False) == GOLDEN[name]
    assert f'{GOLDEN[name]:,}' in load.PRESETS[name].__doc__


def test_products_with_distances_count():
    plain, deberta = tiny_config(positions='none'), tiny_config(**SHAPES['own'])
    products = [make_parts(shape)[0].flops(10) for shape in (plain, deberta)]
    assert products == [4 * 16 * 100, 4 * 16 * 100 + 2 * 2 * 10 * 19 * 16]
    parts = flops.count_flops_by_part(deberta, 10, 2)
    assert parts['convolution'] == 6 * 3 * 16 * 16 * 10
    assert parts['layers'] == flops.count_flops_by_part(plain, 10, 2)['layers']


def test_kernels_that_add_nothing_are_refused():
    model = tiny_config(attention_dropout=0.0, **SHAPES['bias'])
    bfloat16 = {'compute_dtype': 'bfloat16'}
    assert choose_kernel(RuntimeConfig(**bfloat16), model, 512, platform='gpu') == 'xla'
    with pytest.raises(UserError, match='attention=cudnn adds nothing to scores, as model.posit'):
        choose_kernel(RuntimeConfig(attention='cudnn', **bfloat16), model, 512, platform='gpu')


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'local_window': 4, **SHAPES['bias']}, 'local_window=4: must be left alone with positi'),
        ({'local_window': 4, **SHAPES['shared']}, 'local_window=4: must be left alone with posi'),
        ({'num_kv_heads': 1, **SHAPES['shared']}, 'num_kv_heads=1: must be left alone with pos'),
        ({'relative_terms': 'c2p'}, "relative_terms='c2p': must be left alone with positions=lear"),
        ({'relative_norm': False, 'positions': 'rotary'}, 'relative_norm=False: must be left al'),
        ({'convolution_act': 'tanh'}, "convolution_act='tanh': must be left alone without convol"),
        ({'convolution': 2}, 'convolution=2: must be odd'),
        ({'num_heads': 3, **SHAPES['shared']}, 'num_heads=3: must be a divisor of hidden_size'),
        ({'relative_terms': 'p2p', 'positions': 'disentangled'}, 'relative_terms=.?p2p'),
    ],
)
def test_settings_that_do_not_fit(changes, said):
    with pytest.raises(UserError, match=said) as error:
        tiny_config(**changes)
    assert '\n' not in str(error.value)


def test_what_all_blocks_are_given_learns_at_the_rate_of_the_embeddings():
    params = noisy_params(heads.Pretraining(tiny_config(**SHAPES['own'])))
    rates = compute_layer_rates(OptimizerConfig(layer_decay=0.5), params)['encoder']
    assert rates['relative']['table'] == rates['convolution']['kernel'] == 0.5**3
