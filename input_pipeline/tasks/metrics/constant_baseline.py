"""The training loss of an answer that does not look at its input.

It is what a run must beat, or it has learnt nothing.

This file owns how far below it a run must come, and the entropy that it is for labels; each
family of tasks says which of its arrays are labels (`Task.constant_loss`).
"""

from __future__ import annotations

import numpy as np

# A run has learnt nothing where its loss is not below this share of `Task.constant_loss`.
LEARNT = 0.95


def binary_entropy(held: np.ndarray) -> float:
    """Return the mean entropy of columns of 0 and 1 [N, K], in nats."""
    shares = np.stack([held.mean(axis=0), 1 - held.mean(axis=0)])
    return float(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=0).mean())


def entropy(values: np.ndarray) -> float:
    """Return the entropy of the values' distribution, in nats.

    It is the lowest mean cross-entropy of one constant answer to them.
    """
    # The best constant distribution is that of the values themselves, and its cross-entropy their
    # entropy.
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
