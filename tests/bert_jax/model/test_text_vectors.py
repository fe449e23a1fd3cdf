"""Vectors of texts: what is read of a model's values, and how texts are compared."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from bert_jax.inference.semantic_search import nearest
from bert_jax.model.text_vectors import read_vectors
from tests.helpers.refusals import refused


def test_a_vector_of_zeros_is_like_nothing():
    vectors = read_vectors(np.array([[3, 4], [0, 0]]), 'cosine')
    assert vectors.compare_pairs(vectors).tolist() == pytest.approx([1, 0])
    assert read_vectors(np.array([[3, 4]]), 'dot').vectors_NH.tolist() == [[3, 4]]


def test_sparse_vectors_are_those_of_all_weights():
    rng = np.random.default_rng(0)
    values = np.maximum(rng.normal(size=(9, 40)) - 1, 0).astype(np.float32)
    values[3] = 0
    for similarity in ('dot', 'cosine'):
        dense = read_vectors(values, similarity)
        vectors = read_vectors(sparse.csr_array(values), similarity)
        found = nearest(vectors.take(slice(0, 9, 2)), vectors, 5, block=4)
        wanted = nearest(dense.take(slice(0, 9, 2)), dense, 5, block=4)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        assert np.array_equal(found[1], wanted[1]) and len(vectors) == 9
        for kind in (dense, vectors):
            some = kind.take([3, 0])
            pairs = some.compare_pairs(kind.take([5, 0]))
            assert np.asarray(some.compare_all(kind))[[0, 1], [5, 0]] == pytest.approx(pairs)
    assert vectors.describe() == {
        'active_dims': pytest.approx((values > 0).sum(1).mean()),
        'sparsity_ratio': pytest.approx((values == 0).mean()),
    }


ONES = np.ones((2, 3), np.float32)
KINDS = [np.asarray, sparse.csr_array, lambda values: [values]]


@pytest.mark.parametrize('of', KINDS[:2])
def test_a_row_of_vectors_is_searched_as_they_are(of):
    vectors = of(np.eye(3, dtype=np.float32))
    scores, indices = nearest(vectors[1], vectors, 1)
    assert (scores.tolist(), indices.tolist()) == ([[1]], [[1]])


@pytest.mark.parametrize('of', KINDS)
def test_vectors_of_another_model_are_refused(of):
    with refused('of 2 numbers cannot be searched by .* of 3: .* make both with one model'):
        nearest(of(ONES), of(ONES[:, :2]), 1)


def test_vectors_of_another_kind_are_refused():
    with refused('SparseVectors of 3 numbers cannot be searched by DenseVectors of 3: '):
        nearest(ONES, sparse.csr_array(ONES), 1)


def test_values_of_no_kind_are_refused():
    with pytest.raises(TypeError, match='dict holds no vectors of texts'):
        read_vectors({}, 'cosine')
