"""Rows of feature arrays -> batches of one static size: which example comes when.

This file owns the order of fine-tuning examples, which is arithmetic in (seed, step), and
the padding of an evaluation's tail. It must not know tasks or what the arrays mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from input_pipeline.randomness import Stream

Arrays = dict[str, np.ndarray]


def permutation(count: int, *name: int | str) -> np.ndarray:
    """int64 [count], a permutation that belongs to the name, e.g. (seed, 'epoch', 3)."""
    return Stream(*name).bits(count).argsort(kind='stable')


def subset(items: Sequence[Any], count: int, seed: int) -> list[Any]:
    """`count` items drawn by seed without replacement, in their old order; all of them for 0."""
    if not count or count >= len(items):
        return list(items)
    return [items[place] for place in sorted(permutation(len(items), seed, 'subset')[:count])]


def training_batches(features: Arrays, keys: Sequence[str], batch_size: int, seed: int, start_step: int = 0) -> Iterator[Arrays]:
    """Endless batches of the arrays named by `keys`, each epoch a full shuffle of its own.

    Epochs follow each other without a gap, as the reference's repeat() before batch(): a batch may
    hold the end of one and the beginning of the next, so every batch is full and every example is
    seen once an epoch. Every row has example_weights 1.
    """
    count = len(features[keys[0]])
    weights = np.ones(batch_size, np.float32)
    epoch, order = -1, np.empty(0, np.int64)
    step = start_step
    while True:
        rows = []
        first, last = step * batch_size, (step + 1) * batch_size
        while first < last:
            if first // count != epoch:
                epoch = first // count
                order = permutation(count, seed, 'epoch', epoch)
            stop = min(last, (epoch + 1) * count)
            rows.append(order[first - epoch * count : stop - epoch * count])
            first = stop
        place = np.concatenate(rows)
        yield {name: features[name][place] for name in keys} | {'example_weights': weights}
        step += 1


def evaluation_batches(features: Arrays, keys: Sequence[str], batch_size: int) -> Iterator[Arrays]:
    """All rows in order; the last batch is filled up with copies of its last row at example_weights 0."""
    count = len(features[keys[0]])
    for first in range(0, count, batch_size):
        place = np.minimum(np.arange(first, first + batch_size), count - 1)
        weights = (np.arange(first, first + batch_size) < count).astype(np.float32)
        yield {name: features[name][place] for name in keys} | {'example_weights': weights}
