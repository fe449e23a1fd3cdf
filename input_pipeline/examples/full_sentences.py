"""Rows of one segment: within a document (DOC-SENTENCES), or from one document into the next.

The latter have a separator between documents and are RoBERTa's FULL-SENTENCES (Liu et al. 2019,
section 4.2). Owns how text is cut into rows of whole sentences, or into full rows; pairs are
next_sentence.py's. This file must not know token values but the separator's.
"""

from __future__ import annotations

import numpy as np

from bert_jax.input_pipeline.examples.documents import Cut, Cutter, Documents, Examples, Turn
from bert_jax.input_pipeline.randomness import mix


class FullRows(Cutter):
    """As many tokens as fit, of whatever sentences; it goes from token to token."""

    def get_bounds(self, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first token and the end of each document."""
        tokens_of = self._documents.sentences[self._documents.documents]
        return tokens_of[document], tokens_of[document + 1]

    def cut(self, turn: Turn) -> Cut:
        """Cut one row from each document of a turn, whose places are tokens."""
        stop = self._find_stop(turn.start, np.minimum(turn.start + turn.target, turn.end))
        return Cut(turn.start, stop, stop, stop, np.zeros(stop.size, bool), stop)

    def _find_stop(self, start: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return where rows [N] end that begin at `start` and may not go beyond `limit`."""
        return limit


class FullSentences(FullRows):
    """As many whole sentences as fit; a longer sentence is cut."""

    def _find_stop(self, start: np.ndarray, limit: np.ndarray) -> np.ndarray:
        # The last sentence end within the limit. None beyond the start means that one sentence is
        # longer: it is cut, and goes on in the next example.
        offsets = self._documents.sentences
        whole_end = offsets[np.searchsorted(offsets, limit, 'right') - 1]
        return np.where(whole_end > start, whole_end, limit)


def make_rows_across(
    documents: Documents, longest: int, passes: int | np.ndarray, separator: int
) -> tuple[np.ndarray, Examples]:
    """Return tokens with a separator between documents, and the examples cut from them.

    B is empty and the label 0. Each pass lays its documents end to end, in their order, and fills
    rows of up to `longest` tokens with whole sentences; a longer sentence is cut. A row neither
    begins nor ends with a separator. `passes`: as for build_examples.make_examples.
    """
    passes = np.broadcast_to(passes, documents.names.shape)
    tokens: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    keys: list[np.ndarray] = []
    laid_out = 0  # tokens of the passes before
    documents_before = 0
    for number in range(passes.max()):
        # Each pass has the documents of the one before or fewer: the same text is laid out once.
        chosen = np.flatnonzero(passes > number)
        if chosen.size != documents_before:
            laid_out = sum(part.size for part in tokens)
            text, sentence_ends = _chain(documents, chosen, separator)
            row_starts, row_ends = _cut_rows(sentence_ends, longest)
            tokens.append(text)
            documents_before = chosen.size

        # A separator at the front parts nothing: the row's own special token is there.
        starts.append(laid_out + row_starts + (text[row_starts] == separator))
        ends.append(laid_out + row_ends)
        keys.append(mix(mix(documents.names[chosen[:1]], number), np.arange(row_starts.size)))
    a, a_end = np.concatenate(starts), np.concatenate(ends)
    labels = np.zeros(a.size, np.int32)
    examples = Examples(a, a_end, a_end, a_end, labels, np.concatenate(keys))
    return np.concatenate(tokens), examples


def _chain(
    documents: Documents, chosen: np.ndarray, separator: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of some documents, a separator between them, and where sentences end.

    A separator belongs to the sentence behind it.
    """
    border = np.array([separator], documents.tokens.dtype)
    parts: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    for number in chosen.tolist():
        first, last = documents.documents[number : number + 2]
        offsets = documents.sentences[first : last + 1]
        of_document = np.diff(offsets)
        if parts:
            parts.append(border)
            of_document[0] += 1
        parts.append(documents.tokens[offsets[0] : offsets[-1]])
        lengths.append(of_document)
    return np.concatenate(parts), np.cumsum(np.concatenate(lengths))


def _cut_rows(sentence_ends: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first token and the end of each row, of sentences with these ends."""
    # Sentences that are longer than a row become several.
    starts = np.append(0, sentence_ends[:-1])
    pieces = -(-(sentence_ends - starts) // longest)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    bounds = np.append(np.repeat(starts, pieces) + number * longest, sentence_ends[-1])

    # From each of them, as far as a row reaches; then row by row, each from where the last ended.
    reach = (np.searchsorted(bounds, bounds[:-1] + longest, 'right') - 1).tolist()
    rows, at = [], 0
    while at < len(reach):
        rows.append(at)
        at = reach[at]
    chosen = np.array(rows)
    return bounds[chosen], bounds[np.array(reach)[chosen]]
