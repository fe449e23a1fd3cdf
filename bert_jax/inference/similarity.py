"""Sentences by the likeness of their meaning: vectors of a file's sentences, and the nearest ones.

Owns the cosines. What the vectors are of is the extractor's (extractor.py), which makes one of
every text; must not know how answers are printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.inference.extractor import Extractor
from bert_jax.input_pipeline.text.record_files import BadRecord

_TINY = 1e-12  # a vector of zeros stays one, and is like nothing


class Near(NamedTuple):
    """A sentence of the file: its line from 1, its text, and its cosine with the query."""

    line: int
    text: str
    cosine: float


class Sentences:
    """The sentences of a file in memory, each with a vector [H] of length one.

    Attributes:
      texts, lines: of each its text, and its line in the file from 1.
      cut: how many were longer than the model reads, as `Part.cut`.
    """

    def __init__(
        self,
        extractor: Extractor,
        records: Iterable[tuple[int, dict[str, Any] | BadRecord]],
        where: str,
    ):
        """`extractor` pools one layer; records are (line, record with a 'text').

        Empty texts are left out. UserError for a bad record, which names its line of `where`, and
        where no sentence is left.
        """
        self._extractor = extractor
        self.texts: list[str] = []
        self.lines: list[int] = []

        def kept() -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
            for line, record in records:
                if isinstance(record, BadRecord):
                    raise UserError(f'{where}:{line}: {record.reason}: mend or delete it')
                text = record['text']
                text = text if isinstance(text, str) else ' '.join(text)
                if text.strip():
                    self.texts.append(text)
                    self.lines.append(line)
                    yield line, {'text': text}

        parts = list(extractor(kept(), where))
        self.cut = sum((part.cut for part in parts), np.zeros(4, np.int64))
        vectors = [vector for part in parts for vector in part.features]
        if not vectors:
            raise UserError(f'{where}: no sentence in it')
        self._vectors_NH = _unit(np.stack(vectors)[:, 0])

    def nearest(self, query: str, top: int) -> list[Near]:
        """The `top` sentences with the greatest cosine, greatest first; ties by their line."""
        (part,) = self._extractor(iter([(1, {'text': query})]), 'query')
        cosines_N = self._vectors_NH @ _unit(part.features[0])[0]
        order = np.argsort(-cosines_N, kind='stable')[:top]
        return [Near(self.lines[i], self.texts[i], float(cosines_N[i])) for i in order]


def _unit(vectors_NH: np.ndarray) -> np.ndarray:
    """The vectors, float32, each scaled to length one."""
    vectors_NH = vectors_NH.astype(np.float32)
    lengths_N1 = np.linalg.norm(vectors_NH, axis=-1, keepdims=True)
    return vectors_NH / np.maximum(lengths_N1, _TINY)
