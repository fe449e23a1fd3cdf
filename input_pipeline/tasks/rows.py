"""One text or two as a model's input: [CLS] a [SEP] or [CLS] a [SEP] b [SEP] (run_classifier.py:377-460).

This file owns the layout of such rows and what is cut where they are too long. It must not know tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline.tasks.base import INPUT_KEYS


def text_rows(first: Sequence[str], second: Sequence[str | None], tokenizer: Any, max_seq_length: int) -> dict[str, np.ndarray]:
    """INPUT_KEYS [N, max_seq_length] int32 of N texts, or pairs where the second is not None; cut from the end of the longer."""
    features = {name: np.zeros((len(first), max_seq_length), np.int32) for name in INPUT_KEYS}
    features['input_ids'].fill(tokenizer.pad_id)
    pieces = zip(tokenizer.encode_batch(first), tokenizer.encode_batch([text or '' for text in second]), strict=True)
    for row, (a, b) in enumerate(pieces):
        pair = second[row] is not None
        a_length, b_length = truncated_lengths(len(a), len(b), max_seq_length - (3 if pair else 2))
        end = a_length + 2
        ids = features['input_ids'][row]
        ids[0], ids[1 : end - 1], ids[end - 1] = tokenizer.cls_id, a[:a_length], tokenizer.sep_id
        if pair:
            ids[end : end + b_length], ids[end + b_length] = b[:b_length], tokenizer.sep_id
            features['segment_ids'][row, end : end + b_length + 1] = 1
            end += b_length + 1
        features['input_mask'][row, :end] = 1
    return features


def truncated_lengths(a: int, b: int, budget: int) -> tuple[int, int]:
    """How much of two texts is kept when the longer always gives its last token, b where they tie.

    The loop of run_classifier.py:557-572, in closed form.
    """
    if a + b <= budget:
        return a, b
    half = budget // 2
    if a <= half:
        return a, budget - a
    if b <= budget - half - 1:
        return budget - b, b
    return budget - half, half
