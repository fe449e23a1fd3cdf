"""One train step against numpy; the same losses on every mesh; what happens to bad steps."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, RuntimeConfig
from bert_jax.mesh import construction, exchange, sharding
from bert_jax.model import heads
from bert_jax.train import losses
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.schedule import hparams_of
from bert_jax.train.state import TrainState, create_state, fresh_state
from bert_jax.train.step import jit_train_step, make_eval_step, make_train_step
from tests.helpers.numpy_bert import make_batch
from tests.helpers.packed import pack

CONFIG = ModelConfig(
    vocab_size=300, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, max_position=24
)
OPTIMIZER = OptimizerConfig(peak_lr=1e-2, warmup_steps=2)


def run(
    runtime: RuntimeConfig,
    steps: int = 5,
    rows: int = 32,
    resume: Checkpoints | None = None,
    batch: dict | None = None,
    optimizer: OptimizerConfig = OPTIMIZER,
    config: ModelConfig = CONFIG,
) -> tuple[TrainState, list[float]]:
    """The state and the losses after a few steps on one batch, with dropout on.

    From the newest checkpoint of `resume`, where that is given.
    """
    mesh = construction.make_mesh(runtime)
    model = heads.Pretraining(
        config,
        jnp.dtype(runtime.compute_dtype),
        runtime.remat,
        runtime.scan_layers,
        matmul_dtype=runtime.matmul_dtype,
    )
    shards = sharding.shards_update(runtime, mesh)
    state = create_state(model, 7, optimizer, mesh, shards)
    if resume:
        state, _ = resume.restore(state)
    objective, rng = losses.pretraining_objective(model, nsp=True), runtime.dropout_rng
    step = jit_train_step(
        make_train_step(
            objective,
            optimizer,
            runtime.accumulation,
            dropout_rng=rng,
            shard_optimizer=shards,
            dtype=model.dtype,
            all_to_all=exchange.is_all_to_all(runtime, mesh),
        ),
        state,
    )
    scalars, found = hparams_of(optimizer, 7, 100), []
    with jax.set_mesh(mesh):
        batch = sharding.place(batch or make_batch(config, rows), mesh, rows)
        for _ in range(steps):
            state, metrics = step(state, batch, scalars)
            found.append(float(metrics['loss'][0]))
    assert step._cache_size() == 1  # one compilation, whatever the mesh
    return state, found


@pytest.fixture(scope='module')
def baseline() -> list[float]:
    """Losses on a mesh of eight data-parallel devices."""
    return run(RuntimeConfig())[1]


# One factor at a time, from all eight devices along `data`.
ONE_FACTOR = [
    {'fsdp': 2},
    {'fsdp': 8},
    {'model_parallel': 2},
    {'model_parallel': 4},
    {'fsdp': 2, 'model_parallel': 2},
    {'fsdp': 4, 'model_parallel': 2},
    {'accumulation': 2},
    {'accumulation': 4},
    {'scan_layers': True},
    {'remat': 'dots'},
    {'remat': 'full'},
    {'shard_optimizer': True},
    {'shard_optimizer': True, 'gradient_exchange': 'all_to_all'},
]


def equal_losses(baseline, change, capfd):
    np.testing.assert_allclose(run(RuntimeConfig(**change))[1], baseline, rtol=2e-6)
    assert 'Involuntary full rematerialization' not in capfd.readouterr().err


@pytest.mark.parametrize(
    'change',
    [
        {'fsdp': 8, 'remat': 'full'},
        {'accumulation': 4, 'shard_optimizer': True},
        {'fsdp': 2, 'shard_optimizer': True, 'gradient_exchange': 'all_to_all'},
        pytest.param({'fsdp': 2, 'model_parallel': 2, 'accumulation': 2}, marks=pytest.mark.slow),
        pytest.param(
            {'model_parallel': 4, 'scan_layers': True, 'remat': 'dots'}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_losses_do_not_depend_on_mesh_accumulation_scan_or_remat(baseline, change, capfd):
    equal_losses(baseline, change, capfd)


@pytest.mark.parametrize(
    'change',
    [
        {'fsdp': 2, 'model_parallel': 2, 'accumulation': 2},
        pytest.param({'shard_optimizer': True, 'scan_layers': True}, marks=pytest.mark.slow),
        pytest.param({'fsdp': 4, 'model_parallel': 2, 'remat': 'full'}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_nor_where_blocks_share_their_weights(change, capfd):
    shared = dataclasses.replace(CONFIG, num_layers=4, num_groups=2, embedding_size=24)
    found = [run(RuntimeConfig(**one), 3, config=shared)[1] for one in ({}, change)]
    np.testing.assert_allclose(found[1], found[0], rtol=2e-6)
    assert 'Involuntary full rematerialization' not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('change', ONE_FACTOR, ids=str)
def test_losses_do_not_depend_on_any_one_factor(baseline, change, capfd):
    equal_losses(baseline, change, capfd)


@pytest.mark.slow
def test_losses_go_on_when_a_run_moves_to_other_meshes(baseline, tmp_path):
    state, found = run(RuntimeConfig(), steps=2)
    for change in (
        {'fsdp': 2, 'model_parallel': 4},
        {'fsdp': 8, 'shard_optimizer': True},
        {'model_parallel': 2, 'accumulation': 2},
    ):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(state, {'kind': 'pretrain'})
        checkpoints.wait()
        state, losses_there = run(RuntimeConfig(**change), steps=1, resume=checkpoints)
        checkpoints.close()
        found += losses_there
    np.testing.assert_allclose(found, baseline, rtol=2e-6)


@pytest.mark.slow
def test_packed_rows_have_the_same_losses_on_every_mesh():
    single = make_batch(CONFIG, rows=40, length=12)
    batch = pack(single, [(5 * i + a, 5 * i + b) for i in range(8) for a, b in ((0, 3), (1, 2))])
    want = run(RuntimeConfig(), rows=16, batch=batch)[1]
    for change in ({'fsdp': 4, 'model_parallel': 2}, {'model_parallel': 4, 'accumulation': 4}):
        np.testing.assert_allclose(
            run(RuntimeConfig(**change), rows=16, batch=batch)[1], want, rtol=2e-6
        )


@pytest.mark.slow
def test_rbg_masks_do_not_depend_on_the_mesh():
    changes = (
        {'dropout_rng': 'rbg', 'accumulation': 2},
        {
            'dropout_rng': 'rbg',
            'accumulation': 2,
            'fsdp': 2,
            'model_parallel': 2,
        },
    )
    one, other = (run(RuntimeConfig(**change), steps=3)[1] for change in changes)
    np.testing.assert_allclose(one, other, rtol=2e-6)


def test_bfloat16_moments_and_cheaper_masks_do_not_depend_on_the_mesh(baseline):
    narrow = dataclasses.replace(OPTIMIZER, moments='bfloat16')
    alone, split = (
        run(RuntimeConfig(dropout_rng='threefry13_8bit', **change), optimizer=narrow)
        for change in ({}, {'fsdp': 2, 'model_parallel': 2, 'accumulation': 2})
    )
    np.testing.assert_allclose(split[1], alone[1], rtol=1e-5)
    # Other masks and rounded moments: near to what float32 gives, and not that.
    np.testing.assert_allclose(alone[1], baseline, rtol=0.05)
    assert alone[1] != baseline
    # Every place is rounded as on one mesh, but for the few where float noise tips it over.
    mus = [np.asarray(s.opt_state[1].mu['mlm']['bias'], np.float32) for s, _ in (alone, split)]
    assert np.mean(mus[0] == mus[1]) > 0.95


@pytest.mark.parametrize(
    'change',
    [
        {'model_parallel': 4, 'accumulation': 2},
        {'fsdp': 8, 'scan_layers': True, 'remat': 'dots'},
    ],
    ids=str,
)
def test_products_that_read_bfloat16_do_not_depend_on_the_mesh(baseline, change):
    products = {'matmul_dtype': 'bfloat16'}
    alone, split = (run(RuntimeConfig(**products, **more))[1] for more in ({}, change))
    # What is near the middle of two bfloat16 is rounded up on one mesh and down on another.
    np.testing.assert_allclose(split, alone, rtol=2e-4)
    np.testing.assert_allclose(alone, baseline, rtol=0.01)
    assert alone != baseline


def test_weights_and_moments_are_split_over_data_too_where_asked():
    state, _ = run(RuntimeConfig(fsdp=2, model_parallel=2, shard_optimizer=True), steps=1)
    both = state.params['encoder'], state.opt_state[1].mu['encoder']
    share = lambda leaf: leaf.sharding.shard_shape(leaf.shape)
    for tree in both:
        block = tree['layers']['1']
        # Of [384, 32]; [32, 64] by width and model; [64, 32] by model and fsdp.
        assert share(tree['embeddings']['word']) == (48, 32)
        assert share(block['intermediate']['kernel']) == (8, 32)
        assert share(block['output']['kernel']) == (16, 16)
        assert share(block['intermediate']['bias']) == (32,)  # small: on every part of data


@pytest.mark.slow
def test_a_sharded_update_in_bfloat16_differs_by_rounding_alone():
    """Kernels are gathered, and their gradients added up, in the dtype that they are used in."""
    whole, shared = (
        run(RuntimeConfig(compute_dtype='bfloat16', shard_optimizer=shards), steps=4)
        for shards in (False, True)
    )
    # The rate of step 0 is 0: two steps with the same weights, which XLA fuses otherwise. A
    # bfloat16 has 8 bits, and one of a mean is far less.
    np.testing.assert_allclose(shared[1][:2], whole[1][:2], rtol=5e-5)
    np.testing.assert_allclose(shared[1], whole[1], rtol=2e-3)
    assert {leaf.dtype for leaf in jax.tree.leaves(shared[0].params)} == {np.dtype('float32')}


def test_losses_fall_and_dropout_is_on(baseline):
    # At this rate single losses leap up in the first ten steps, whatever the masks.
    longer = run(RuntimeConfig(), steps=16)[1]
    assert longer[-1] < longer[0] - 0.5
    # Step 0 has lr 0: the parameters are the same, the masks are not.
    assert baseline[0] != baseline[1]


def test_padding_rows_of_the_table_stay_zero():
    state, _ = run(RuntimeConfig(fsdp=2, model_parallel=2))
    word = np.asarray(state.params['encoder']['embeddings']['word'])
    assert word.shape == (384, 32) and not word[300:].any()
    assert not np.asarray(state.params['mlm']['bias'])[300:].any()


def numpy_adamw(params, grads, m, v, lr, config):
    """optimization.py:120-151, leaf by leaf, after one global clip."""
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads.values()))
    for name, g in grads.items():
        g = g * min(1.0, config.clip_norm / norm)
        m[name] = config.b1 * m[name] + (1 - config.b1) * g
        v[name] = config.b2 * v[name] + (1 - config.b2) * g**2
        update = m[name] / (np.sqrt(v[name]) + config.eps)
        if not name.endswith(('bias', 'scale')):
            update = update + config.weight_decay * params[name]
        params[name] = params[name] - lr * update


@pytest.mark.oldest
def test_steps_equal_numpy_adamw():
    """Three steps with the gradients of jax.grad and the optimizer of numpy."""
    config = OptimizerConfig(peak_lr=1e-2, warmup_steps=0, clip_norm=0.3)
    model = heads.Pretraining(
        ModelConfig(**{**CONFIG.__dict__, 'hidden_dropout': 0.0, 'attention_dropout': 0.0})
    )
    objective, batch = losses.pretraining_objective(model, nsp=True), make_batch(CONFIG)
    state = fresh_state(model.init(jax.random.key(0), batch)['params'], config)
    step, h = jax.jit(make_train_step(objective, config)), hparams_of(config, 0, 10)

    def loss(params):
        mlm, nsp = model.apply({'params': params}, batch)
        pick = lambda logits, labels: (
            -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        )
        return (
            pick(mlm, batch['masked_lm_ids']).mean()
            + pick(nsp, batch['next_sentence_labels']).mean()
        )

    flat = lambda tree: {
        sharding.path_of(p): np.asarray(x, np.float64)
        for p, x in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    params = flat(state.params)
    m, v = ({k: np.zeros_like(x) for k, x in params.items()} for _ in range(2))
    for t in range(3):
        grads = flat(jax.grad(loss)(state.params))
        numpy_adamw(params, grads, m, v, 1e-2 * (1 - t / 10), config)
        want = float(loss(state.params))
        state, metrics = step(state, batch, h)
        assert float(metrics['loss'][0]) == pytest.approx(want, rel=1e-4)
    for name, got in flat(state.params).items():
        if 'key/bias' not in name:  # its gradient is mathematically zero: noise divided by noise
            np.testing.assert_allclose(got, params[name], atol=2e-4, err_msg=name)


def test_a_non_finite_step_is_discarded_and_counted():
    model = heads.Pretraining(CONFIG)
    batch = make_batch(CONFIG)
    state = fresh_state(model.init(jax.random.key(0), batch)['params'], OPTIMIZER)
    step = jax.jit(make_train_step(losses.pretraining_objective(model, nsp=True), OPTIMIZER))
    bad = {**batch, 'masked_lm_weights': batch['masked_lm_weights'] * np.float32('nan')}
    after, metrics = step(state, bad, hparams_of(OPTIMIZER, 0, 10))
    assert int(after.step) == 1
    assert int(after.bad_steps) == 1
    assert not np.isfinite(metrics['loss'][0])
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    after, _ = step(after, batch, hparams_of(OPTIMIZER, 0, 10))
    assert int(after.step) == 2 and int(after.bad_steps) == 0


def test_evaluation_counts_padding_rows_for_nothing():
    model = heads.Pretraining(CONFIG)
    batch = make_batch(CONFIG)
    params = model.init(jax.random.key(0), batch)['params']
    evaluate = make_eval_step(losses.pretraining_objective(model, nsp=True))
    half = {k: v[:2] for k, v in batch.items()}
    weights = np.array([1, 1, 0, 0], np.float32)
    padded, alone = evaluate(params, {**batch, 'example_weights': weights}), evaluate(params, half)
    for name in alone:
        np.testing.assert_allclose(padded[name], alone[name], rtol=1e-5)


def test_sizes_that_do_not_divide_are_refused_by_name():
    with pytest.raises(
        UserError, match='data_parallel=3 x fsdp=1 x model_parallel=1 = 3, but there are 8'
    ):
        construction.make_mesh(RuntimeConfig(data_parallel=3))
    mesh = construction.make_mesh(RuntimeConfig())
    with pytest.raises(UserError, match='phases.0.batch_size=12 does not divide over 8 devices'):
        sharding.check_divides(mesh, 12, 1, 'phases.0.batch_size')
    assert sharding.local_rows(mesh, 32) == ((0, 32),)
