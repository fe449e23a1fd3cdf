"""Kinds of vectors of texts, and how the texts of two sets are compared by them.

Owns, for each kind, the vectors of many texts on the host, and the comparison of a batch in a loss.
Losses, search, mining and scores ask only what `TextVectors` and `Comparison` have, and know no
kind. How the vectors are made of states is pooling.py's.

Dims: Q queries, N documents, H numbers of a vector; B batch, C texts of an example, the query
first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# Products of float32, which a TPU and a GPU would round by themselves.
_PRECISION = 'highest'
_TINY = 1e-12  # a vector of zeros stays one, and is like nothing


class TextVectors(Protocol):
    """The vectors of many texts, in memory or mapped from files."""

    @classmethod
    def read(cls, values: Any, similarity: str) -> Self | None:
        """Return what `Bert.embed` gave of some texts; None where it is of another kind."""

    def __len__(self) -> int:
        """Return how many texts there are."""

    def take(self, rows: Any) -> Self:
        """Return those of some texts: a slice, or numbers of rows."""

    def compare_all(self, documents: Any) -> Any:
        """Return the score of each text with each of some documents, [Q, N] float32."""

    def compare_pairs(self, documents: Any) -> np.ndarray:
        """Return the score of each text with its own document, [N] float32."""


@dataclass(frozen=True)
class DenseVectors:
    """One vector for each text, compared by products: of vectors of length one these are cosines.

    Attributes:
      vectors_NH: the vectors.
    """

    vectors_NH: np.ndarray

    @classmethod
    def read(cls, values: Any, similarity: str) -> DenseVectors | None:
        """Return an array [N, H], scaled to length one for cosines; None for other values."""
        if not isinstance(values, np.ndarray):
            return None
        vectors_NH = np.asarray(values, np.float32)
        if similarity == 'cosine':
            lengths_N1 = np.linalg.norm(vectors_NH, axis=-1, keepdims=True)
            vectors_NH = vectors_NH / np.maximum(lengths_N1, _TINY)
        return cls(vectors_NH)

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self.vectors_NH)

    def take(self, rows: Any) -> DenseVectors:
        """Return those of some texts."""
        return DenseVectors(self.vectors_NH[rows])

    def compare_all(self, documents: DenseVectors) -> Array:
        """Return the product of each with each, on the device."""
        return _multiply(
            jnp.asarray(self.vectors_NH, jnp.float32), jax.device_put(documents.vectors_NH)
        )

    def compare_pairs(self, documents: DenseVectors) -> np.ndarray:
        """Return the product of each with its own document."""
        return (self.vectors_NH * documents.vectors_NH).sum(axis=-1)


@jax.jit
def _multiply(queries_QH: Array, vectors_NH: Array) -> Array:
    vectors_NH = vectors_NH.astype(jnp.float32)
    return jnp.einsum('qh,nh->qn', queries_QH, vectors_NH, precision=_PRECISION)


KINDS: tuple[type[TextVectors], ...] = (DenseVectors,)


def read_vectors(values: Any, similarity: str) -> TextVectors:
    """Return what a model gave of some texts as vectors that can be compared.

    Args:
      values: as `Bert.embed` returns them.
      similarity: what compares them, as the model says.

    Raises:
      TypeError: the values are of no kind.
    """
    for kind in KINDS:
        vectors = kind.read(values, similarity)
        if vectors is not None:
            return vectors
    raise TypeError(f'{type(values).__name__} holds no vectors of texts')


class Comparison(NamedTuple):
    """How a loss compares the vectors that a model gives of the C texts of each example.

    Attributes:
      compare_own: vectors -> the score of each query with its own documents, [B, C - 1].
      compare_in_batch: vectors -> the score of each query with all documents of the batch,
        [B, B (C - 1)], the documents of an example beside each other.
    """

    compare_own: Callable[[Any], Array]
    compare_in_batch: Callable[[Any], Array]


def _multiply_own(vectors_BCH: Array) -> Array:
    return jnp.sum(vectors_BCH[:, :1] * vectors_BCH[:, 1:], -1)


def _multiply_in_batch(vectors_BCH: Array) -> Array:
    documents_NH = vectors_BCH[:, 1:].reshape(-1, vectors_BCH.shape[-1])
    return jnp.matmul(vectors_BCH[:, 0], documents_NH.T, precision=_PRECISION)


# Of vectors of length one these are cosines.
PRODUCTS = Comparison(_multiply_own, _multiply_in_batch)
