"""Documents into examples: where segment A and segment B of every example lie.

This file owns the three objectives: next sentence prediction as google-research/bert makes
it (create_pretraining_data.py:225-340, 418-433), sentence order (SOP; Lan et al. 2020) and
full sentences without a pair (RoBERTa's DOC-SENTENCES). It must not know token values
beyond "does a word start here", nor masking, files or processes. An example is four
offsets into one flat array of tokens, so pairing copies no text; all documents and all
duplicates advance together, one chunk a turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import Stream, mix

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


def special_tokens(objective: Objective) -> int:
    """Return how many places [CLS] and [SEP] take: 3 with two segments, 2 with one."""
    return 2 if objective == 'full_sentences' else 3


def make_examples(
    documents: Documents,
    objective: Objective,
    seq_len: int,
    passes: int | np.ndarray,
    short_seq_prob: float,
    stream: Stream,
    word_starts: np.ndarray | None = None,
    noisy: bool = False,
    cuts: bool = False,
) -> Examples:
    """Make all examples of some passes over the documents, already cut to length.

    Args:
      documents: the text.
      objective: what B is.
      seq_len: tokens of a row, special ones included.
      passes: over all documents, or int [D] over each.
      short_seq_prob: share of examples that are shorter than a row.
      stream: all randomness.
      word_starts: bool [T], needed for sop only, which cuts a chunk of one sentence at a word;
        there a chunk of one word makes no example.
      noisy: sop pairs a chunk of one sentence with a random B instead, and labels it as swapped.
      cuts: full_sentences fills rows to their ends, within sentences too.

    Raises:
      UserError: a random B has no other document to be drawn from.
    """
    # A row for each document and pass over it: all of them advance together, a chunk a turn.
    passes = np.broadcast_to(passes, documents.names.shape)
    of_pass = [np.flatnonzero(passes > duplicate) for duplicate in range(passes.max())]
    document = np.concatenate(of_pass)
    duplicate = np.repeat(np.arange(len(of_pass)), [row.size for row in of_pass])

    # How long examples are to be: as fits, but for a share of shorter ones, so that the model sees
    # short inputs too. One length a document and pass, not one an example (:239-241).
    longest = seq_len - special_tokens(objective)
    target = np.full(document.size, longest)
    short = np.flatnonzero(stream.chance(short_seq_prob, document.size))
    target[short] = 2 + stream.below(np.full(short.size, longest - 1))
    names = mix(documents.names[document], duplicate)

    take_turn = _chunks(objective, noisy, cuts)(documents, stream, word_starts)
    # Each turn makes one example of every row; rows whose document is used up drop out.
    start, end = take_turn.bounds(document)
    by_turn: list[tuple[np.ndarray, ...]] = []
    while document.size:
        *segments, labels, start = take_turn(document, start, end, target)
        by_turn.append((*segments, labels, mix(names, len(by_turn))))
        going = np.flatnonzero(start < end)
        columns = (document, names, target, start, end)
        document, names, target, start, end = (column[going] for column in columns)

    # Cut all pairs at the end; sop leaves out those of which a side is empty then.
    a, a_end, b, b_end, labels, keys = map(np.concatenate, zip(*by_turn))
    a, a_end, b, b_end = truncate(a, a_end, b, b_end, longest, stream)
    examples = Examples(a, a_end, b, b_end, labels.astype(np.int32), keys)
    if objective == 'sop':
        examples = examples.take(np.flatnonzero((a < a_end) & (b < b_end)))
    return examples


def _chunks(objective: Objective, noisy: bool, cuts: bool) -> type[_Chunks]:
    """Return what makes an example of each document in a turn."""
    kinds: dict[Objective, type[_Chunks]] = {
        'nsp': _Nsp,
        'sop': _NoisySop if noisy else _Sop,
        'full_sentences': _Full if cuts else _FullSentences,
    }
    return kinds[objective]


def truncate(
    a: np.ndarray, a_end: np.ndarray, b: np.ndarray, b_end: np.ndarray, longest: int, stream: Stream
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cut pairs to `longest` tokens (:418-433).

    One token at a time from the longer (ties: B), at the front or back by a coin. The lengths that
    this leaves are arithmetic, and of d dropped tokens Binomial(d, 1/2) are at the front, so no
    loop over tokens is needed.
    """
    # First the longer one loses tokens until both are equal, then both in turns.
    length_a, length_b = a_end - a, b_end - b
    excess = np.maximum(length_a + length_b - longest, 0)
    gap = np.abs(length_a - length_b)
    both = np.maximum(excess - gap, 0)  # dropped in turns once the lengths are equal, B first
    first = excess - both
    drop_a = np.where(length_a > length_b, first, 0) + both // 2
    drop_b = excess - drop_a

    # Front before back, A before B: the order of the draws is part of what a seed means.
    front_a, front_b = stream.half_of(drop_a), stream.half_of(drop_b)
    return a + front_a, a_end - (drop_a - front_a), b + front_b, b_end - (drop_b - front_b)


class _Chunks:
    """An objective: called once a turn, it makes an example of each row that still goes."""

    def __init__(self, documents: Documents, stream: Stream, word_starts: np.ndarray | None):
        self._documents, self._stream = documents, stream

    def bounds(self, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first sentence and the end of each document."""
        return self._documents.documents[document], self._documents.documents[document + 1]

    def __call__(
        self, document: np.ndarray, start: np.ndarray, end: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return (a, a_end, b, b_end, labels, start of the next turn), all [N].

        Args:
          document: [N], whose turn it is.
          start: the sentence from which on it goes.
          end: that of the document's end.
          target: tokens of an example.
        """
        raise NotImplementedError

    def _chunk(
        self, start: np.ndarray, end: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return where a chunk that starts at a sentence ends, and how many of its sentences are A.

        A chunk closes with the sentence that reaches the target, or with the document (:252);
        A has 1 to n - 1 of its n sentences (:260-262).
        """
        offsets = self._documents.sentences
        chunk_end = np.minimum(np.searchsorted(offsets, offsets[start] + target, 'left'), end)

        # One sentence: all of it is A, and below(1) is 0.
        return chunk_end, 1 + self._stream.below(np.maximum(chunk_end - start - 1, 1))


class _Nsp(_Chunks):
    """One chunk of each document into a pair (:247-335).

    Half of them, and all of one sentence, get a random B.
    """

    def __init__(self, documents: Documents, stream: Stream, word_starts: np.ndarray | None):
        super().__init__(documents, stream, word_starts)

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

    def __call__(self, document, start, end, target):
        # A is the first sentences of a chunk, and B its rest ...
        offsets, stream = self._documents.sentences, self._stream
        a = offsets[start]
        chunk_end, a_sentences = self._chunk(start, end, target)
        random_next = (chunk_end - start == 1) | stream.chance(0.5, start.size)
        a_end = offsets[start + a_sentences]
        b, b_end = a_end.copy(), offsets[chunk_end]

        # ... and where a random one is wanted, another document's sentences in the room that A
        # leaves.
        rows = np.flatnonzero(random_next)
        b[rows], b_end[rows] = self._random_b(document[rows], (target - (a_end - a))[rows])

        # The sentences of the chunk that a random B displaced are put back (:292).
        next_start = np.where(random_next, start + a_sentences, chunk_end)
        return a, a_end, b, b_end, random_next, next_start

    def _random_b(self, document: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _in_order(
    first: np.ndarray, cut: np.ndarray, last: np.ndarray, swapped: np.ndarray
) -> np.ndarray:
    """Return a, a_end, b and b_end [4, N] of neighbouring segments, B before A where `swapped`."""
    return np.where(swapped, [cut, last, first, cut], [first, cut, cut, last])


class _NoisySop(_Nsp):
    """One chunk of each document into two neighbouring segments, half of them swapped (label 1).

    As google-research/albert has released it (create_pretraining_data.py:299-349): a chunk of one
    sentence gets a random B, with label 1 too.
    """

    def __call__(self, document, start, end, target):
        offsets, stream = self._documents.sentences, self._stream
        chunk_end, a_sentences = self._chunk(start, end, target)
        single = chunk_end - start == 1
        swapped = stream.chance(0.5, start.size) & ~single
        first, cut, last = offsets[start], offsets[start + a_sentences], offsets[chunk_end]
        a, a_end, b, b_end = _in_order(first, cut, last, swapped)

        rows = np.flatnonzero(single)
        b[rows], b_end[rows] = self._random_b(document[rows], (target - (a_end - a))[rows])
        return a, a_end, b, b_end, swapped | single, chunk_end


class _Sop(_Chunks):
    """One chunk of each document into two neighbouring segments.

    Half of the pairs are swapped (label 1).
    """

    def __init__(self, documents: Documents, stream: Stream, word_starts: np.ndarray | None):
        super().__init__(documents, stream, word_starts)
        assert word_starts is not None, 'sop cuts chunks at words'

        # The next place at or after each token where a word starts.
        places = np.where(word_starts, np.arange(word_starts.size), word_starts.size)
        self._next_word = np.append(np.minimum.accumulate(places[::-1])[::-1], word_starts.size)

    def __call__(self, document, start, end, target):
        offsets, stream = self._documents.sentences, self._stream
        a = offsets[start]
        chunk_end, a_sentences = self._chunk(start, end, target)

        # A and B are neighbours, between two sentences ...
        cut, b_end = offsets[start + a_sentences], offsets[chunk_end]

        # ... but a chunk of one sentence is cut inside, at the first word after a random token, or
        # if there is none, at the first after its first token.
        single = np.flatnonzero(chunk_end - start == 1)
        middle = a[single] + 1 + stream.below(np.maximum(b_end[single] - a[single] - 1, 1))
        later = self._next_word[middle]
        first = self._next_word[a[single] + 1]
        cut[single] = np.minimum(np.where(later < b_end[single], later, first), b_end[single])

        # Swapped: B comes first, which a model must tell.
        swapped = stream.chance(0.5, start.size)
        return *_in_order(a, cut, b_end, swapped), swapped, chunk_end


class _Full(_Chunks):
    """As many tokens as fit, of whatever sentences.

    A turn starts at a token, not at a sentence.
    """

    def bounds(self, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first token and the end of each document."""
        tokens_of = self._documents.sentences[self._documents.documents]
        return tokens_of[document], tokens_of[document + 1]

    def __call__(self, document, start, end, target):
        stop = np.minimum(start + target, end)
        return start, stop, stop, stop, np.zeros(start.size, bool), stop


class _FullSentences(_Full):
    """As many whole sentences as fit; a longer sentence is cut."""

    def __call__(self, document, start, end, target):
        offsets = self._documents.sentences
        limit = np.minimum(start + target, end)

        # The last sentence end within the limit. None beyond the start means that one sentence is
        # longer: it is cut, and goes on in the next example.
        whole_end = offsets[np.searchsorted(offsets, limit, 'right') - 1]
        stop = np.where(whole_end > start, whole_end, limit)
        return start, stop, stop, stop, np.zeros(start.size, bool), stop
