"""Batches of random ids that a train step is measured on."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw_batch(
    config: Any, seq_len: int, predictions: int, size: int, packed: int = 0
) -> dict[str, Any]:
    """Draw random ids as numpy arrays, nothing padded, some masked at sorted places.

    packed: examples in a row, which share it as equally as its length allows; 0: one, without a
    packing.
    """
    rng = np.random.default_rng(0)
    batch = {
        'input_ids': rng.integers(0, config.model.vocab_size, (size, seq_len), np.int32),
        'input_mask': np.ones((size, seq_len), np.int32),
        'segment_ids': (
            np.repeat(np.arange(seq_len)[None] >= seq_len // 2, size, 0).astype(np.int32)
        ),
        'masked_lm_positions': (
            np.sort(np.stack([rng.permutation(seq_len)[:predictions] for _ in range(size)])).astype(
                np.int32
            )
        ),
        'masked_lm_ids': rng.integers(0, config.model.vocab_size, (size, predictions), np.int32),
        'masked_lm_weights': np.ones((size, predictions), np.float32),
        'next_sentence_labels': rng.integers(0, 2, size, np.int32),
        'example_weights': np.ones(size, np.float32),
    }
    if not packed:
        return batch
    # Each token's example from 1 on, and how far it is from that example's first.
    numbers = np.arange(seq_len) * packed // seq_len
    starts = np.searchsorted(numbers, np.arange(packed))
    rows = {
        'pack_ids': numbers + 1,
        'position_ids': np.arange(seq_len) - starts[numbers],
        'cls_positions': starts,
    }
    labels = rng.integers(0, 2, (size, packed), np.int32)
    return {
        **{name: array for name, array in batch.items() if name != 'input_mask'},
        **{name: np.tile(array.astype(np.int32), (size, 1)) for name, array in rows.items()},
        'next_sentence_labels': labels,
        'next_sentence_weights': np.ones(labels.shape, np.float32),
    }
