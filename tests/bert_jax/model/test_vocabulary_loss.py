"""The loss over the vocabulary in blocks: equal to the plain form, on one device and on a mesh.

Tolerances, relative to the largest value: 2e-6 in float32, which is rounding; 5e-3 for gradients of
products that read bfloat16, whose sides are rounded at other scales (bfloat16 has 8 bits).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import construction
from bert_jax.model import vocabulary_loss
from bert_jax.model.vocabulary_loss import Factors

B, PLACES, E, V, WORDS = 32, 12, 16, 128, 100
# Of each argument of a loss: x, table, bias, labels, weights.
SPECS = (*(P(('data', 'fsdp')), *2 * (P(('fsdp', 'model')),)), *2 * (P(('data', 'fsdp')),))


@pytest.fixture(scope='module')
def arrays() -> tuple[np.ndarray, ...]:
    """384 rows, which are three blocks of 128, or four of 96; a quarter has weight 0."""
    rng = np.random.default_rng(0)
    bias = np.where(np.arange(V) < WORDS, rng.normal(size=V), -np.inf)
    weights = rng.choice([0.0, 0.5, 1.0, 1.0], (B, PLACES))
    x, table = rng.normal(size=(B, PLACES, E)), rng.normal(size=(V, E))
    return (
        *(a.astype(np.float32) for a in (x, table, bias)),
        rng.integers(0, WORDS, (B, PLACES), np.int32),
        weights.astype(np.float32),
    )


def in_numpy(x, table, bias, labels, weights):
    """The sums of loss and accuracy, and the gradients of the former, float64."""
    x, table = x.reshape(-1, E).astype(np.float64), table.astype(np.float64)
    labels, weights = labels.reshape(-1), weights.reshape(-1)
    logits = x @ table.T + bias
    largest = logits.max(-1, keepdims=True)
    softmax = np.exp(logits - largest)
    total = softmax.sum(-1, keepdims=True)
    rows = np.arange(len(x))
    loss = np.log(total[:, 0]) + largest[:, 0] - logits[rows, labels]
    right = logits.argmax(-1) == labels
    of_logits = softmax / total
    of_logits[rows, labels] -= 1
    of_logits *= weights[:, None]
    gradients = (of_logits @ table).reshape(B, PLACES, E), of_logits.T @ x, of_logits.sum(0)
    return ((loss * weights).sum(), (right * weights).sum()), gradients


def sums_and_gradients(arrays, matmul_dtype=None, dtype=jnp.float32):
    def sums(x, table, bias, labels, weights):
        return Factors(x.astype(dtype), table, bias, matmul_dtype).weighted_sums(labels, weights)

    return jax.jit(jax.value_and_grad(sums, (0, 1, 2), has_aux=True))(*arrays)


def assert_close(got, want, rtol):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize(
    ('how', 'rtol'),
    [({}, 2e-6), ({'matmul_dtype': 'bfloat16'}, 1e-2)],
    ids=str,
)
def test_sums_and_gradients_are_those_of_numpy(arrays, monkeypatch, how, rtol):
    monkeypatch.setattr(
        vocabulary_loss, 'choose_block_rows', lambda width: 97
    )  # the last is filled up
    sums, gradients = sums_and_gradients(arrays, **how)
    assert_close((sums, gradients), in_numpy(*arrays), rtol)


@pytest.mark.parametrize(('fsdp', 'model'), [(1, 8), (2, 2)])
def test_the_mesh_changes_nothing(arrays, monkeypatch, fsdp, model):
    """Rows are split over data and fsdp, the table over fsdp and model: pieces of 8 to 64 words."""
    monkeypatch.setattr(vocabulary_loss, 'choose_block_rows', lambda width: 20)
    mesh = construction.make_mesh(RuntimeConfig(fsdp=fsdp, model_parallel=model))
    with jax.set_mesh(mesh):
        on_mesh = [
            jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arrays, SPECS, strict=True)
        ]
        assert_close(sums_and_gradients(on_mesh), in_numpy(*arrays), 2e-6)


def test_the_logits_are_never_whole_in_memory(arrays):
    x, table, bias, labels, weights = arrays
    longer = (x, np.tile(table, (64, 1)), np.tile(bias, 64), labels, weights)

    def temporary(sums):
        gradient = jax.jit(jax.grad(sums, (0, 1, 2)))
        return gradient.lower(*longer).compile().memory_analysis().temp_size_in_bytes

    def whole(x, table, bias, labels, weights):
        logits = Factors(x, table, bias, None).logits()
        chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
        return jnp.sum((jax.nn.logsumexp(logits, -1) - chosen) * weights)

    blocks = lambda *arrays: Factors(*arrays[:3], None).weighted_sums(*arrays[3:])[0]
    logits = 4 * labels.size * len(longer[1])
    assert temporary(blocks) < logits < temporary(whole)
