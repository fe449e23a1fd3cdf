"""Rows through a compiled function: none is lost, results stand in the rows' order, and what fills
a batch up is seen nowhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import construction
from bert_jax.runs.finetuning import data_collator
from bert_jax.runs.finetuning.data_collator import (
    DataCollator,
    bucket_by_length,
    gather,
    run,
)


def load_features(lengths: np.ndarray, S: int = 64, choices: int = 0) -> dict[str, np.ndarray]:
    """Rows of so many tokens, whose ids are their own number."""
    mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
    ids = mask * np.arange(1, len(lengths) + 1, dtype=np.int32)[:, None]
    features = {'input_ids': ids, 'input_mask': mask, 'segment_ids': mask}
    if not choices:
        return features
    return {name: np.repeat(value[:, None], choices, 1) for name, value in features.items()}


@pytest.fixture
def mesh():
    return construction.make_mesh(RuntimeConfig())


@pytest.fixture
def small_batches(monkeypatch):
    """So that there are several batches of a length."""
    monkeypatch.setitem(data_collator._EVAL_TOKENS, jax.default_backend(), 1024)


@pytest.mark.parametrize('choices', [0, 3])
def test_every_row_is_planned_once_in_a_batch_as_long_as_it(mesh, small_batches, choices):
    lengths = np.random.default_rng(0).integers(1, 65, 150)
    plan = list(bucket_by_length(load_features(lengths, choices=choices), 3, mesh))
    assert sorted(np.concatenate([batch.rows for batch in plan])) == list(range(150))
    assert len({batch.length for batch in plan}) == 3 and len(plan) > 3
    for rows, length, size in plan:
        assert (lengths[rows] <= length).all()
        assert 0 < len(rows) <= size and size % mesh.size == 0


def test_what_is_left_of_a_split_takes_the_programs_of_all_of_it(mesh, small_batches):
    features = load_features(np.random.default_rng(0).integers(1, 65, 150))
    wanted = np.arange(150) % 7 == 0
    programs = lambda plan: {(batch.length, batch.size) for batch in plan}
    plan = list(bucket_by_length(features, 3, mesh, wanted))
    assert sorted(np.concatenate([batch.rows for batch in plan])) == np.flatnonzero(wanted).tolist()
    assert programs(plan) <= programs(bucket_by_length(features, 3, mesh))


def test_results_stand_in_the_rows_order_whatever_their_shape(mesh, small_batches):
    """One number a row, one for every position, and as many of the best as a batch has."""
    lengths = np.random.default_rng(1).integers(1, 65, 100)
    features = load_features(lengths) | {'double': 2 * np.arange(1, 101, dtype=np.float32)}
    shapes = set()

    @jax.jit
    def function(params, batch):
        shapes.add(batch['input_ids'].shape)
        return {
            'sum': batch['input_ids'].sum(1) * params,
            'positions': batch['input_ids'],
            'double': batch['double'],
            'best': jax.lax.top_k(batch['input_ids'], min(40, batch['input_ids'].shape[1]))[0],
        }

    plan = list(bucket_by_length(features, 3, mesh))
    results = list(run(function, jnp.int32(3), features, plan, DataCollator(mesh)))
    found = gather(results, 100)
    ids = np.arange(1, 101)
    assert shapes == {(size, length) for _, length, size in plan} and len(shapes) > 1
    np.testing.assert_array_equal(found['sum'], 3 * ids * lengths)
    np.testing.assert_array_equal(found['double'], 2 * ids)
    longest = max(length for _, length in shapes)
    np.testing.assert_array_equal(found['positions'], features['input_ids'][:, :longest])
    assert found['best'].shape == (100, 40)
    np.testing.assert_array_equal(
        found['best'], ids[:, None] * (np.arange(40) < np.minimum(lengths, 40)[:, None])
    )
    rows, outputs = results[0]
    short = gather([data_collator.Result(rows, {'ids': outputs['positions']})], 100, positions=80)
    assert short['ids'].shape == (100, 80) and not short['ids'][:, longest:].any()
    np.testing.assert_array_equal(
        short['ids'][rows, :longest], features['input_ids'][rows, :longest]
    )
