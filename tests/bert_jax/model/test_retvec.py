"""RETVec's network against numpy, and its loss against loops.

An encoder that reads it: tests/launch/test_retvec.py.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import retvec
from bert_jax.train.losses import multi_similarity
from tests.helpers.numpy_bert import dense, noisy_params
from tests.helpers.numpy_retvec import code_points, numpy_network


def sizes(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_the_network_is_the_published_one():
    """198,976 parameters, and 65,792 of the head that goes."""
    model = retvec.WordSimilarity()
    params = noisy_params(model)
    assert sizes(params['retvec']) == 198_976
    assert sizes(params['similarity']) == 65_792
    characters = code_points('hello', 'hallo', 'Straße', '한국어').reshape(2, 2, 16)
    found = model.apply({'params': params}, {'characters': characters})
    wanted = dense(numpy_network(params['retvec'], characters), params['similarity'])
    wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=2e-6)


def looped_loss(cosines: np.ndarray, words: list[int]) -> list[float]:
    """Wang et al. 2019 with alpha 4, beta 40, base 0.5, margin 0.1, pair by pair."""
    found = []
    for i, word in enumerate(words):
        same = [cosines[i, j] for j, other in enumerate(words) if other == word and j != i]
        rest = [cosines[i, j] for j, other in enumerate(words) if other != word]
        far = [s for s in same if s < max(rest) + 0.1]
        near = [s for s in rest if s > min(same) - 0.1]
        pull = math.log(1 + sum(math.exp(-4 * (s - 0.5)) for s in far)) / 4
        push = math.log(1 + sum(math.exp(40 * (s - 0.5)) for s in near)) / 40
        found.append(pull + push)
    return found


class Given:
    """A model whose vectors are its parameters."""

    def apply(self, params, batch, rng=None):
        return params['params']


def test_the_loss_is_the_paper_s_and_counts_real_rows_alone():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4, 3, 8)) + rng.normal(size=(4, 1, 8))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    objective = multi_similarity.make_similarity_objective(Given())
    for real in (4, 3):
        batch = {
            'characters': np.zeros((4, 3, 16), np.int32),
            'example_weights': (np.arange(4) < real).astype(np.float32),
        }
        rows = vectors[:real].reshape(-1, 8)
        cosines, words = rows @ rows.T, [word for word in range(real) for _ in range(3)]
        wanted = looped_loss(cosines, words)
        nearest = np.where(np.eye(len(rows)), -1, cosines).argmax(1)
        found = objective.sums(jnp.asarray(vectors, jnp.float32), batch, None)
        total, weight = found['loss']
        assert weight == 3 * real == objective.weights(batch)['loss']
        assert float(total) == pytest.approx(sum(wanted), rel=1e-5)
        right = sum(words[place] == word for place, word in zip(nearest, words, strict=True))
        assert float(found['nearest_is_same'][0]) == right < 3 * real
