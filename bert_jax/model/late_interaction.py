"""Vectors of the tokens of texts, and how queries and documents are compared by them (ColBERT).

Owns MaxSim: of each token of a query the greatest product with a token of the document, summed over
the query (Khattab & Zaharia 2020, section 3.2; sentence_transformers/util/similarity.py:478). Owns
the tokens of many texts on the host, and the blocks in which both are compared: what is of two
tokens is never whole.

Dims: B batch, C texts of an example, Q queries, N documents, T and S tokens, D numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from bert_jax.mesh.sharding import constrain_rows, list_free_axes

# The score of a document without a token: below all others, and a square of it is finite.
EMPTY = -1e9
_PRODUCTS = 1 << 24  # of two tokens, that a loss has at once
# Tokens that a search has at once: of queries, and of documents.
_QUERIES, _DOCUMENTS = 2048, 8192
_MULTIPLE = 32  # of which the length of rows is


class TokenVectors(NamedTuple):
    """The vectors of the tokens of texts, in rows.

    Attributes:
      vectors: [..., T, D] float32.
      scored: [..., T], 1 at tokens that are compared.
    """

    vectors: Any
    scored: Any


def _score(query: TokenVectors, document: TokenVectors) -> Array:
    """Return the score of a query's tokens [T, D] with a document's [S, D]."""
    products_TS = jnp.einsum(
        'td,sd->ts',
        query.vectors.astype(jnp.float32),
        document.vectors.astype(jnp.float32),
        precision='highest',
    )
    is_scored_1S = document.scored[None] > 0
    best_T = jnp.where(is_scored_1S, products_TS, jnp.finfo(jnp.float32).min).max(axis=1)
    total = jnp.where(query.scored > 0, best_T, 0.0).sum()
    return jnp.where(is_scored_1S.any(), total, EMPTY)


_score_all = jax.vmap(jax.vmap(_score, (None, 0)), (0, None))


def compare_own(texts: TokenVectors) -> Array:
    """Return the score of each query with its own documents, [B, C - 1], one after the other."""
    queries, documents = _part(texts)
    score = jax.checkpoint(lambda column: jax.vmap(_score)(queries, column), prevent_cse=False)
    scores_CB = jax.lax.map(score, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), documents))
    return scores_CB.T


def compare_in_batch(texts: TokenVectors) -> Array:
    """Return the score of each query with all documents of the batch, [B, B (C - 1)].

    A block of documents at a time; their products are computed again for the gradients.
    """
    queries, documents = _part(texts)
    B, count, T, _ = documents.vectors.shape
    N = B * count
    limit = max(_PRODUCTS // (B * T * T), 1)
    size = max(size for size in range(1, min(limit, N) + 1) if N % size == 0)
    cut = lambda x: _make_whole(x.reshape(N // size, size, *x.shape[2:]))
    score = jax.checkpoint(lambda block: _score_all(queries, block), prevent_cse=False)
    scores_KBn = jax.lax.map(score, jax.tree.map(cut, documents))
    return constrain_rows(jnp.swapaxes(scores_KBn, 0, 1).reshape(B, N))


def _part(texts: TokenVectors) -> tuple[TokenVectors, TokenVectors]:
    """Return queries [B, T, ...] and documents [B, C - 1, T, ...] of texts [B, C, T, ...]."""
    return jax.tree.map(lambda x: x[:, 0], texts), jax.tree.map(lambda x: x[:, 1:], texts)


def _make_whole(x: Array) -> Array:
    """Put all of an array on each device, where its rows are split among several."""
    return jax.lax.with_sharding_constraint(x, PartitionSpec()) if list_free_axes() else x


@dataclass(frozen=True)
class MultiVectors:
    """Several vectors for each text, one a token, compared by MaxSim.

    Attributes:
      vectors_TD: those of the tokens of all texts, float32 or float16.
      starts_N: where the tokens of each text begin.
      lengths_N: how many there are of it.
    """

    vectors_TD: np.ndarray
    starts_N: np.ndarray
    lengths_N: np.ndarray

    @classmethod
    def read(cls, values: Any, similarity: str) -> MultiVectors | None:
        """Return a list of arrays [T, D] as one; None for other values."""
        if not isinstance(values, list) or not values:
            return None
        if any(not isinstance(value, np.ndarray) or value.ndim != 2 for value in values):
            return None
        lengths_N = np.array([len(value) for value in values])
        return cls(np.concatenate(values), np.cumsum(lengths_N) - lengths_N, lengths_N)

    def __len__(self) -> int:
        """Return how many texts there are."""
        return len(self.lengths_N)

    @property
    def width(self) -> int:
        """Return how many numbers a vector has."""
        return self.vectors_TD.shape[1]

    def take(self, rows: Any) -> MultiVectors:
        """Return those of some texts; no vector is copied."""
        return MultiVectors(self.vectors_TD, self.starts_N[rows], self.lengths_N[rows])

    def compare_all(self, documents: MultiVectors) -> np.ndarray:
        """Return the score of each with each."""
        scores_QN = np.empty((len(self), len(documents)), np.float32)
        queries = list(self._iterate_blocks(_QUERIES))
        for numbers_n, block in documents._iterate_blocks(_DOCUMENTS):
            for numbers_q, some in queries:
                scores_QN[numbers_q[:, None], numbers_n] = _search(some, block)
        return scores_QN

    def compare_pairs(self, documents: MultiVectors) -> np.ndarray:
        """Return the score of each with its own document."""
        scores_N = np.empty(len(self), np.float32)
        for numbers_n, block in documents._iterate_blocks(_DOCUMENTS):
            queries = self.take(numbers_n)
            width = _round_up(queries.lengths_N.max())
            scores_N[numbers_n] = _search_pairs(queries._pad(width), block)
        return scores_N

    def describe(self) -> dict[str, float]:
        """Return the mean of the vectors of a text, and of their bytes."""
        tokens = float(self.lengths_N.mean())
        return {'tokens': tokens, 'bytes': tokens * self.vectors_TD[:1].nbytes}

    def _iterate_blocks(self, tokens: int) -> Iterator[tuple[np.ndarray, TokenVectors]]:
        """Yield the numbers of texts and their vectors, so many tokens at a time, longer first."""
        order_N = np.argsort(-self.lengths_N, kind='stable')
        while len(order_N):
            # Few lengths of rows: few programs are compiled.
            width = _round_up(self.lengths_N[order_N[0]])
            numbers_n, order_N = np.split(order_N, [max(tokens // width, 1)])
            yield numbers_n, self.take(numbers_n)._pad(width)

    def _pad(self, width: int) -> TokenVectors:
        """Return the vectors in rows of `width` tokens; what fills them up is not scored."""
        scored_NT = np.arange(width) < self.lengths_N[:, None]
        vectors_NTD = np.zeros((*scored_NT.shape, self.width), self.vectors_TD.dtype)
        vectors_NTD[scored_NT] = self.vectors_TD[
            (self.starts_N[:, None] + np.arange(width))[scored_NT]
        ]
        return TokenVectors(vectors_NTD, scored_NT)


def _round_up(tokens: int) -> int:
    return -(-max(tokens, 1) // _MULTIPLE) * _MULTIPLE


_search, _search_pairs = jax.jit(_score_all), jax.jit(jax.vmap(_score))
