"""Segments into rows: [CLS] A [SEP] B [SEP] and padding.

This file owns where special tokens stand, what the segment ids and the input mask of a row
are, and which places are words that may be predicted. It must not know how the segments
were chosen or what will be masked. N examples, S positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bert_jax.input_pipeline.examples.pairs import Examples


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
    index = np.int32 if tokens.size < 2**31 - seq_len else np.int64
    column = lambda places: places.astype(index)[:, None]
    first_sep = column(length_a + 1)
    last_sep = column(np.where(length_b > 0, length_a + length_b + 2, length_a + 1))

    # Each place's source in the flat tokens: A's places lie one behind its start for [CLS], B's one
    # more for the [SEP] between. What falls outside is clipped and masked below.
    position = np.arange(seq_len, dtype=index)
    source = np.where(
        position < first_sep,
        column(examples.a - 1),
        column(examples.b - length_a - 2),
    )
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
