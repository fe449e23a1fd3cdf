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

from bert_jax.input_pipeline.examples.documents import offsets
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


class _OpenRows:
    """Rows that have room left, by how much: (tokens, predictions, examples).

    Attributes:
      count: rows begun so far.
    """

    def __init__(self, spec: RecordSpec):
        self.count = 0
        self._empty = (spec.seq_len, spec.max_predictions, spec.max_packs)
        self._rooms: list[tuple[int, int, int]] = []  # ascending
        self._rows: dict[tuple[int, int, int], np.ndarray] = {}

    def place(self, length: int, predictions: int, wanted: int) -> np.ndarray:
        """Put examples that are alike into the tightest rows, and return the row of each.

        At least one and at most `wanted` of them: one into each row that has the least room that is
        enough. Only new rows take several.
        """
        # Rooms are sorted by tokens: from `first` on all have enough of these, but perhaps not
        # enough predictions.
        first = bisect.bisect_left(self._rooms, (length,))
        for i in range(first, len(self._rooms)):
            room = self._rooms[i]
            if room[1] >= predictions:
                del self._rooms[i]
                return self._fill(room, self._rows.pop(room), length, predictions, wanted)
        fitting = min(self._empty[0] // length, self._empty[1] // predictions, self._empty[2])
        begun = np.arange(self.count, self.count - (-wanted // fitting))
        self.count += begun.size
        return self._fill(self._empty, begun, length, predictions, wanted)

    def _fill(
        self,
        room: tuple[int, int, int],
        rows: np.ndarray,
        length: int,
        predictions: int,
        wanted: int,
    ) -> np.ndarray:
        """Give one example to each of some rows, and keep what is left of all of them."""
        taken = rows[:wanted]
        self._keep((room[0] - length, room[1] - predictions, room[2] - 1), taken)
        self._keep(room, rows[wanted:])
        return taken

    def _keep(self, room: tuple[int, int, int], rows: np.ndarray) -> None:
        """Keep rows with that room; those that are full in any of the three never come again."""
        if room in self._rows:
            self._rows[room] = np.concatenate([self._rows[room], rows])
        elif min(room) > 0 and rows.size:
            self._rows[room] = rows
            bisect.insort(self._rooms, room)


def pack(lengths: np.ndarray, predictions: np.ndarray, spec: RecordSpec) -> Packs:
    """Put examples of `lengths` [N] tokens and `predictions` [N] into as few rows as it can.

    A row holds at most S tokens, P predictions and K examples. Longest first, each into the row
    with the least room that it fits. All examples of a length go in one step and rows with the same
    room are one entry of a list, so the time depends on how many lengths there are, not on how many
    examples.
    """
    # Groups of examples that are alike in length and predictions, the longest first: what is large
    # is placed while there is room, and short ones fill the gaps.
    longest_first = np.lexsort((-predictions, -lengths))
    changes = np.diff(lengths[longest_first]) | np.diff(predictions[longest_first])
    groups = np.split(longest_first, np.flatnonzero(changes) + 1)

    # Each group goes to the tightest rows that take it until all of it is placed. An open row takes
    # one at a time: what is left of it may be too tight for a second.
    open_rows = _OpenRows(spec)
    row_of = np.empty(lengths.size, np.int64)
    for group in groups:
        length, masked = int(lengths[group[0]]), int(predictions[group[0]])
        placed = 0
        while placed < group.size:
            rows = open_rows.place(length, masked, group.size - placed)
            row_of[group[placed : placed + rows.size]] = rows
            placed += rows.size

    # Stable, so that examples of a row keep their order, and the same ones make the same bytes.
    order = np.argsort(row_of, kind='stable')
    examples_of_row = np.bincount(row_of, minlength=open_rows.count)
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

    # Slots likewise: as many filled from the front as the row has examples. Each pack counts its
    # own positions from 0.
    held = np.arange(K) < counts[:, None]
    places = np.broadcast_to(np.arange(S, dtype=np.int32), used.shape)
    joined = {
        'input_ids': _spread(filled, columns['input_ids'][used]),
        'segment_ids': _spread(filled, columns['segment_ids'][used]),
        'pack_ids': _spread(filled, np.repeat((slot + 1).astype(np.int32), lengths)),
        'position_ids': _spread(filled, places[used]),
        'cls_positions': _spread(held, start.astype(np.int32)),
        'next_sentence_labels': _spread(held, columns['next_sentence_labels']),
        'next_sentence_weights': held.astype(np.float32),
    }
    if spec.masking == 'dynamic':
        return joined | {'word_starts': _spread(filled, columns['word_starts'][used])}

    # Predictions of a row follow each other, and move by where their example starts.
    weighted = columns['masked_lm_weights'] > 0
    predicted = np.arange(P) < np.add.reduceat(weighted.sum(axis=1), bounds[:-1])[:, None]
    positions = columns['masked_lm_positions'] + start[:, None].astype(np.int32)
    return joined | {
        'masked_lm_positions': _spread(predicted, positions[weighted]),
        'masked_lm_ids': _spread(predicted, columns['masked_lm_ids'][weighted]),
        'masked_lm_weights': predicted.astype(np.float32),
    }


def _spread(chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return zeros [R, width], but `values`, one after the other, at the chosen places."""
    out = np.zeros(chosen.shape, values.dtype)
    out[chosen] = values
    return out
