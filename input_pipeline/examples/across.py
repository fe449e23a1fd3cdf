"""Rows that go on from one document into the next, with a separator between.

They are RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2).

Owns how documents are laid end to end and cut into rows of whole sentences. Rows within a document,
and all that pairs teach, are pairs.py's; this file must not know token values but the
separator's.
"""

from __future__ import annotations

import numpy as np

from bert_jax.input_pipeline.examples.pairs import Documents, Examples
from bert_jax.input_pipeline.randomness import mix


def rows_across(
    documents: Documents, longest: int, passes: int | np.ndarray, separator: int
) -> tuple[np.ndarray, Examples]:
    """Return tokens with a separator between documents, and the examples cut from them.

    B is empty and the label 0. Each pass lays its documents end to end, in their order, and fills
    rows of up to `longest` tokens with whole sentences; a longer sentence is cut. A row neither
    begins nor ends with a separator. `passes`: as for pairs.make_examples.
    """
    passes = np.broadcast_to(passes, documents.names.shape)
    tokens: list[np.ndarray] = []
    parts: list[tuple[np.ndarray, ...]] = []
    base, before = 0, np.empty(0, np.int64)
    for number in range(passes.max()):
        # Each pass has the documents of the one before or fewer: the same text is laid out once.
        chosen = np.flatnonzero(passes > number)
        if chosen.size != before.size:
            base = sum(part.size for part in tokens)
            text, ends = _chain(documents, chosen, separator)
            a, a_end = _cut(ends, longest)
            tokens.append(text)
            before = chosen
        name = mix(mix(documents.names[chosen[:1]], number), np.arange(a.size))
        # A separator at the front parts nothing: the row's own special token is there.
        parts.append((base + a + (text[a] == separator), base + a_end, name))
    a, a_end, keys = (np.concatenate(column) for column in zip(*parts, strict=True))
    return np.concatenate(tokens), Examples(
        a, a_end, a_end, a_end, np.zeros(a.size, np.int32), keys
    )


def _chain(
    documents: Documents, chosen: np.ndarray, separator: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of some documents, a separator between them, and where sentences end.

    A separator belongs to the sentence behind it.
    """
    first, last = documents.documents[chosen], documents.documents[chosen + 1]
    sentences = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    starts = documents.sentences[first]
    text = np.concatenate(
        [
            part
            for a, b in zip(starts, documents.sentences[last], strict=True)
            for part in (np.array([separator], documents.tokens.dtype), documents.tokens[a:b])
        ][1:]
    )
    lengths = documents.sentences[sentences + 1] - documents.sentences[sentences]
    lengths[np.cumsum(last - first)[:-1]] += 1
    return text, np.cumsum(lengths)


def _cut(ends: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first token and the end of each row, of sentences with these ends."""
    # Sentences that are longer than a row become several.
    starts = np.append(0, ends[:-1])
    pieces = -(-(ends - starts) // longest)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    bounds = np.append(np.repeat(starts, pieces) + number * longest, ends[-1])

    # From each of them, as far as a row reaches; then row by row, each from where the last ended.
    reach = (np.searchsorted(bounds, bounds[:-1] + longest, 'right') - 1).tolist()
    rows, at = [], 0
    while at < len(reach):
        rows.append(at)
        at = reach[at]
    chosen = np.array(rows)
    return bounds[chosen], bounds[np.array(reach)[chosen]]
