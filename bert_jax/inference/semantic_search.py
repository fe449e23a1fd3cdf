"""Semantic search: the sentences of a file whose vectors are nearest to that of a query.

Owns the cosines. What the vectors are of is the extractor's (extractor.py), which makes one of
every text; must not know how answers are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.inference.extractor import Extractor, Records
from bert_jax.input_pipeline.tasks.features import say_cut
from bert_jax.input_pipeline.text.record_files import BadRecord, Reader
from bert_jax.model.hidden_states import Pool
from bert_jax.runs.sources.source import load_source

_TINY = 1e-12  # a vector of zeros stays one, and is like nothing


class Near(NamedTuple):
    """A sentence of the file: its line from 1, its text, and its cosine with the query."""

    line: int
    text: str
    cosine: float


class SemanticSearch:
    """The sentences of a file in memory, each with a vector [H] of length one.

    Attributes:
      texts, lines: of each its text, and its line in the file from 1.
      cut: how many were longer than the model reads, as `Part.cut`.
    """

    def __init__(
        self,
        extractor: Extractor,
        records: Records,
        path: str,
    ):
        """Read all sentences but empty ones.

        Args:
          extractor: pools one layer.
          records: (line, record with a 'text').
          path: the file, for messages.

        Raises:
          UserError: a record is bad, or no sentence is left.
        """
        self._extractor = extractor
        self.texts: list[str] = []
        self.lines: list[int] = []

        def kept() -> Records:
            for line, record in records:
                if isinstance(record, BadRecord):
                    raise UserError(f'{path}:{line}: {record.reason}: mend or delete it')
                text = record['text']
                text = text if isinstance(text, str) else ' '.join(text)
                if text.strip():
                    self.texts.append(text)
                    self.lines.append(line)
                    yield line, {'text': text}

        parts = list(extractor(kept(), path))
        if not parts:
            raise UserError(f'{path}: no sentence in it')
        self.cut = np.sum([part.cut for part in parts], axis=0)
        vectors = [vector for part in parts for vector in part.features]
        self._vectors_NH = _unit(np.stack(vectors)[:, 0])

    @classmethod
    def of_file(
        cls,
        init_from: str,
        path: str,
        columns: Mapping[str, str | int] | None = None,
        layer: int = -1,
        pool: Pool = 'mean',
        max_seq_length: int | None = None,
    ) -> SemanticSearch:
        """Read the sentences of a file and the model that makes their vectors.

        Args:
          init_from: the model.
          path: the file of sentences.
          columns: where the column 'text' has another name, or an index: role -> column.
          layer: 0 is the embeddings, -1 the last block.
          pool: 'mean', 'cls' or 'max' over the pieces of a sentence.
          max_seq_length: word pieces of the longest row; None: as many as the model has.
        """
        reader = Reader(path, ('text',), (), columns)
        _ = reader.size  # a file that is not there is reported before the model is read
        source = load_source(init_from)
        if not -(last := source.model.num_layers) - 1 <= layer <= last:
            raise UserError(
                f'--layer={layer}: this encoder has 0 (the embeddings) to {last}, or'
                f' {-last - 1} to -1'
            )
        length = max_seq_length or source.model.max_position
        extractor = Extractor(source, [layer], pool, length, 'float32', 'float32')
        search = cls(extractor, reader, path)
        say_cut(path, search.cut, f'max_seq_length={length} allows')
        return search

    def nearest(self, query: str, top: int) -> list[Near]:
        """Return the `top` sentences with the greatest cosine, greatest first; ties by line."""
        (part,) = self._extractor(iter([(1, {'text': query})]), 'query')
        cosines_N = self._vectors_NH @ _unit(part.features[0])[0]
        order = np.argsort(-cosines_N, kind='stable')[:top]
        return [Near(self.lines[i], self.texts[i], float(cosines_N[i])) for i in order]


def _unit(vectors_NH: np.ndarray) -> np.ndarray:
    """Return the vectors, float32, each scaled to length one."""
    vectors_NH = vectors_NH.astype(np.float32)
    lengths_N1 = np.linalg.norm(vectors_NH, axis=-1, keepdims=True)
    return vectors_NH / np.maximum(lengths_N1, _TINY)
