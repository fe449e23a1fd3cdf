"""Rows of several examples, packed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

S, K, P = 24, 3, 7


ROWS = ((0, 3), (1, 2), (4,))  # which of five examples of at most 12 tokens lie in which row


def pack(
    single: dict[str, np.ndarray], rows: Sequence[Sequence[int]] = ROWS
) -> dict[str, np.ndarray]:
    """The examples of `single` in rows of S places, K examples and P predictions.

    `rows`: which ones lie in each.
    """
    names = ('input_ids', 'segment_ids', 'pack_ids', 'position_ids')
    packed = {name: np.zeros((len(rows), S), np.int32) for name in names}
    packed |= {
        name: np.zeros((len(rows), P), np.int32)
        for name in ('masked_lm_positions', 'masked_lm_ids')
    }
    packed |= {
        name: np.zeros((len(rows), K), np.int32)
        for name in ('cls_positions', 'next_sentence_labels')
    }
    packed |= {
        'masked_lm_weights': np.zeros((len(rows), P), np.float32),
        'next_sentence_weights': np.zeros((len(rows), K), np.float32),
    }
    for row, members in enumerate(rows):
        at = predictions = 0
        for number, i in enumerate(members):
            length, masked = single['input_mask'][i].sum(), single['masked_lm_ids'].shape[1]
            here, there = slice(at, at + length), slice(predictions, predictions + masked)
            for name in ('input_ids', 'segment_ids'):
                packed[name][row, here] = single[name][i, :length]
            packed['pack_ids'][row, here], packed['position_ids'][row, here] = (
                number + 1,
                np.arange(length),
            )
            packed['masked_lm_positions'][row, there] = single['masked_lm_positions'][i] + at
            packed['masked_lm_ids'][row, there] = single['masked_lm_ids'][i]
            packed['masked_lm_weights'][row, there] = single['masked_lm_weights'][i]
            packed['cls_positions'][row, number] = at
            packed['next_sentence_labels'][row, number] = single['next_sentence_labels'][i]
            packed['next_sentence_weights'][row, number] = 1
            at, predictions = at + length, predictions + masked
    return packed | {'example_weights': np.ones(len(rows), np.float32)}
