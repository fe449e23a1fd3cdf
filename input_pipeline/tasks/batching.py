"""Rows of feature arrays -> batches of a few static shapes: which example comes when.

This file owns the order of fine-tuning examples, which is arithmetic in (seed, step), and which
rows are cut to which length. It must not know tasks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import Stream, digest64
from bert_jax.input_pipeline.tasks.base import Arrays, cut, row_lengths

# Of tokens: what vector registers and tensor cores are wide, and little padding even for sentences
# of a few words
_MULTIPLE = 8
# Epochs in a row that fill no batch, after which none is thought to.
_TRIES = 8


def permutation(count: int, *name: int | str) -> np.ndarray:
    """Return int64 [count], a permutation that belongs to the name, e.g. (seed, 'epoch', 3)."""
    return Stream(*name).bits(count).argsort(kind='stable')


def subset(items: Sequence[Any], count: int, seed: int) -> list[Any]:
    """Return `count` items drawn by seed, each once, in their old order; all of them for 0."""
    if not count or count >= len(items):
        return list(items)

    # Sorted, or the subset would also be a shuffle.
    return [items[i] for i in sorted(permutation(len(items), seed, 'subset')[:count])]


def training_batches(
    features: Arrays,
    keys: Sequence[str],
    batch_size: int,
    seed: int,
    start_step: int = 0,
    distinct: np.ndarray | None = None,
) -> Iterator[Arrays]:
    """Yield endless batches of the arrays named by `keys`, each epoch a full shuffle of its own.

    Epochs follow each other without a gap, as the reference's repeat() before batch(): a batch may
    hold the end of one and the beginning of the next, so every batch is full and every example is
    seen once an epoch. Every row has example_weights 1.

    distinct: numbers [N, K] of the rows' texts; rows that have one in common share no batch then
    (`_apart`).
    """
    weights = np.ones(batch_size, np.float32)
    if distinct is None:
        batches = _shuffled(len(features[keys[0]]), batch_size, seed, start_step)
    else:
        batches = itertools.islice(_apart(distinct, batch_size, seed), start_step, None)
    for chosen in batches:
        yield {name: features[name][chosen] for name in keys} | {'example_weights': weights}


def _shuffled(count: int, batch_size: int, seed: int, start_step: int) -> Iterator[np.ndarray]:
    """Yield which of `count` rows each batch has, from that step on."""
    # Row r of the endless order is place r % count of epoch r // count, so any step can be the
    # first. A batch may have rows of several epochs.
    order_of = functools.lru_cache(1)(lambda epoch: permutation(count, seed, 'epoch', epoch))
    for step in itertools.count(start_step):
        epochs, places = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size), count)
        turns = range(int(epochs[0]), int(epochs[-1]) + 1)
        yield np.concatenate([order_of(epoch)[places[epochs == epoch]] for epoch in turns])


def count_left_over(distinct: np.ndarray, batch_size: int, seed: int) -> int:
    """Return how many rows find no place in the first epoch's batches, which are kept `_apart`."""
    steps = -(-len(distinct) // batch_size)
    batches = list(itertools.islice(_apart(distinct, batch_size, seed), steps))
    return len(distinct) - len(np.unique(batches))


def _apart(distinct: np.ndarray, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the rows of endless batches, none of which has a number of `distinct` [N, K] twice.

    A row that does not fit in a batch waits for the next. Those that no batch of an epoch has taken
    come first in the next epoch, once. A batch that an epoch leaves unfilled is filled up from the
    next one.

    Raises:
      UserError: a whole epoch does not fill a batch.
    """
    # Walked through from step 0 on: which rows wait depends on all batches before.
    filling, left_over, fruitless = _Filling(distinct, batch_size), list[int](), 0
    for epoch in itertools.count():
        shuffled = permutation(len(distinct), seed, 'epoch', epoch)
        others = shuffled[~np.isin(shuffled, left_over)].tolist()
        fruitless += 1
        for batch in filling.fill([*left_over, *others]):
            yield batch
            fruitless = 0
        left_over = filling.take_left_over()

        # What is begun goes on in the next epoch, unless it has fitted nothing in a whole one. Then
        # another order may do, so that none is put first.
        if fruitless == _TRIES:
            fitting = len(filling.batch)
            raise UserError(
                f'batch_size={batch_size}: texts that are equal share no batch, and there are no'
                f' more than about {fitting} examples without one in common:'
                f' {"lower it" if fitting > 1 else "add examples of other texts"}'
            )
        if fruitless:
            filling.flush()
            left_over = []


class _Filling:
    """A batch that is being filled with rows that have no text in common.

    Attributes:
      batch: the rows that it has so far.
      used_texts: their texts.
      deferred: {text: rows that wait, since an earlier batch had that text}, each in their order.
    """

    def __init__(self, distinct: np.ndarray, batch_size: int):
        self._texts = [frozenset(row) for row in distinct.tolist()]
        self._batch_size = batch_size
        self.batch: list[int] = []
        self.used_texts: set[int] = set()
        self.deferred: dict[int, list[int]] = {}
        self._order: list[int] = []

    def fill(self, order: list[int]) -> Iterator[np.ndarray]:
        """Yield all batches that the rows of an epoch fill; `order` says which row comes when."""
        self._order = order
        for row in order:
            if not self.fits(row):
                self.defer(row)
                continue
            self.add(row)
            # Those that wait come before new ones, and may fill a whole batch.
            while len(self.batch) == self._batch_size:
                yield self.flush()
                self.add_deferred()

    def fits(self, row: int) -> bool:
        """Tell whether the batch has none of the row's texts."""
        return self.used_texts.isdisjoint(self._texts[row])

    def add(self, row: int) -> None:
        """Put a row that fits into the batch."""
        self.batch.append(row)
        self.used_texts |= self._texts[row]

    def defer(self, row: int) -> None:
        """Let a row that does not fit wait for the next batch."""
        text = min(self._texts[row] & self.used_texts)
        self.deferred.setdefault(text, []).append(row)

    def add_deferred(self) -> None:
        """Put into an empty batch those that wait, as far as they fit."""
        for text, rows in list(self.deferred.items()):
            if len(self.batch) == self._batch_size:
                break
            # By text, since a batch has room for one of those that wait for the same: thousands
            # may wait, and each batch comes by here.
            row = None if text in self.used_texts else next(filter(self.fits, rows), None)
            if row is not None:
                self.add(row)
                rows.remove(row)
            if not rows:
                del self.deferred[text]

    def flush(self) -> np.ndarray:
        """Return the rows of the batch, int64, and begin the next."""
        rows = np.array(self.batch, np.int64)
        self.batch, self.used_texts = [], set()
        return rows

    def take_left_over(self) -> list[int]:
        """Return the rows that still wait, in the order in which they came; none waits then."""
        waiting = {row for rows in self.deferred.values() for row in rows}
        self.deferred = {}
        return [row for row in self._order if row in waiting]


def length_groups(features: Arrays, buckets: int, fewest: int = 1) -> list[tuple[int, np.ndarray]]:
    """Return at most `buckets` static lengths, and the rows (int64) each is the shortest for.

    The lengths are multiples of 8 (of more, where rows have over 1,023 tokens), or the longest
    row's, chosen so that there are as few padded
    tokens as that many lengths allow; each has `fewest` rows or more, or there is one length only.
    """
    # 1. The lengths that rows have, rounded up, and how many rows each has.
    S = features['input_mask'].shape[-1]
    multiple = _MULTIPLE * max(1, S // 512)  # few kinds, for they are compared with each other
    lengths = np.minimum(-(-row_lengths(features) // multiple) * multiple, S)
    kinds, counts = np.unique(lengths, return_counts=True)
    below = [0, *np.cumsum(counts).tolist()]  # rows shorter than the i-th kind

    # 2. Which of them to use: dynamic programming over the kinds in order. A length serves its own
    # kind and all shorter ones behind the length before it, so a plan for the first `end` kinds is
    # one for the first `start` and one more length, that of kind end - 1. `best`: of the rows of
    # the first `end` kinds the tokens, the number of lengths and which kinds they are, the best
    # with one length more in each turn.
    best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
    for _ in range(buckets):
        longer = {0: best[0]}
        for end in range(1, len(kinds) + 1):
            options = [
                (
                    tokens + (below[end] - below[start]) * int(kinds[end - 1]),
                    number + 1,
                    (*tops, end - 1),
                )
                for start, (tokens, number, tops) in best.items()
                if start < end
                and (below[end] - below[start] >= fewest or (start, end) == (0, len(kinds)))
            ]
            if options:
                longer[end] = min(options)
        best = longer

    # 3. Each row goes to the shortest of the chosen lengths that holds it.
    chosen = best[len(kinds)][2]
    bucket = np.searchsorted(kinds[list(chosen)], lengths)
    return [
        (int(kinds[top]), np.flatnonzero(bucket == number)) for number, top in enumerate(chosen)
    ]


def bucketed_batches(
    features: Arrays,
    keys: Sequence[str],
    batch_size: int,
    seed: int,
    buckets: int,
    start_step: int = 0,
    distinct: np.ndarray | None = None,
) -> Iterator[Arrays]:
    """Yield endless batches of rows of like length, cut to it (`length_groups`).

    They are as `training_batches` makes them otherwise.

    The rows of a length are shuffled again in each epoch of theirs, and its batches are spread
    evenly, at random places, over those of other lengths: what a step sees is unbiased, and is
    arithmetic in (seed, step).
    """
    # The order is walked through from step 0 on without making a batch: how many a group has given
    # by `start_step` is all that its own stream needs to know.
    groups = length_groups(features, buckets, batch_size)
    taken = np.zeros(len(groups), np.int64)
    streams: dict[int, Iterator[Arrays]] = {}
    for step, number in enumerate(
        _group_order([len(rows) for _, rows in groups], batch_size, seed)
    ):
        if step >= start_step:
            # Cut once, when the group is first asked for: a group's rows are all of its stream.
            if number not in streams:
                length, rows = groups[number]
                group = cut(
                    {name: features[name][rows] for name in keys},
                    features['input_mask'].shape[-1],
                    length,
                )
                streams[number] = training_batches(
                    *(group, keys, batch_size, digest64(seed, 'bucket', number)),
                    int(taken[number]),
                    None if distinct is None else distinct[rows],
                )
            yield next(streams[number])
        taken[number] += 1


def _group_order(counts: Sequence[int], batch_size: int, seed: int) -> Iterator[int]:
    """Yield which group gives each batch.

    Batch k of a group of n rows comes at a random time in [k, k + 1) * batch_size / n epochs.
    """
    # Batches of a group lie evenly in time, moved at random within their own share of it, and
    # sorted over all groups: in proportion everywhere, and unpredictable from near.
    given = [0] * len(counts)  # batches of each group so far
    for epoch in itertools.count():
        events = []
        for number, count in enumerate(counts):
            while given[number] * batch_size < (epoch + 1) * count:
                jitter = digest64(seed, 'turn', number, given[number]) / 2.0**64
                events.append(((given[number] + jitter) * batch_size / count, number))
                given[number] += 1
        yield from (number for _, number in sorted(events))
