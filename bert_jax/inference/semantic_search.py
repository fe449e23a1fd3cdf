"""Semantic search: the vectors that are nearest to others, and the sentences of a file by them.

Owns the exact search, block by block, and the hard negatives that are chosen by it. It asks a kind
of vectors only how texts are compared (model/text_vectors.py), and must not know how answers are
printed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.model.sentence import Similarity
from bert_jax.inference.bert import Bert
from bert_jax.inference.predict_file import Records
from bert_jax.input_pipeline.text.record_files import BadRecord, Reader
from bert_jax.input_pipeline.text.tables import Table
from bert_jax.model.pooling import Pool
from bert_jax.model.text_vectors import check_alike, read_vectors

BLOCK = 16384  # vectors that a product has; 64 MiB of scores with the queries below
_QUERIES = 1024
# (texts, 'query' or 'document') -> their vectors, as `Bert.embed` gives them.
Embed = Callable[[Sequence[str], str], Any]


def nearest(
    queries: Any, documents: Any, top: int, block: int = BLOCK
) -> tuple[np.ndarray, np.ndarray]:
    """Return the greatest scores of each query among all documents, and whose they are.

    All documents are compared. A block of them is on the device at a time, and what is kept of a
    block is its best: memory does not grow with N.

    Args:
      queries: the vectors of Q queries as `Bert.embed` gives them, or `TextVectors`. Arrays are
        compared by products: rows of length one give cosines.
      documents: those of the N texts that are searched, of the same kind.
      top: how many for each query; all N where there are no more.
      block: how many documents are compared at once.

    Returns:
      Scores float32 [Q, top], the greatest first, and the indices int32 [Q, top] of their
      documents; of equal scores the lower index is first.

    Raises:
      UserError: queries and documents are no vectors of one model.
    """
    queries, documents = read_vectors(queries, 'dot'), read_vectors(documents, 'dot')
    check_alike(queries, documents)
    count, top = len(documents), min(top, len(documents))
    scores_QK = np.empty((len(queries), top), np.float32)
    indices_QK = np.empty((len(queries), top), np.int32)
    for begin in range(0, len(queries), _QUERIES):
        rows = slice(begin, begin + _QUERIES)
        some = queries.take(rows)
        best: tuple[Array, Array] | None = None
        for start in range(0, count, block):
            before = best
            of_block = some.compare_all(documents.take(slice(start, start + block)))
            best = _merge(best, of_block, start, top)
            # One block ahead of the device: it must not take in all that is to come.
            jax.block_until_ready(before)
        if best is not None:
            scores_QK[rows], indices_QK[rows] = jax.device_get(best)
    return scores_QK, indices_QK


@functools.partial(jax.jit, static_argnames='top')
def _merge(
    best: tuple[Array, Array] | None, scores_QN: Array, start: int, top: int
) -> tuple[Array, Array]:
    """Return the best scores so far and their indices, with those of a block from `start` on."""
    # Zeros of both signs are equal, and top_k tells them apart.
    scores_QN = jnp.where(scores_QN == 0, 0.0, scores_QN)
    scores_QK, indices_QK = jax.lax.top_k(scores_QN, min(top, scores_QN.shape[1]))
    indices_QK += start
    if best is None:
        return scores_QK, indices_QK

    # Of equal ones top_k takes the first, and earlier blocks have the lower indices.
    scores_QK = jnp.concatenate([best[0], scores_QK], axis=1)
    indices_QK = jnp.concatenate([best[1], indices_QK], axis=1)
    scores_QK, places_QK = jax.lax.top_k(scores_QK, min(top, scores_QK.shape[1]))
    return scores_QK, jnp.take_along_axis(indices_QK, places_QK, axis=1)


class Near(NamedTuple):
    """A sentence of the file: its line from 1, its text, and its score with the query."""

    line: int
    text: str
    score: float


class SemanticSearch:
    """The sentences of a file in memory, each with its vectors.

    Attributes:
      texts, lines: of each its text, and its line in the file from 1.
      similarity: what compares their vectors.
    """

    def __init__(self, embed: Embed, records: Records, path: str, similarity: Similarity):
        """Read all sentences but empty ones.

        Args:
          embed: makes vectors of texts; the second argument is 'query' or 'document'.
          records: (line, record with a 'text').
          path: the file, for messages.
          similarity: what compares the vectors.

        Raises:
          UserError: a record is bad, or no sentence is left.
        """
        self._embed, self.similarity = embed, similarity
        self.texts: list[str] = []
        self.lines: list[int] = []
        for line, record in records:
            if isinstance(record, BadRecord):
                raise UserError(f'{path}:{line}: {record.reason}: mend or delete it')
            text = record['text']
            if not isinstance(text, str):
                text = ' '.join(text)
            if text.strip():
                self.texts.append(text)
                self.lines.append(line)
        if not self.texts:
            raise UserError(f'{path}: no sentence in it')
        self._vectors = read_vectors(embed(self.texts, 'document'), similarity)

    @classmethod
    def of_file(
        cls,
        init_from: str,
        reader: Reader,
        layer: int = -1,
        pool: Pool | None = None,
        max_seq_length: int | None = None,
    ) -> SemanticSearch:
        """Read the sentences of a file and the model that makes their vectors.

        Args:
          init_from: the model.
          reader: the file of sentences, of the column 'text'.
          layer: 0 is the embeddings, -1 the last block.
          pool: how the pieces of a sentence are pooled; None: as the model says, or 'mean'.
          max_seq_length: word pieces of the longest row; None: as many as the model reads.
        """
        _ = reader.size  # a file that is not there is reported before the model is read
        bert = Bert.load(init_from, 'float32')  # what is near hangs on no processor
        last = bert.config.num_layers
        if not -last - 1 <= layer <= last:
            raise UserError(
                f'--layer={layer}: this encoder has 0 (the embeddings) to {last}, or'
                f' {-last - 1} to -1'
            )

        def embed(texts: Sequence[str], prompt: str) -> Any:
            return bert.embed(texts, (layer,), pool, max_seq_length, prompt)

        # States that are named are none that the model was trained to compare.
        is_trained = layer == -1 and pool is None
        return cls(embed, reader, reader.path, bert.similarity if is_trained else 'cosine')

    def nearest(self, query: str, top: int) -> list[Near]:
        """Return the `top` sentences with the greatest score, greatest first; ties by line."""
        vectors = read_vectors(self._embed([query], 'query'), self.similarity)
        scores_1K, indices_1K = nearest(vectors, self._vectors, top)
        answers = []
        for index, score in zip(indices_1K[0], scores_1K[0].tolist()):
            answers.append(Near(self.lines[index], self.texts[index], score))
        return answers


class Mining(NamedTuple):
    """Which of a query's neighbours are hard negatives.

    Attributes:
      negatives: how many there are of a pair; a pair with fewer is left out.
      first, last: the ranks that they are taken from: neighbour number `first`, counted from 0, to
        the one before `last`, of those that the margin leaves. The nearest of all may be answers
        that nobody has marked.
      margin: their score is below that of the positive by this share of it, or more; None: any.
    """

    negatives: int = 1
    first: int = 0
    last: int = 100
    margin: float | None = None

    @classmethod
    def of(cls, negatives: int, ranks: str, margin: float | None) -> Mining:
        """Return what the flags say, `ranks` as '10,50'. UserError where it is no such range."""
        words = ranks.split(',')
        if len(words) != 2 or not all(map(str.isdecimal, words)):
            raise UserError(f'--mine_ranks={ranks}: write two numbers, as in --mine_ranks=10,50')
        return cls(negatives, int(words[0]), int(words[1]), margin)

    def check(self) -> None:
        """Raise UserError where no neighbours are chosen so."""
        if self.last - self.first < self.negatives:
            raise UserError(
                f'--mine_ranks={self.first},{self.last}: these are fewer than --negatives='
                f'{self.negatives}: widen the range'
            )


def mine_hard_negatives(
    pairs: Sequence[tuple[str, str]],
    embed: Embed,
    mining: Mining,
    similarity: Similarity = 'cosine',
) -> Iterator[dict[str, Any]]:
    """Yield {'anchor', 'positive', 'negatives'} of the pairs that have enough hard negatives.

    They are the nearest documents of all pairs that are no positive of the same query; of several
    positives the lowest score decides the margin (sentence_transformers' mine_hard_negatives).

    Args:
      pairs: (query, its document).
      embed: (texts, 'query' or 'document') -> their vectors, as `Bert.embed` gives them.
      mining: which neighbours are chosen.
      similarity: what compares them.
    """
    mining.check()
    documents = list(dict.fromkeys(document for _, document in pairs))
    number = {document: i for i, document in enumerate(documents)}
    positives: dict[str, list[int]] = {}
    for query, document in pairs:
        positives.setdefault(query, []).append(number[document])

    # Ranks are counted without the positives, which the search gives too.
    queries, vectors = list(positives), read_vectors(embed(documents, 'document'), similarity)
    top = mining.last + max(map(len, positives.values()))
    chosen: dict[str, list[str]] = {}
    for start in range(0, len(queries), _QUERIES):
        some = queries[start : start + _QUERIES]
        of_queries = read_vectors(embed(some, 'query'), similarity)
        scores, indices = nearest(of_queries, vectors, min(top, len(documents)))
        for number_of_query, (query, score, index) in enumerate(
            zip(some, scores, indices, strict=True)
        ):
            mine = positives[query]
            others = ~np.isin(index, mine)
            score, index = score[others], index[others]
            if mining.margin is not None:
                repeated = of_queries.take([number_of_query] * len(mine))
                least = repeated.compare_pairs(vectors.take(mine)).min()
                index = index[score <= least - abs(least) * mining.margin]
            index = index[mining.first : mining.last][: mining.negatives]
            chosen[query] = [documents[i] for i in index]
    for query, document in pairs:
        if len(chosen[query]) == mining.negatives:
            yield {'anchor': query, 'positive': document, 'negatives': chosen[query]}


def mine_file(
    path: str,
    columns: Mapping[str, str | int],
    output: str,
    embed: Embed,
    mining: Mining,
    similarity: Similarity = 'cosine',
) -> tuple[int, int]:
    """Write the pairs of a file with hard negatives, as jsonl; return how many pairs, and written.

    Args:
      path: the file, with the columns anchor and positive; any that a task file may name.
      columns: where these have other names, or places: role -> column.
      output: the file to write.
      embed: as `mine_hard_negatives` takes it.
      mining: which neighbours are chosen.
      similarity: what compares them.
    """
    roles = ('anchor', 'positive')
    for role in columns:
        if role not in roles:
            raise UserError(f'--columns: {role!r} is not among {", ".join(roles)}')
    pairs: list[tuple[str, str]] = []
    # A training file, and so read as training reads it.
    for location, row in Table(path, dict(zip(roles, roles)) | dict(columns)).rows():
        if not (row['anchor'].strip() and row['positive'].strip()):
            raise UserError(f'{location}: an empty text: mend or delete the row')
        pairs.append((row['anchor'], row['positive']))
    if not pairs:
        raise UserError(f'{path}: no pair in it')
    rows = list(mine_hard_negatives(pairs, embed, mining, similarity))
    if not rows:
        raise UserError(
            f'{path}: no pair has {mining.negatives} hard negatives of these ranks and this margin:'
            ' widen --mine_ranks, or lower --mine_margin'
        )
    lines = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    atomic_write(epath.Path(output), lines)
    return len(pairs), len(rows)
