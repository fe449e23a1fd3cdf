"""The training loss of an answer that does not look at its input: what a run must beat, or it has
learnt nothing.

This file owns that number for each head. It must not know tasks: labels come as the arrays that
training sees.
"""

from __future__ import annotations

import numpy as np

LEARNT = 0.95  # a run has learnt nothing where its loss is not below this share of `constant_loss`


def constant_loss(head: str, features: dict[str, np.ndarray]) -> float:
    """The lowest mean loss, in nats or squared units, of one constant answer to all rows of
    `features`.

    For a choice, whose inputs have no order, that is log(number of choices).
    """
    if head == 'regressor':
        return float(np.var(features['labels']))
    if head == 'choice':
        return float(np.log(features['input_ids'].shape[1]))
    if head == 'span':
        return (_entropy(features['start_positions']) + _entropy(features['end_positions'])) / 2
    if head == 'tokens':
        return _entropy(features['label_ids'][features['label_weights'] > 0])
    return _entropy(features['labels'])


def _entropy(values: np.ndarray) -> float:
    """Of the distribution of the values, in nats."""
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
