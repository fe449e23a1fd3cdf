"""Kinds of vectors of texts, and how the texts of two sets are compared by them.

Owns, for each kind, the vectors of many texts on the host, and the comparison of a batch in a loss.
Losses, search, mining and scores ask only what `TextVectors` and `Texts` have, and know no
kind. How the vectors are made of states is pooling.py's.

Dims: Q queries, N documents, H numbers of a vector; B batch, C texts of an example, the query
first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import sparse

from bert_jax.configs.errors import UserError
from bert_jax.model.late_interaction import MultiVectors, compare_in_batch, compare_own

# Products of float32, which a TPU and a GPU would round by themselves.
_PRECISION = 'highest'
_TINY = 1e-12  # a vector of zeros stays one, and is like nothing


class TextVectors(Protocol):
    """The vectors of many texts, in memory or mapped from files."""

    @property
    def width(self) -> int:
        """Return how many numbers a vector has."""

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

    def describe(self) -> dict[str, float]:
        """Return what is told of them beside their scores, by name."""


def unit(vectors_NH: np.ndarray) -> np.ndarray:
    """Return the vectors, float32, each scaled to length one."""
    vectors_NH = np.asarray(vectors_NH, np.float32)
    lengths_N1 = np.linalg.norm(vectors_NH, axis=-1, keepdims=True)
    return vectors_NH / np.maximum(lengths_N1, _TINY)


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
        values = np.atleast_2d(values)  # a row of them has one axis
        return cls(unit(values) if similarity == 'cosine' else values)

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self.vectors_NH)

    @property
    def width(self) -> int:
        """Return how many numbers a vector has."""
        return self.vectors_NH.shape[1]

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
        return np.multiply(self.vectors_NH, documents.vectors_NH, dtype=np.float32).sum(axis=-1)

    def describe(self) -> dict[str, float]:
        """Return nothing: all are of one width."""
        return {}


@jax.jit
def _multiply(queries_QH: Array, vectors_NH: Array) -> Array:
    vectors_NH = vectors_NH.astype(jnp.float32)
    return jnp.einsum('qh,nh->qn', queries_QH, vectors_NH, precision=_PRECISION)


@dataclass(frozen=True)
class SparseVectors:
    """A weight for each entry of a vocabulary, of which most are 0.

    Attributes:
      weights_NV: the weights, float32.
    """

    weights_NV: sparse.csr_array

    @classmethod
    def read(cls, values: Any, similarity: str) -> SparseVectors | None:
        """Return a matrix of scipy, rows scaled to length one for cosines; None for others."""
        if not sparse.issparse(values):
            return None
        values = values.reshape(-1, values.shape[-1])  # a row of them has one axis
        weights_NV = sparse.csr_array(values, dtype=np.float32)
        if similarity == 'cosine':
            lengths_N = np.maximum(np.sqrt(weights_NV.power(2).sum(axis=1)), _TINY)
            weights_NV = sparse.diags_array(1 / lengths_N) @ weights_NV
        return cls(weights_NV)

    def __len__(self) -> int:
        """Return how many texts there are."""
        return self.weights_NV.shape[0]

    @property
    def width(self) -> int:
        """Return how many entries the vocabulary has."""
        return self.weights_NV.shape[1]

    def take(self, rows: Any) -> SparseVectors:
        """Return those of some texts."""
        return SparseVectors(self.weights_NV[rows])

    def compare_all(self, documents: SparseVectors) -> np.ndarray:
        """Return the product of each with each."""
        return (self.weights_NV @ documents.weights_NV.T).toarray()

    def compare_pairs(self, documents: SparseVectors) -> np.ndarray:
        """Return the product of each with its own document."""
        return self.weights_NV.multiply(documents.weights_NV).sum(axis=1)

    def describe(self) -> dict[str, float]:
        """Return the mean of the weights that are not 0, and the share of those that are."""
        active = self.weights_NV.nnz / len(self)
        return {'active_dims': active, 'sparsity_ratio': 1 - active / self.width}


KINDS: tuple[type[TextVectors], ...] = (DenseVectors, SparseVectors, MultiVectors)


def read_vectors(values: Any, similarity: str) -> TextVectors:
    """Return what a model gave of some texts as vectors that can be compared.

    Args:
      values: as `Bert.embed` returns them, or vectors that were read before.
      similarity: what compares them, as the model says.

    Raises:
      TypeError: the values are of no kind.
    """
    if isinstance(values, KINDS):
        return values
    for kind in KINDS:
        vectors = kind.read(values, similarity)
        if vectors is not None:
            return vectors
    raise TypeError(f'{type(values).__name__} holds no vectors of texts')


def check_alike(queries: TextVectors, documents: TextVectors) -> None:
    """Raise UserError where queries cannot be compared with documents."""
    if type(queries) is not type(documents) or queries.width != documents.width:
        raise UserError(
            f'{type(documents).__name__} of {documents.width} numbers cannot be searched by'
            f' {type(queries).__name__} of {queries.width}: they are of another model or another'
            ' vocabulary: make both with one model'
        )


class Texts:
    """The vectors that a model gives of a batch's texts, as a loss compares them: by products.

    Attributes:
      of_unit: whether vectors are scaled to length one before, as far as a loss wants cosines.
      scale: what scores are multiplied by where no setting says it.
      temperature: what they are divided by in the distillation of scores, likewise.
      vectors: [B, C, ...]; the first text of an example is the query.
    """

    of_unit: ClassVar[bool] = False
    scale: ClassVar[float] = 1.0
    temperature: ClassVar[float] = 1.0

    def __init__(self, vectors: Any):
        """Take the vectors of a batch."""
        self.vectors = vectors

    def compare_own(self) -> Array:
        """Return the score of each query with its own documents, [B, C - 1]."""
        return jnp.sum(self.vectors[:, :1] * self.vectors[:, 1:], -1)

    def compare_in_batch(self) -> Array:
        """Return the score of each query with all documents of the batch, [B, B (C - 1)].

        The documents of an example are beside each other.
        """
        documents_NH = self.vectors[:, 1:].reshape(-1, self.vectors.shape[-1])
        return jnp.matmul(self.vectors[:, 0], documents_NH.T, precision=_PRECISION)


class DenseTexts(Texts):
    """Texts that are compared by cosines."""

    of_unit, scale = True, 20.0


class SparseTexts(Texts):
    """Texts that have weights, compared by products; the temperature is sentence-transformers'."""

    temperature = 2.0


class TokenTexts(Texts):
    """Texts whose vectors are those of their tokens, compared by MaxSim."""

    def compare_own(self) -> Array:
        """Return the score of each query with its own documents."""
        return compare_own(self.vectors)

    def compare_in_batch(self) -> Array:
        """Return the score of each query with all documents of the batch."""
        return compare_in_batch(self.vectors)
