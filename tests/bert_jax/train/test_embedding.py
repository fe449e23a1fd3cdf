"""Losses of vectors: on any mesh, in chunks, with padding rows.

Their formulas are compared in tests/parity.
"""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.configs.schema import OptimizerConfig, RuntimeConfig
from bert_jax.mesh import construction, sharding
from bert_jax.model import late_interaction, partition, splade
from bert_jax.train import task_heads
from bert_jax.train.learning_rate import hparams_of
from bert_jax.train.losses.multiple_negatives import LOSSES, make_vector_objective
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.state import make_state
from bert_jax.train.step import StepOptions, make_train_step
from tests.helpers.numpy_bert import make_batch, noisy_params
from tests.helpers.tiny import tiny_config

SHAPE = tiny_config(num_layers=1, num_heads=4, attention_dropout=0.0)
ROWS, TEXTS, LENGTH = 16, 3, 16


@pytest.mark.parametrize('name', LOSSES)
def test_rows_without_weight_are_not_there(name):
    """The loss and its gradients are those of the other rows; they are no candidates either."""
    rng = np.random.default_rng(0)
    texts = 2 if name in ('cosent', 'cosine') else 3
    vectors, teacher = rng.normal(size=(2, 7, texts, 8)).astype(np.float32)
    labels = np.array([0.1, 0.5, 0.5, 1.0, 0.0, 0.9, 0.3], np.float32)
    taught = {'teacher_vectors': teacher[..., None], 'teacher_scores': teacher[:, 1:, :1]}
    batch = {'input_ids': vectors, 'labels': labels, 'example_weights': np.ones(7), **taught}
    kept = np.array([1, 1, 0, 1, 1, 0, 1], bool)
    model = SimpleNamespace(apply=lambda variables, batch, _: variables['params'])
    config = EmbeddingConfig(loss=name, teacher='it' if name == 'mse' else '')
    objective = make_vector_objective(model, config)

    @jax.value_and_grad
    def compute(params, batch):
        return objective.sums(params, batch, None)['loss'][0] / objective.weights(batch)['loss']

    value, gradient = compute(vectors, batch | {'example_weights': kept.astype(np.float32)})
    wanted, of_kept = compute(vectors[kept], {name: x[kept] for name, x in batch.items()})
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    np.testing.assert_allclose(gradient[kept], of_kept, rtol=1e-4, atol=1e-6)
    assert not gradient[~kept].any() and np.abs(gradient[kept]).max(axis=(1, 2)).min() > 1e-5


def test_what_guessing_has():
    """Vectors that are all alike, or the best constant."""
    labels = np.array([0, 0.5, 0.5, 1], np.float32)
    for name, texts in (('multiple_negatives', 4), ('simcse', 2)):
        features = {'input_ids': np.zeros((4, texts, 9))}
        constant = LOSSES[name].constant(features, 4, 20.0)
        assert constant == pytest.approx(np.log(4 * (texts - 1)))
    vectors = np.random.default_rng(0).normal(size=(5, 2, 3, 1))
    guess = np.mean((vectors - vectors.mean((0, 1))) ** 2)
    assert LOSSES['mse'].constant({'teacher_vectors': vectors}, 4, 1.0) == pytest.approx(guess)
    assert LOSSES['cosine'].constant({'labels': labels}, 4, 20.0) == pytest.approx(np.var(labels))


def training_batch(texts: int) -> dict[str, np.ndarray]:
    rows = make_batch(SHAPE, ROWS * texts, LENGTH)
    names = ('input_ids', 'input_mask', 'segment_ids')
    batch = {name: rows[name].reshape(ROWS, texts, LENGTH) for name in names}
    labels = np.random.default_rng(1).random(ROWS).astype(np.float32)
    weights = np.append(np.ones(ROWS - 1), 0).astype(np.float32)
    return batch | {'labels': labels, 'example_weights': weights}


def stepped(config, mesh: dict | None = None, shards=False, accumulation=1, head='embedding'):
    """(loss, parameters) and the moments after a step with dropout."""
    runtime = RuntimeConfig(**(mesh or {'data_parallel': 1}))
    section, batch = 'embedding', training_batch(TEXTS)
    if isinstance(config, RankingConfig):
        section = head = 'ranking'
        labels = np.random.default_rng(2).integers(0, 3, (ROWS, TEXTS, 1))
        batch['labels'] = batch['teacher_scores'] = labels.astype(np.float32)
    model = task_heads.make_model(head, SHAPE, int(head == 'ranking'), 0.0, runtime)
    optimizer = OptimizerConfig('adamw', peak_lr=1e-3, schedule='constant', warmup_steps=0)
    step = make_train_step(
        task_heads.make_objective(head, model, LossSettings(**{section: config})),
        dataclasses.replace(optimizer, weight_decay=0.0),
        StepOptions(accumulation, shard_optimizer=shards),
    )
    # Half of the run is done, so that all losses count.
    state = make_state(jax.device_put(noisy_params(model)), optimizer)._replace(step=jnp.array(5))
    count = math.prod((mesh or {'data_parallel': 1}).values())
    devices = construction.make_mesh(runtime, jax.devices()[:count])
    with jax.set_mesh(devices):
        placed = jax.device_put(state, partition.choose_shardings(state, devices, shards))
        h = hparams_of(optimizer, 3, 10)
        after, metrics = jax.jit(step)(placed, sharding.place_batch(batch, devices, ROWS), h)
    moments = [leaf for leaf in jax.tree.leaves(jax.device_get(after.opt_state)) if leaf.ndim]
    return float(metrics['loss'][0]), moments


def assert_same(got, wanted):
    assert got[0] == pytest.approx(wanted[0], rel=1e-5)
    for leaf, other in zip(got[1], wanted[1], strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-6)
    assert max(np.abs(leaf).max() for leaf in wanted[1]) > 5e-3


@pytest.mark.parametrize('head', ['embedding', 'sparse_embedding', 'late_interaction'])
def test_candidates_are_those_of_all_devices_and_of_all_chunks(head, monkeypatch):
    """A step's loss and gradients do not depend on the mesh, nor on chunks, with dropout on."""
    # Where weights are split over `data` each device would take the gradients of its own rows.
    wanted = stepped(EmbeddingConfig(), head=head)
    found = stepped(EmbeddingConfig(), {'data_parallel': 8}, shards=True, head=head)
    assert_same(found, wanted)
    chunked = EmbeddingConfig(chunk_size=4)
    monkeypatch.setattr(splade, 'choose_block_rows', lambda width: ROWS)
    monkeypatch.setattr(late_interaction, '_PRODUCTS', 2 * ROWS * LENGTH**2)
    assert_same(stepped(chunked, {'fsdp': 2, 'model_parallel': 2}, head=head), wanted)


def test_lists_of_a_reranker_are_those_of_all_devices():
    """What they are divided by depends on no mesh; nor on micro-batches."""
    first = RankingConfig(loss='lambda', k=2)
    assert_same(stepped(first, {'data_parallel': 2, 'fsdp': 2}, shards=True), stepped(first))
    lists = RankingConfig(loss='ranknet')
    assert_same(stepped(lists, {'data_parallel': 2}, True, accumulation=2), stepped(lists))
