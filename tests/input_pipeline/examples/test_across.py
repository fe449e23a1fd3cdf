"""Rows that go on from one document into the next, against a walk from sentence to sentence."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.input_pipeline.examples.documents import Documents
from bert_jax.input_pipeline.examples.full_sentences import make_rows_across

SEP = 3


def make(texts: list[list[list[int]]]) -> Documents:
    """Of documents of sentences of tokens."""
    sentences = [sentence for document in texts for sentence in document]
    ends = np.cumsum([0, *map(len, sentences)])
    counts = np.cumsum([0, *map(len, texts)])
    tokens = np.array([token for sentence in sentences for token in sentence], np.uint16)
    names = np.arange(len(texts), dtype=np.uint64) + 7
    return Documents(tokens, ends, counts, names, np.zeros(len(texts), np.int64))


def walked(texts: list[list[list[int]]], longest: int) -> list[list[int]]:
    """Rows, sentence after sentence; the first of a document has a separator before it."""
    rows: list[list[int]] = [[]]
    for number, document in enumerate(texts):
        for place, sentence in enumerate(document):
            unit = [SEP] * (place == 0 and number > 0) + sentence
            for begin in range(0, len(unit), longest):
                piece = unit[begin : begin + longest]
                if len(rows[-1]) + len(piece) > longest:
                    rows.append([])
                rows[-1] += piece
    return [row[row[0] == SEP :] for row in rows]


def shown(documents: Documents, longest: int, passes=1) -> list[list[int]]:
    tokens, examples = make_rows_across(documents, longest, passes, SEP)
    assert len(set(examples.keys.tolist())) == examples.keys.size
    return [tokens[a:b].tolist() for a, b in zip(examples.a, examples.a_end, strict=True)]


@pytest.mark.parametrize('longest', [7, 16, 40])
def test_rows_are_those_of_the_walk(longest):
    rng = np.random.default_rng(longest)
    texts = [
        [rng.integers(10, 99, rng.integers(1, 20)).tolist() for _ in range(rng.integers(1, 6))]
        for _ in range(60)
    ]
    rows = shown(make(texts), longest)
    assert rows == walked(texts, longest)
    assert all(row[0] != SEP != row[-1] for row in rows) and max(map(len, rows)) <= longest
