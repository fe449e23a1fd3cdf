"""One vector of a text, beside loops over its pieces."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.model.pooling import POOLINGS, compute_sentence_vectors, pool_states

MASK = np.array([[1, 1, 1, 1, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
STATES = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
EXPECTED = {
    'cls': lambda states: states[0],
    'mean': lambda states: states.mean(0),
    'max': lambda states: states.max(0),
    'mean_sqrt_len': lambda states: states.sum(0) / np.sqrt(len(states)),
    'weighted_mean': lambda states: np.average(
        states, axis=0, weights=np.arange(1, len(states) + 1)
    ),
    'last': lambda states: states[-1],
}


@pytest.mark.parametrize('name', POOLINGS)
def test_pieces_are_pooled_without_the_padding(name):
    wanted = [EXPECTED[name](rows[: mask.sum()]) for rows, mask in zip(STATES, MASK, strict=True)]
    np.testing.assert_allclose(pool_states(STATES, MASK, name), wanted, atol=1e-6)


def test_a_vector_is_cut_before_it_is_scaled():
    config = SentenceConfig(truncate_dim=2, normalize=True)
    wanted = np.stack([rows[: m.sum()].mean(0)[:2] for rows, m in zip(STATES, MASK, strict=True)])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(compute_sentence_vectors(STATES, MASK, config), wanted, atol=1e-6)
