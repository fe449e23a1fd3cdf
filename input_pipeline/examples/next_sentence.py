"""Next sentence prediction and sentence order: where segments A and B of every example lie.

Owns the sampling of B: next sentence prediction as google-research/bert makes it
(create_pretraining_data.py:225-340), and sentence order (SOP; Lan et al. 2020), as in the paper and
as google-research/albert has released it. It must not know token values beyond "does a word start
here", masking, files or processes.
"""

from __future__ import annotations

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.examples.documents import Cut, Cutter, Documents, Turn
from bert_jax.input_pipeline.randomness import Stream


class NextSentence(Cutter):
    """One chunk of each document into a pair (:247-335).

    Half of them, and all of one sentence, get a random B.
    """

    def __init__(self, documents: Documents, stream: Stream):
        super().__init__(documents, stream)

        # A must not be its own B.
        count = documents.names.size
        if count < 2:
            raise UserError(
                'one document only: next sentence prediction is impossible, for a random B comes'
                ' from another document; use --objective=full_sentences or --objective=sop (without'
                ' --sop_noise), or give documents separated by blank lines'
            )

        # B is drawn from that many documents, A's among them, from this one on. Languages lie side
        # by side, so a language is a range of documents. A document that is alone in its language
        # has the range of all.
        _, first, inverse, sizes = np.unique(
            documents.languages, return_index=True, return_inverse=True, return_counts=True
        )
        is_alone = sizes[inverse] == 1
        self._from = np.where(is_alone, 0, first[inverse])
        self._among = np.where(is_alone, count, sizes[inverse])

    def cut(self, turn: Turn) -> Cut:
        """Cut one pair from each document of a turn."""
        start = turn.start
        # A is the first sentences of a chunk, and B its rest ...
        offsets = self._documents.sentences
        a = offsets[start]
        chunk_end, a_sentences = self._close_chunk(turn)
        random_next = (chunk_end - start == 1) | self._stream.chance(0.5, start.size)
        a_end = offsets[start + a_sentences]
        b, b_end = a_end.copy(), offsets[chunk_end]

        # ... and where a random one is wanted, another document's sentences in the room that A
        # leaves.
        rows = np.flatnonzero(random_next)
        room = (turn.target - (a_end - a))[rows]
        b[rows], b_end[rows] = self._draw_random_b(turn.document[rows], room)

        # The sentences of the chunk that a random B displaced are put back (:292).
        next_start = np.where(random_next, start + a_sentences, chunk_end)
        return Cut(a, a_end, b, b_end, random_next, next_start)

    def _draw_random_b(
        self, document: np.ndarray, room: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sentences of another document, from a random one on (:278-290).

        They go on until `room` tokens or the document's end. Each document is as likely as any
        other, whatever its length, and so is each sentence in it.
        """
        starts, offsets = self._documents.documents, self._documents.sentences

        # One of the others: drawn from one fewer, and moved past A's own number (the original draws
        # again, and gives up after ten times).
        other = self._from[document] + self._stream.below(self._among[document] - 1)
        other += other >= document
        sentence = starts[other] + self._stream.below(starts[other + 1] - starts[other])

        # Sentences until the room is filled, counting the one that fills it, or to the document's
        # end.
        b = offsets[sentence]
        last = np.searchsorted(offsets, b + np.maximum(room, 1), 'left')
        return b, offsets[np.minimum(last, starts[other + 1])]


class NoisySentenceOrder(NextSentence):
    """One chunk of each document into two neighbouring segments, half of them swapped (label 1).

    As google-research/albert has released it (create_pretraining_data.py:299-349): a chunk of one
    sentence gets a random B, with label 1 too.
    """

    def cut(self, turn: Turn) -> Cut:
        """Cut one pair from each document of a turn."""
        start = turn.start
        offsets = self._documents.sentences
        chunk_end, a_sentences = self._close_chunk(turn)
        single = chunk_end - start == 1
        swapped = self._stream.chance(0.5, start.size) & ~single
        border = offsets[start + a_sentences]
        a, a_end, b, b_end = _swap(offsets[start], border, offsets[chunk_end], swapped)

        rows = np.flatnonzero(single)
        room = (turn.target - (a_end - a))[rows]
        b[rows], b_end[rows] = self._draw_random_b(turn.document[rows], room)
        return Cut(a, a_end, b, b_end, swapped | single, chunk_end)


class SentenceOrder(Cutter):
    """One chunk of each document into two neighbouring segments, half of them swapped (label 1)."""

    def __init__(self, documents: Documents, stream: Stream, word_starts: np.ndarray):
        super().__init__(documents, stream)

        # The next place at or after each token where a word starts.
        places = np.where(word_starts, np.arange(word_starts.size), word_starts.size)
        self._next_word = np.append(np.minimum.accumulate(places[::-1])[::-1], word_starts.size)

    def cut(self, turn: Turn) -> Cut:
        """Cut one pair from each document of a turn."""
        start = turn.start
        offsets = self._documents.sentences
        a = offsets[start]
        chunk_end, a_sentences = self._close_chunk(turn)

        # A and B are neighbours, between two sentences ...
        border, b_end = offsets[start + a_sentences], offsets[chunk_end]

        # ... but a chunk of one sentence is cut inside, at the first word after a random token, or
        # if there is none, at the first after its first token.
        single = np.flatnonzero(chunk_end - start == 1)
        length = b_end[single] - a[single]
        middle = a[single] + 1 + self._stream.below(np.maximum(length - 1, 1))
        later = self._next_word[middle]
        first = self._next_word[a[single] + 1]
        word = np.where(later < b_end[single], later, first)
        border[single] = np.minimum(word, b_end[single])

        # Swapped: B comes first, which a model must tell.
        swapped = self._stream.chance(0.5, start.size)
        a, a_end, b, b_end = _swap(a, border, b_end, swapped)
        return Cut(a, a_end, b, b_end, swapped, chunk_end)


def _swap(
    first: np.ndarray, border: np.ndarray, last: np.ndarray, swapped: np.ndarray
) -> np.ndarray:
    """Return a, a_end, b and b_end [4, N] of neighbouring segments, B before A where `swapped`."""
    return np.where(swapped, [border, last, first, border], [first, border, border, last])
