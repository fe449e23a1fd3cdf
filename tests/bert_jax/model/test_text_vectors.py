"""Vectors of texts: what is read of a model's values, and how texts are compared."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.model.text_vectors import DenseVectors, read_vectors


def test_a_vector_of_zeros_is_like_nothing():
    vectors = read_vectors(np.array([[3, 4], [0, 0]]), 'cosine')
    assert vectors.compare_pairs(vectors).tolist() == pytest.approx([1, 0])
    assert read_vectors(np.array([[3, 4]]), 'dot').vectors_NH.tolist() == [[3, 4]]


def test_values_of_no_kind_are_refused():
    with pytest.raises(TypeError, match='dict holds no vectors of texts'):
        read_vectors({}, 'cosine')


def test_all_are_compared_as_pairs_are():
    vectors = DenseVectors(np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32))
    some = vectors.take([3, 0])
    assert np.asarray(some.compare_all(vectors))[[0, 1], [3, 0]] == pytest.approx(
        some.compare_pairs(vectors.take([3, 0]))
    )
