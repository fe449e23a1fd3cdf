"""MaxSim: in losses and in search, whole and in blocks, against loops in numpy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.model import late_interaction
from bert_jax.model.late_interaction import TokenVectors, compare_in_batch, compare_own
from bert_jax.model.text_vectors import read_vectors

D = 4


def draw_texts(count: int, longest: int, seed: int) -> list[np.ndarray]:
    """Vectors of small whole numbers, so that every order of sums gives the same."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    return [rng.integers(-9, 10, (length, D)).astype(np.float32) for length in lengths]


def score(query: np.ndarray, document: np.ndarray) -> float:
    return sum(max(float(q @ d) for d in document) for q in query)


def score_all(queries: list[np.ndarray], documents: list[np.ndarray]) -> np.ndarray:
    return np.array([[score(query, document) for document in documents] for query in queries])


@pytest.mark.parametrize('tokens', [1, 60, 8192])
@pytest.mark.parametrize('dtype', [np.float32, np.float16])
def test_blocks_of_any_size_score_as_loops_do(tokens, dtype, monkeypatch):
    monkeypatch.setattr(late_interaction, '_QUERIES', tokens)
    monkeypatch.setattr(late_interaction, '_DOCUMENTS', tokens)
    queries, documents = draw_texts(7, 11, 0), draw_texts(20, 40, 1)
    read = lambda texts: read_vectors([text.astype(dtype) for text in texts], 'maxsim')
    found = read(queries).compare_all(read(documents))
    np.testing.assert_array_equal(found, score_all(queries, documents))
    some = read(documents).take([4, 0, 9])
    wanted = [score(*pair) for pair in zip(queries, [documents[i] for i in (4, 0, 9)])]
    np.testing.assert_array_equal(read(queries).take(slice(3)).compare_pairs(some), wanted)


def test_vectors_of_texts_are_not_copied_when_some_are_taken():
    vectors = read_vectors(draw_texts(9, 5, 0), 'maxsim')
    assert vectors.take([2, 5]).vectors_TD is vectors.vectors_TD
    assert len(vectors.take(slice(3, 8))) == 5


def make_batch() -> tuple[TokenVectors, list[list[np.ndarray]]]:
    """Six examples of three texts in rows of eight, and the vectors that are scored of each."""
    rng = np.random.default_rng(3)
    vectors = rng.integers(-9, 10, (6, 3, 8, D)).astype(np.float32)
    scored = rng.integers(0, 2, (6, 3, 8))
    scored[..., 2] = 1
    texts = [[v[s > 0] for v, s in zip(*row)] for row in zip(vectors, scored)]
    return TokenVectors(vectors, scored), texts


@pytest.mark.parametrize('products', [1, 6 * 4 * 64, 1 << 24])
def test_losses_compare_block_by_block_as_loops_do(products, monkeypatch):
    monkeypatch.setattr(late_interaction, '_PRODUCTS', products)
    batch, texts = make_batch()
    queries = [row[0] for row in texts]
    documents = [text for row in texts for text in row[1:]]
    wanted = score_all(queries, documents)
    np.testing.assert_array_equal(jax.jit(compare_in_batch)(batch), wanted)
    own = [[score(row[0], row[1]), score(row[0], row[2])] for row in texts]
    np.testing.assert_array_equal(jax.jit(compare_own)(batch), own)


def test_a_document_without_a_token_is_below_all_others():
    batch, _ = make_batch()
    batch.scored[1, 2] = 0
    assert (np.asarray(compare_in_batch(batch))[:, 3] == late_interaction.EMPTY).all()
    gradient = jax.grad(lambda x: compare_in_batch(batch._replace(vectors=x)).sum())
    assert np.isfinite(gradient(batch.vectors)).all()
