"""One train step against numpy; the same losses on every mesh; what happens to bad steps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
)
from bert_jax.input_pipeline.records.sampler import Growth
from bert_jax.mesh import construction, sharding
from bert_jax.model import heads, layout, partition
from bert_jax.model.blocks import matmul
from bert_jax.train.dynamic_masking import DynamicMasking
from bert_jax.train.learning_rate import hparams_of
from bert_jax.train.losses.masked_lm import make_pretraining_objective
from bert_jax.train.losses.objective import Objective
from bert_jax.train.state import TrainState, make_state
from bert_jax.train.step import StepOptions, jit_train_step, make_eval_step, make_train_step
from tests.bert_jax.train.test_dynamic_masking import rows_of
from tests.helpers.masking import MASK, VOCAB
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.packed import pack
from tests.helpers.tiny import tiny_config
from tests.helpers.trees import assert_same

CONFIG = tiny_config(num_heads=4, num_layers=1)
OPTIMIZER = OptimizerConfig(peak_lr=1e-2, warmup_steps=2)


def train(
    runtime: RuntimeConfig,
    batches: Iterable[dict],
    devices: list | None = None,
    optimizer: OptimizerConfig = OPTIMIZER,
    config: ModelConfig = CONFIG,
    **more,
) -> tuple[TrainState, list[dict]]:
    """The state after a step on each batch, with dropout on, and the sums of each.

    `more` is the step's.
    """
    mesh = construction.make_mesh(runtime, devices)
    model = heads.Pretraining(
        config,
        jnp.dtype(runtime.compute_dtype),
        runtime.remat,
        runtime.scan_layers,
        matmul_dtype=matmul.read_in_training(runtime),
        vocabulary_loss=runtime.vocabulary_loss,
    )
    shards = sharding.shards_update(runtime, mesh)
    params = layout.arrange_for_program(noisy_params(model), runtime.scan_layers)
    # On the host first: the step takes the state's memory, of which two leaves may share some.
    state = jax.device_get(make_state(params, optimizer))
    state = jax.device_put(state, partition.choose_shardings(state, mesh, shards))
    options = StepOptions(
        runtime.accumulation,
        dropout_rng=runtime.dropout_rng,
        shard_optimizer=shards,
        dtype=model.dtype,
        **more,
    )
    objective = make_pretraining_objective(model, nsp=True)
    step = jit_train_step(make_train_step(objective, optimizer, options), state)
    scalars, sums = hparams_of(optimizer, 7, 100), []
    with jax.set_mesh(mesh):
        for batch in batches:
            placed = sharding.place_batch(batch, mesh, len(batch['input_ids']))
            state, metrics = step(state, placed, scalars)
            sums.append(jax.device_get(metrics))
    assert step._cache_size() == 1  # one compilation, whatever the mesh
    return state, sums


def run(
    runtime: RuntimeConfig, steps: int = 4, batch: dict | None = None, **options
) -> tuple[TrainState, list[float]]:
    """The state and the losses after a few steps on one batch."""
    batches = [make_batch(CONFIG, 32) if batch is None else batch] * steps
    state, sums = train(runtime, batches, **options)
    return state, [float(found['loss'][0]) for found in sums]


def alone(**options) -> tuple[TrainState, list[float]]:
    """Those of one device."""
    return run(RuntimeConfig(), devices=jax.devices()[:1], **options)


@pytest.fixture(scope='module')
def baseline() -> list[float]:
    return alone()[1]


@pytest.mark.parametrize(
    'change',
    [
        {
            'fsdp': 2,
            'model_parallel': 2,
            'accumulation': 2,
            'remat': 'full',
            'vocabulary_loss': 'blocks',
        },
        pytest.param(
            {'model_parallel': 4, 'accumulation': 4, 'shard_optimizer': True, 'remat': 'dots'}
            | {'scan_layers': True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_losses_do_not_depend_on_mesh_accumulation_scan_or_remat(baseline, change, capfd):
    np.testing.assert_allclose(run(RuntimeConfig(**change))[1], baseline, rtol=2e-6)
    assert 'Involuntary full rematerialization' not in capfd.readouterr().err


@pytest.mark.slow
def test_packed_rows_have_the_same_losses_on_every_mesh():
    single = make_batch(CONFIG, rows=40, length=12)
    batch = pack(single, [(5 * i + a, 5 * i + b) for i in range(8) for a, b in ((0, 3), (1, 2))])
    runtime = RuntimeConfig(fsdp=2, model_parallel=2, accumulation=4)
    found = run(runtime, batch=batch)[1]
    np.testing.assert_allclose(found, alone(batch=batch)[1], rtol=2e-6)


@pytest.mark.slow
def test_bfloat16_moments_and_cheaper_masks_do_not_depend_on_the_mesh(baseline):
    narrow = dataclasses.replace(OPTIMIZER, moments='bfloat16')
    settings = {'dropout_rng': 'threefry13_8bit'}
    single = run(RuntimeConfig(**settings), devices=jax.devices()[:1], optimizer=narrow)
    settings |= {'fsdp': 2, 'model_parallel': 2, 'accumulation': 2}
    split = run(RuntimeConfig(**settings), optimizer=narrow)
    np.testing.assert_allclose(split[1], single[1], rtol=1e-5)
    # Other masks and rounded moments: near to what float32 gives, and not that.
    np.testing.assert_allclose(single[1], baseline, rtol=0.05)
    assert single[1] != baseline
    # Every place is rounded as on one mesh, but for the few where float noise tips it over.
    mus = [np.asarray(s.opt_state[1].mu['mlm']['bias'], np.float32) for s, _ in (single, split)]
    assert np.mean(mus[0] == mus[1]) > 0.95


def test_weights_and_moments_are_split_over_data_too_where_asked(baseline):
    split = RuntimeConfig(fsdp=2, model_parallel=2, shard_optimizer=True)
    state, found = run(split)
    np.testing.assert_allclose(found, baseline, rtol=2e-6)
    both = state.params['encoder'], state.opt_state[1].mu['encoder']
    share = lambda leaf: leaf.sharding.shard_shape(leaf.shape)
    for tree in both:
        block = tree['layers']['0']
        # Of [128, 16]; [16, 32] by width and model; [32, 16] by model and fsdp.
        assert share(tree['embeddings']['word']) == (16, 16)
        assert share(block['intermediate']['kernel']) == (4, 16)
        assert share(block['output']['kernel']) == (8, 8)
        assert share(block['intermediate']['bias']) == (16,)  # small: on every part of data
    # The rows that pad the table stay zero.
    word = np.asarray(state.params['encoder']['embeddings']['word'])
    assert word.shape == (128, 16) and not word[100:].any()
    assert not np.asarray(state.params['mlm']['bias'])[100:].any()


def test_a_batch_that_grows_is_trained_on_as_one_of_its_size():
    """With dropout, and with masks drawn in the step; a larger one is the same program."""
    change = {'accumulation': 4, 'fsdp': 2, 'shard_optimizer': True}
    records, _, _ = rows_of(rows=64, seq_len=16)
    records |= {'next_sentence_labels': np.arange(64, dtype=np.int32) % 2}
    masking = DynamicMasking(0.15, 4, (0.8, 0.1, 0.1), False, MASK, VOCAB)
    config = dataclasses.replace(CONFIG, vocab_size=VOCAB, attention_dropout=0.0)
    more = {'config': config, 'masking': masking}

    growth, places, batches = Growth(16, 1, 64, change['accumulation']), np.arange(64), []
    for number in (2, 3):
        rows = growth.rows(number, places) - growth.before(number)
        weights = {'example_weights': growth.weights(number, places)}
        batches.append({name: x[rows] for name, x in records.items()} | weights)
    _, (grown, full) = train(RuntimeConfig(**change), batches, grows=True, **more)
    whole = {name: x[:48] for name, x in records.items()}
    whole |= {'example_weights': np.ones(48, np.float32)}
    _, (wanted,) = train(RuntimeConfig(), [whole], jax.devices()[:1], **more)
    for name, entry in wanted.items():
        np.testing.assert_allclose(grown[name], entry, rtol=1e-5, err_msg=name)
    assert full['nsp_loss'][1] == 64


def test_a_non_finite_step_is_discarded_and_no_moment_is_copied():
    """The step takes the state's memory: a copy of an old moment would take its size again."""
    optimizer = dataclasses.replace(OPTIMIZER, algorithm='lamb_nvidia', moments='bfloat16')
    model = heads.Pretraining(
        dataclasses.replace(CONFIG, hidden_dropout=0.0, attention_dropout=0.0)
    )
    batch, h = make_batch(CONFIG), hparams_of(OPTIMIZER, 0, 10)
    params = noisy_params(model)
    # What is given away is in arrays of its own.
    state = jax.tree.map(jnp.array, make_state(params, optimizer))
    step = make_train_step(make_pretraining_objective(model, nsp=True), optimizer)
    compiled = jit_train_step(step, state).lower(state, batch, h).compile()
    entry = compiled.as_text().partition('\nENTRY')[2]
    arguments = set(re.findall(r'%(\S+) = \S+\[\d[^ ]* parameter\(', entry))  # scalars left out
    copied = set(re.findall(r' copy\(%(\S+)\)', entry)) & arguments
    assert len(arguments) > 60 and not copied

    bad = batch | {'masked_lm_weights': batch['masked_lm_weights'] * np.float32('nan')}
    after, metrics = compiled(state, bad, h)
    assert (int(after.step), int(after.bad_steps)) == (1, 1)
    assert not np.isfinite(metrics['loss'][0])
    assert_same(after.params, params)
    after, _ = compiled(after, batch, h)
    assert (int(after.step), int(after.bad_steps)) == (2, 0)


def test_a_gradient_that_is_not_finite_is_discarded_though_the_loss_is():
    """A root of 0 has an endless slope."""
    root = lambda params, batch, rng: {'loss': (jnp.sqrt(params['x']).sum(), jnp.ones(()))}
    objective = Objective(root, lambda batch: {'loss': jnp.ones(())})
    params = {'x': np.array([0.0, 4.0], np.float32)}
    step = jax.jit(make_train_step(objective, OPTIMIZER))
    batch = {'input_ids': np.zeros((8, 2), np.int32)}
    after, metrics = step(make_state(params, OPTIMIZER), batch, hparams_of(OPTIMIZER, 0, 10))
    assert float(metrics['loss'][0]) == 2 and np.isinf(metrics['grad_norm'][0])
    assert (int(after.step), int(after.bad_steps)) == (1, 1)
    assert_same(after.params, params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(after.opt_state))


def test_evaluation_counts_padding_rows_for_nothing():
    model = heads.Pretraining(CONFIG)
    batch = make_batch(CONFIG)
    params = noisy_params(model)
    evaluate = make_eval_step(make_pretraining_objective(model, nsp=True))
    twice = {name: rows[[0, 1, 0, 1]] for name, rows in batch.items()}
    half = {**batch, 'example_weights': np.array([1, 1, 0, 0], np.float32)}
    of_half, of_twice = evaluate(params, half), evaluate(params, twice)
    for name, pair in of_twice.items():
        np.testing.assert_allclose(np.multiply(of_half[name], 2), pair, rtol=1e-5, err_msg=name)
