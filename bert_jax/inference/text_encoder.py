"""Texts to the vectors that a model was trained to give of them, of whatever kind.

Owns the rows of the texts, behind their prompt, and their trip through the device, some thousand
at a time. What is kept of the outputs the head says (train/search_heads.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from scipy import sparse

from bert_jax.configs.errors import UserError, check_count
from bert_jax.conversion import serving
from bert_jax.inference.engine import DeviceWeights, InferenceEngine
from bert_jax.inference.predictor import iterate_chunks
from bert_jax.input_pipeline.tasks.base import ROW_KEYS
from bert_jax.input_pipeline.tasks.features import count_cut, make_pairs, say_cut
from bert_jax.input_pipeline.tasks.vector_rows import make_vector_rows
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model.blocks.matmul import choose_inference_dtype
from bert_jax.model.text_vectors import TextVectors, read_vectors
from bert_jax.runs.finetuning.data_collator import gather
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.search_heads import VectorHead

_CHUNK = 1024  # texts whose outputs are on the host before they are made smaller


class TextEncoder:
    """Makes the vectors of texts by the head of one model, which stays in memory.

    It scores pairs of a query and a document by these too.
    """

    def __init__(
        self, source: Source, max_seq_length: int | None = None, compute_dtype: str = 'auto'
    ):
        """Put the model on the device.

        Args:
          source: a model that was trained to give vectors.
          max_seq_length: word pieces of the longest row; None: as the model says.
          compute_dtype: arithmetic of the layers: float32, bfloat16 or auto.

        Raises:
          UserError: the model lacks a part of its head.
        """
        model, compute_dtype = source.bert, choose_inference_dtype(compute_dtype)
        self._head = cast(VectorHead, model.row)
        assert model.sentence is not None, 'only a model of vectors has them'
        self._tokenizer, self._config = source.tokenizer, model.sentence
        missing = [part for part in self._head.parts if part not in model.parts]
        if missing:
            raise UserError(
                f'{source.where}: it lacks {" and ".join(missing)}, from which its vectors are'
                ' made: train it first, or name another model'
            )
        limit = model.config.max_position
        self._length = max_seq_length or self._config.longest(limit)
        forward = serving.make_forward(model, jnp.dtype(compute_dtype))
        self._engine = InferenceEngine(
            forward,
            source.params,
            self._length,
            word_vectors.inputs(source.model, source.tokenizer),
            DeviceWeights(compute_dtype),
        )

    def __call__(self, texts: Any, prompt: str | None = None) -> Any:
        """Return the vectors of some texts behind the prompt of that name, as the head has them."""
        pairs = make_pairs(texts)
        if any(second is not None for _, second in pairs):
            raise UserError('this model gives vectors of single texts, and no pairs of them')
        parts, cut = [], np.zeros(4, np.int64)
        for some in iterate_chunks([text for text, _ in pairs], _CHUNK):
            of_each = [prompt] * len(some)
            rows = make_vector_rows(some, of_each, self._tokenizer, self._length, self._config)
            cut += count_cut(rows)
            read = {name: rows[name] for name in ROW_KEYS if name in rows}
            parts.append(self._head.keep_values(gather(self._engine(read), len(some))))
        say_cut('embed', cut, f'max_length={self._length} allows')
        return self._head.join_values(parts) if parts else []

    def iterate_logits(self, pairs: Iterable[tuple[str, str]]) -> Iterator[float]:
        """Yield the score of each pair; texts of a thousand pairs are in memory at a time."""
        for some in iterate_chunks(pairs, _CHUNK):
            queries, documents = zip(*some, strict=True)
            of_queries = self._encode_once(queries, 'query')
            yield from of_queries.compare_pairs(self._encode_once(documents, 'document')).tolist()

    def activate(self, logit: float) -> float:
        """Return the score itself."""
        return logit

    def _encode_once(self, texts: Sequence[str], prompt: str) -> TextVectors:
        """Return the vectors of texts; equal texts are encoded once."""
        once = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        vectors = read_vectors(self(list(once), prompt), self._config.similarity)
        return vectors.take([once[text] for text in texts])


def decode_sparse(
    vectors: Any, tokenizer: Tokenizer, vocab_size: int, top: int | None
) -> list[list[tuple[str, float]]]:
    """Return the (word piece, weight) pairs of sparse vectors: see `Bert.decode_sparse`."""
    check_count('top', top)
    weights_NV, decoded = sparse.csr_array(vectors), []
    weights_NV = weights_NV.reshape(-1, weights_NV.shape[-1])  # a row of them has one axis
    if weights_NV.shape[1] != vocab_size:
        raise UserError(
            f'vectors of {weights_NV.shape[1]} entries: this vocabulary has'
            f' {vocab_size}: take the model that made them'
        )
    by_text = weights_NV.tolil()
    for ids, weights in zip(by_text.rows, by_text.data):
        order = np.lexsort((ids, np.negative(weights)))[:top]
        pieces = tokenizer.tokens(ids[number] for number in order)
        decoded.append(list(zip(pieces, (weights[number] for number in order))))
    return decoded
