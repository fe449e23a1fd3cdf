"""Texts to the vectors that a model was trained to give of them, of whatever kind.

Owns the rows of the texts, behind their prompt, and their trip through the device, some thousand
at a time. What is kept of the outputs the head says (train/search_heads.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.conversion import serving
from bert_jax.inference.engine import DeviceWeights, InferenceEngine
from bert_jax.input_pipeline.tasks.features import count_cut, make_text_rows, say_cut
from bert_jax.model.blocks.matmul import choose_inference_dtype
from bert_jax.runs.finetuning.data_collator import gather
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.search_heads import VectorHead

_CHUNK = 1024  # texts whose outputs are on the host before they are made smaller


class TextEncoder:
    """Makes the vectors of texts by the head of one model, which stays in memory."""

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
        self._tokenizer, self._config = source.tokenizer, model.sentence
        missing = [part for part in self._head.parts if part not in model.parts]
        if missing:
            raise UserError(
                f'{source.where}: it lacks {" and ".join(missing)}, from which its vectors are'
                ' made: train it first, or name another model'
            )
        limit = model.config.max_position
        self._length = max_seq_length or (self._config.longest(limit) if self._config else limit)
        forward = serving.make_forward(model, jnp.dtype(compute_dtype))
        self._engine = InferenceEngine(
            forward,
            source.params,
            self._length,
            word_vectors.inputs(source.model, source.tokenizer),
            DeviceWeights(compute_dtype),
        )

    def __call__(self, texts: Sequence[str], prompt: str | None = None) -> Any:
        """Return the vectors of some texts behind the prompt of that name, as the head has them."""
        begin = self._config.prompt(prompt) if self._config else ''
        parts, cut = [], np.zeros(4, np.int64)
        for start in range(0, max(len(texts), 1), _CHUNK):
            some = [begin + text for text in texts[start : start + _CHUNK]]
            rows = make_text_rows(some, [None] * len(some), self._tokenizer, self._length)
            cut += count_cut(rows)
            read = {name: rows[name] for name in self._head.inputs}
            parts.append(self._head.keep_values(gather(self._engine(read), len(some))))
        say_cut('embed', cut, f'max_length={self._length} allows')
        return self._head.join_values(parts)
