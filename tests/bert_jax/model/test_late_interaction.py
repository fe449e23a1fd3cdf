"""MaxSim: in losses and in search, whole and in blocks, against loops in numpy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.model import late_interaction
from bert_jax.model.late_interaction import TokenVectors, compare_in_batch, compare_own
from bert_jax.model.text_vectors import read_vectors


def draw(*shape: int) -> np.ndarray:
    """Vectors of small whole numbers, so that every order of sums gives the same."""
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(np.float32)


def score_all(queries, documents) -> list[list[float]]:
    score = lambda query, document: sum(max(float(q @ d) for d in document) for q in query)
    return [[score(query, document) for document in documents] for query in queries]


@pytest.mark.parametrize('tokens', [1, 100, 8192])
@pytest.mark.parametrize('dtype', [np.float32, np.float16])
def test_blocks_of_any_size_score_as_loops_do(tokens, dtype, monkeypatch):
    monkeypatch.setattr(late_interaction, '_QUERIES', tokens)
    monkeypatch.setattr(late_interaction, '_DOCUMENTS', tokens)
    queries = [draw(length, 4) for length in (3, 1, 33, 8)]
    documents = [draw(length, 4) for length in (40, 2, 31, 32, 1, 70, 5)]
    wanted = np.array(score_all(queries, documents))
    asked, found = ([v.astype(dtype) for v in side] for side in (queries, documents))
    asked, found = read_vectors(asked, 'maxsim'), read_vectors(found, 'maxsim')
    np.testing.assert_array_equal(asked.compare_all(found), wanted)
    some = asked.take(slice(1, 3)).compare_pairs(found.take([4, 0]))
    np.testing.assert_array_equal(some, wanted[[1, 2], [4, 0]])
    assert asked.describe() == {'tokens': 45 / 4, 'bytes': 45 * asked.vectors_TD.itemsize}


@pytest.mark.parametrize('products', [1, 6 * 4 * 64, 1 << 24])
def test_losses_compare_block_by_block_as_loops_do(products, monkeypatch):
    monkeypatch.setattr(late_interaction, '_PRODUCTS', products)
    vectors, scored = draw(6, 3, 8, 4), np.random.default_rng(3).integers(0, 2, (6, 3, 8))
    scored[..., 2] = 1
    texts = [[v[s > 0] for v, s in zip(*row)] for row in zip(vectors, scored)]
    documents = [text for row in texts for text in row[1:]]
    wanted = np.array(score_all([row[0] for row in texts], documents))
    # A document without a token is below all others, and has a gradient.
    scored[1, 2], wanted[:, 3] = 0, late_interaction.EMPTY
    batch = TokenVectors(vectors, scored)
    np.testing.assert_array_equal(jax.jit(compare_in_batch)(batch), wanted)
    own = wanted[np.arange(6)[:, None], 2 * np.arange(6)[:, None] + np.arange(2)]
    np.testing.assert_array_equal(jax.jit(compare_own)(batch), own)
    gradient = jax.grad(lambda x: compare_in_batch(TokenVectors(x, scored)).sum())(vectors)
    assert np.isfinite(gradient).all() and not gradient[1, 2].any()
