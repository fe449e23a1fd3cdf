"""Several short examples in one row, so that less of it is padding.

This file owns which examples share a row (best fit, longest first; Krell et al. 2021,
arXiv 2107.02027, do the same on a histogram of lengths) and how their columns become one
row's. ModernBERT packs as text arrives, best fit over a buffer of 5,120: Wikipedia's rows of 1,024
are 99.0 % full by that, and 99.8 % by this, which knows all examples of a bucket. It must not know
tokens, masking or files beyond the names of record features. N examples, R rows, S positions, P
predictions and K examples a row.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from bert_jax.input_pipeline.examples.pairs import offsets
from bert_jax.input_pipeline.records.fields import RecordSpec


class Packs(NamedTuple):
    """Which examples share a row.

    `order` [N]: the examples, row by row; row r has those from `bounds[r]` to `bounds[r + 1]` of
    it, `bounds` [R + 1].
    """

    order: np.ndarray
    bounds: np.ndarray

    def take(self, rows: np.ndarray) -> Packs:
        """Return these rows only."""
        # The stretches of `order` that belong to these rows, moved together.
        counts = np.diff(self.bounds)[rows]
        bounds = offsets(counts)
        places = np.arange(bounds[-1]) + np.repeat(self.bounds[rows] - bounds[:-1], counts)
        return Packs(self.order[places], bounds)


class _Rooms:
    """Open rows by the room that they have left: (tokens, predictions, examples)."""

    def __init__(self) -> None:
        self._rooms: list[tuple[int, int, int]] = []  # ascending
        self._rows: dict[tuple[int, int, int], np.ndarray] = {}

    def put(self, room: tuple[int, int, int], rows: np.ndarray) -> None:
        """Open rows; those that are full in any of the three are never looked at again."""
        if room in self._rows:
            self._rows[room] = np.concatenate([self._rows[room], rows])
        elif min(room) > 0 and rows.size:
            self._rows[room] = rows
            bisect.insort(self._rooms, room)

    def take_tightest(
        self, length: int, predictions: int
    ) -> tuple[tuple[int, int, int], np.ndarray] | None:
        """Take the least room that is enough, and its rows; None where there is no such room."""
        # Rooms are sorted by tokens: from `first` on all have enough of these, but perhaps not
        # enough predictions.
        first = bisect.bisect_left(self._rooms, (length,))
        for i in range(first, len(self._rooms)):
            if self._rooms[i][1] >= predictions:
                room = self._rooms.pop(i)
                return room, self._rows.pop(room)
        return None


def pack(lengths: np.ndarray, predictions: np.ndarray, spec: RecordSpec) -> Packs:
    """Put examples of `lengths` [N] tokens and `predictions` [N] into as few rows as it can.

    A row holds at most S tokens, P predictions and K examples. Longest first, each into the row
    with the least room that it fits. All examples of a length go in one step and rows with the same
    room are one entry of a list, so the time depends on how many lengths there are, not on how many
    examples.
    """
    row_of = np.empty(lengths.size, np.int64)
    rooms, count = _Rooms(), 0  # rows begun so far

    # Groups of examples that are alike in length and predictions, the longest first: what is large
    # is placed while there is room, and short ones fill the gaps.
    longest_first = np.lexsort((-predictions, -lengths))
    changes = np.diff(lengths[longest_first]) | np.diff(predictions[longest_first])
    group_starts = np.flatnonzero(changes) + 1

    # Each group goes to the tightest room that takes it until all of it is placed.
    for waiting in np.split(longest_first, group_starts):
        length, masked = int(lengths[waiting[0]]), int(predictions[waiting[0]])
        while waiting.size:
            # An open row takes one at a time: what is left of it may be too tight for a second.
            opened = rooms.take_tightest(length, masked)
            if opened is None:
                room = (spec.seq_len, spec.max_predictions, spec.max_packs)
                # a new row takes several of them
                each = min(room[0] // length, room[1] // masked, room[2])
                opened = room, np.arange(count, count + -(-waiting.size // each))
                count += opened[1].size
            room, rows = opened

            # One example a row. What they leave is new room; rows that got none keep theirs.
            taken, untouched = rows[: waiting.size], rows[waiting.size :]
            row_of[waiting[: taken.size]] = taken
            waiting = waiting[taken.size :]
            rooms.put((room[0] - length, room[1] - masked, room[2] - 1), taken)
            rooms.put(room, untouched)

    # Stable, so that examples of a row keep their order, and the same ones make the same bytes.
    order = np.argsort(row_of, kind='stable')
    examples_of_row = np.bincount(row_of, minlength=count)
    return Packs(order, offsets(examples_of_row))


def join(
    spec: RecordSpec, columns: dict[str, np.ndarray], bounds: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the columns of R packed records, from those of their examples in order.

    Row r has examples bounds[r] to bounds[r + 1].
    """
    # Whose row each example is in, and its slot there.
    S, P, K = spec.seq_len, spec.max_predictions, spec.max_packs
    counts = np.diff(bounds)
    row = np.repeat(np.arange(counts.size), counts)
    slot = np.arange(row.size) - bounds[row]

    # Tokens: the first places of each example, so that those of a row follow each other.
    used = columns['input_mask'] > 0
    lengths = used.sum(axis=1)
    ends = offsets(lengths)
    start = ends[:-1] - ends[bounds[row]]
    filled = np.arange(S) < np.add.reduceat(lengths, bounds[:-1])[:, None]

    # Predictions and slots likewise: as many filled from the front as the row's examples have in
    # all.
    weighted = columns['masked_lm_weights'] > 0
    predicted = np.arange(P) < np.add.reduceat(weighted.sum(axis=1), bounds[:-1])[:, None]
    held = np.arange(K) < counts[:, None]

    def laid(chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return zeros [R, width], but `values`, one after the other, at the chosen places."""
        out = np.zeros(chosen.shape, values.dtype)
        out[chosen] = values
        return out

    # Each pack counts its own positions from 0, and its predictions move by where it starts.
    places = np.broadcast_to(np.arange(S, dtype=np.int32), used.shape)
    return {
        'input_ids': laid(filled, columns['input_ids'][used]),
        'segment_ids': laid(filled, columns['segment_ids'][used]),
        'pack_ids': laid(filled, np.repeat((slot + 1).astype(np.int32), lengths)),
        'position_ids': laid(filled, places[used]),
        'masked_lm_positions': laid(
            predicted, (columns['masked_lm_positions'] + start[:, None].astype(np.int32))[weighted]
        ),
        'masked_lm_ids': laid(predicted, columns['masked_lm_ids'][weighted]),
        'masked_lm_weights': predicted.astype(np.float32),
        'cls_positions': laid(held, start.astype(np.int32)),
        'next_sentence_labels': laid(held, columns['next_sentence_labels']),
        'next_sentence_weights': held.astype(np.float32),
    }
