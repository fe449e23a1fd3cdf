"""Batches to be masked."""

from __future__ import annotations

import numpy as np

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000


def batch(rows=2000, seq_len=64, seed=0):
    """Rows [CLS] A [SEP] B [SEP] of random lengths; words of one to four pieces."""
    random = np.random.RandomState(seed)
    lengths = random.randint(8, seq_len + 1, rows)
    ids = np.zeros((rows, seq_len), np.int32)
    candidates = np.zeros((rows, seq_len), bool)
    for i, n in enumerate(lengths):
        sep = random.randint(2, n - 2)
        ids[i, :n] = random.randint(10, VOCAB, n)
        ids[i, [0, sep, n - 1]] = CLS, SEP, SEP
        candidates[i, :n] = True
        candidates[i, [0, sep, n - 1]] = False
    starts = random.rand(rows, seq_len) < 0.6
    starts[:, 1] = True
    starts[:, 1:] |= ids[:, :-1] == SEP
    return ids, candidates, lengths, starts & candidates
