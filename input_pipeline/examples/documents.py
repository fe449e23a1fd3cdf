"""Documents and the examples that are cut from them, as arrays for all of them at once.

An example is four offsets into one flat array of tokens, so pairing copies no text. Owns these
arrays and what an objective is to do (`Cutter`). It must not know any objective, token values
beyond "does a word start here", masking, files or processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_jax.input_pipeline.randomness import Stream

Objective = Literal['nsp', 'sop', 'full_sentences']


def offsets(counts: npt.ArrayLike) -> np.ndarray:
    """Return int64 [N + 1], where each of N parts of these sizes begins, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


@dataclass(frozen=True)
class Documents:
    """Tokenised documents laid end to end.

    `tokens` [T]; sentence s is tokens[sentences[s]:sentences[s + 1]], never empty; document
    d is the sentences documents[d] to documents[d + 1], never none, however long it is.
    `names` [D] uint64 name the documents. `languages` [D] are numbers,
    equal ones side by side: B is drawn from A's language, unless A is alone in it. `lines`
    [sentences, 2] uint64 are hashes of what each sentence says; None where its tokens say it.
    """

    tokens: np.ndarray  # [T] ids
    sentences: np.ndarray  # [number of sentences + 1] places in tokens
    documents: np.ndarray  # [D + 1] places in sentences
    names: np.ndarray
    languages: np.ndarray
    lines: np.ndarray | None = None

    @property
    def language_numbers(self) -> np.ndarray:
        """Return int16 [T], the language of each token."""
        lengths = np.diff(self.sentences[self.documents])
        return np.repeat(self.languages, lengths).astype(np.int16)


class Examples(NamedTuple):
    """N examples: segments tokens[a:a_end] and tokens[b:b_end] (int64), label, and key.

    `labels` int32: 0 = B follows A, 1 = random (nsp) or swapped (sop). Under full_sentences
    B is empty and the label is 0. `keys` uint64 are mixed from document, duplicate and index.
    """

    a: np.ndarray
    a_end: np.ndarray
    b: np.ndarray
    b_end: np.ndarray
    labels: np.ndarray
    keys: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """Return int64 [N], the tokens of A and B together."""
        return self.a_end - self.a + self.b_end - self.b

    def count_of(self, chosen: np.ndarray) -> Counter[str]:
        """Count the examples that begin in the chosen tokens [T] bool, and these tokens in them.

        By the names 'examples' and 'example_tokens'.
        """
        # Of a stretch of tokens as many are chosen as are up to its end, less those before it.
        before = offsets(chosen)
        tokens = before[self.a_end] - before[self.a] + before[self.b_end] - before[self.b]
        return Counter(examples=int(chosen[self.a].sum()), example_tokens=int(tokens.sum()))

    def take(self, rows: np.ndarray | slice) -> Examples:
        """Return these rows only."""
        return Examples(*(column[rows] for column in self))


class Turn(NamedTuple):
    """Documents [N] of which each is to give an example.

    Attributes:
      document: their numbers.
      start: the sentence from which on to cut; where an objective goes by tokens, the token.
      end: that of the document's end.
      target: tokens of an example.
    """

    document: np.ndarray
    start: np.ndarray
    end: np.ndarray
    target: np.ndarray


class Cut(NamedTuple):
    """An example of each of N documents, before it is cut to length, and where the next begins."""

    a: np.ndarray
    a_end: np.ndarray
    b: np.ndarray
    b_end: np.ndarray
    labels: np.ndarray
    next_start: np.ndarray


class Cutter(ABC):
    """An objective: it cuts an example from each of some documents, and goes on from its end."""

    def __init__(self, documents: Documents, stream: Stream):
        self._documents, self._stream = documents, stream

    def get_bounds(self, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first sentence and the end of each document."""
        return self._documents.documents[document], self._documents.documents[document + 1]

    @abstractmethod
    def cut(self, turn: Turn) -> Cut:
        """Cut one example from each document of a turn."""

    def _close_chunk(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        """Return where a chunk that starts at a sentence ends, and how many of its sentences are A.

        A chunk closes with the sentence that reaches the target, or with the document
        (create_pretraining_data.py:252). A has 1 to n - 1 of its n sentences (:260-262).
        """
        offsets = self._documents.sentences
        full = np.searchsorted(offsets, offsets[turn.start] + turn.target, 'left')
        chunk_end = np.minimum(full, turn.end)

        # One sentence: all of it is A, and below(1) is 0.
        return chunk_end, 1 + self._stream.below(np.maximum(chunk_end - turn.start - 1, 1))
