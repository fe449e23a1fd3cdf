"""Documents into examples of an objective, cut to length, and these into rows with special tokens.

Owns how long examples are to be, how a pair is cut (create_pretraining_data.py:239-241, 418-433),
where special tokens stand, what the segment ids and the input mask of a row are, and which places
are words that may be predicted. What segments A and B are is next_sentence.py's and
full_sentences.py's. It must not know what will be masked, files or processes. All documents and all
duplicates advance together, one chunk a turn. N examples, S positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bert_jax.input_pipeline.examples.documents import (
    Cutter,
    Documents,
    Examples,
    Objective,
    Turn,
)
from bert_jax.input_pipeline.examples.full_sentences import FullRows, FullSentences
from bert_jax.input_pipeline.examples.next_sentence import (
    NextSentence,
    NoisySentenceOrder,
    SentenceOrder,
)
from bert_jax.input_pipeline.randomness import Stream, mix


def special_tokens(objective: Objective) -> int:
    """Return how many places [CLS] and [SEP] take: 3 with two segments, 2 with one."""
    if objective == 'full_sentences':
        return 2
    return 3


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
    # An entry for each document and pass over it: all of them advance together, a chunk a turn.
    passes = np.broadcast_to(passes, documents.names.shape)
    of_pass = [np.flatnonzero(passes > number) for number in range(passes.max())]
    document = np.concatenate(of_pass)
    duplicate = np.repeat(np.arange(len(of_pass)), [chosen.size for chosen in of_pass])

    # How long examples are to be: as fits, but for a share of shorter ones, so that the model sees
    # short inputs too. One length a document and pass, not one an example (:239-241).
    longest = seq_len - special_tokens(objective)
    target = np.full(document.size, longest)
    short = np.flatnonzero(stream.chance(short_seq_prob, document.size))
    target[short] = 2 + stream.below(np.full(short.size, longest - 1))

    # Cut all pairs at the end; sop leaves out those of which a side is empty then.
    cutter: Cutter
    if objective == 'nsp':
        cutter = NextSentence(documents, stream)
    elif objective == 'full_sentences':
        cutter = (FullRows if cuts else FullSentences)(documents, stream)
    elif noisy:
        cutter = NoisySentenceOrder(documents, stream)
    else:
        assert word_starts is not None, 'sop cuts chunks at words'
        cutter = SentenceOrder(documents, stream, word_starts)
    name = mix(documents.names[document], duplicate)
    examples = truncate(_cut_in_turns(cutter, document, name, target), longest, stream)
    if objective == 'sop':
        both = (examples.a < examples.a_end) & (examples.b < examples.b_end)
        examples = examples.take(np.flatnonzero(both))
    return examples


def _cut_in_turns(
    cutter: Cutter, document: np.ndarray, name: np.ndarray, target: np.ndarray
) -> Examples:
    """Cut all of some documents [N] into examples of `target` tokens, before truncation.

    Each turn makes one example of every document; those that are used up drop out.
    """
    turn = Turn(document, *cutter.get_bounds(document), target)
    turns: list[Examples] = []
    while turn.document.size:
        cut = cutter.cut(turn)
        labels = cut.labels.astype(np.int32)
        key = mix(name, len(turns))
        turns.append(Examples(cut.a, cut.a_end, cut.b, cut.b_end, labels, key))
        going = np.flatnonzero(cut.next_start < turn.end)
        name = name[going]
        turn = Turn(*(column[going] for column in turn._replace(start=cut.next_start)))
    return Examples(*map(np.concatenate, zip(*turns)))


def truncate(examples: Examples, longest: int, stream: Stream) -> Examples:
    """Cut pairs to `longest` tokens (:418-433).

    One token at a time from the longer (ties: B), at the front or back by a coin. The lengths that
    this leaves are arithmetic, and of d dropped tokens Binomial(d, 1/2) are at the front, so no
    loop over tokens is needed.
    """
    # First the longer one loses tokens until both are equal, then both in turns.
    length_a = examples.a_end - examples.a
    length_b = examples.b_end - examples.b
    excess = np.maximum(length_a + length_b - longest, 0)
    gap = np.abs(length_a - length_b)
    both = np.maximum(excess - gap, 0)  # dropped in turns once the lengths are equal, B first
    first = excess - both
    drop_a = np.where(length_a > length_b, first, 0) + both // 2
    drop_b = excess - drop_a

    # Front before back, A before B: the order of the draws is part of what a seed means.
    front_a = stream.half_of(drop_a)
    front_b = stream.half_of(drop_b)
    return examples._replace(
        a=examples.a + front_a,
        a_end=examples.a_end - (drop_a - front_a),
        b=examples.b + front_b,
        b_end=examples.b_end - (drop_b - front_b),
    )


class Rows(NamedTuple):
    """Rows of a batch of examples.

    `input_ids`, `input_mask`, `segment_ids` [N, S] int32; `lengths` [N]; `candidates` [N, S] bool:
    text, no special token.
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    candidates: np.ndarray
    b_places: np.ndarray  # [N] the place after the first [SEP]

    def word_starts(self, starts_word: np.ndarray) -> np.ndarray:
        """Return bool [N, S]: candidates that begin a word, by the table `starts_word` [V].

        The first place of each segment begins one even where truncation left the tail of a
        word there (the reference joined such a tail to the last word of A, across [SEP]).
        """
        # place 0 is [CLS], so A begins at 1
        starts = starts_word[self.input_ids]
        starts[:, 1] = True
        rows = np.flatnonzero(self.b_places < starts.shape[1])
        starts[rows, self.b_places[rows]] = True
        return starts & self.candidates


def lay_out(
    tokens: np.ndarray,
    examples: Examples,
    seq_len: int,
    cls_id: int,
    sep_id: int,
    pad_id: int = 0,
) -> Rows:
    """Lay out the rows of examples that were cut to length; an empty B gives [CLS] A [SEP].

    A may have [SEP] inside, between documents.
    """
    # Where [SEP] is: after A, and after B where there is one.
    count = examples.a.size
    length_a, length_b = examples.a_end - examples.a, examples.b_end - examples.b
    # Half as wide numbers where they hold all places: what follows is made for every position.
    index: type[np.signedinteger] = np.int64
    if tokens.size < 2**31 - seq_len:
        index = np.int32
    last_place = np.where(length_b > 0, length_a + length_b + 2, length_a + 1)
    first_sep = (length_a + 1).astype(index)[:, None]
    last_sep = last_place.astype(index)[:, None]

    # Each place's source in the flat tokens: A's places lie one behind its start for [CLS], B's one
    # more for the [SEP] between. What falls outside is clipped and masked below.
    position = np.arange(seq_len, dtype=index)
    from_a = (examples.a - 1).astype(index)[:, None]
    from_b = (examples.b - length_a - 2).astype(index)[:, None]
    source = np.where(position < first_sep, from_a, from_b)
    source += position
    np.clip(source, 0, tokens.size - 1, out=source)

    # The text, [PAD] behind the last [SEP], then the special tokens over it.
    ids = tokens[source].astype(np.int32)
    input_mask = position <= last_sep
    ids *= input_mask
    if pad_id:
        ids[~input_mask] = pad_id
    ids[:, 0] = cls_id
    row = np.arange(count)
    ids[row, first_sep[:, 0]] = sep_id
    ids[row, last_sep[:, 0]] = sep_id

    # What may be predicted: all that is neither padding nor special.
    candidates = input_mask & (ids != sep_id)
    candidates[:, 0] = False

    # Segment 1 begins behind the first [SEP], which belongs to A.
    return Rows(
        input_ids=ids,
        input_mask=input_mask.astype(np.int32),
        segment_ids=(input_mask & (position > first_sep)).astype(np.int32),
        lengths=last_sep[:, 0].astype(np.int64) + 1,
        candidates=candidates,
        b_places=first_sep[:, 0].astype(np.int64) + 1,
    )
