"""From which probability on a label is given: chosen for the best F1.

This file owns the search. It must not know tasks.
"""

from __future__ import annotations

import numpy as np

_EVEN = 0.5


def best_thresholds(truth: np.ndarray, shares: np.ndarray) -> list[float]:
    """Return for each label the threshold above which giving it has the best F1.

    Of equally good ones the nearest to one half; one half for a label that no example has.

    Args:
      truth: [N, labels] of 0 and 1.
      shares: the labels' probabilities [N, labels].
    """
    return [_best(*column) for column in zip(truth.T, shares.T, strict=True)]


def _best(truth: np.ndarray, shares: np.ndarray) -> float:
    if not truth.any():
        return _EVEN
    # Falling probabilities: with the k highest given, F1 is 2 tp / (k + positives). A threshold is
    # between two that differ, and so every one of them is a step.
    order = np.argsort(-shares, kind='stable')
    ranked, right = shares[order], np.cumsum(truth[order])
    scores = 2 * right / (np.arange(1, len(ranked) + 1) + truth.sum())
    below = np.append(ranked[1:], 0.0)
    is_step = ranked > below
    middles = (ranked + below)[is_step] / 2
    # One half itself where it is as good as the middle around it.
    low, high = below[is_step], ranked[is_step]
    middles = np.where((low <= _EVEN) & (high > _EVEN), _EVEN, middles)
    best = scores[is_step] >= scores[is_step].max() - 1e-12
    return float(min(middles[best], key=lambda value: abs(value - _EVEN)))
