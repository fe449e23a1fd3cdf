"""Rows of feature arrays -> batches of a few static shapes: which example comes when.

This file owns the order of fine-tuning examples, which is arithmetic in (seed, step), and which
rows are cut to which length. It must not know tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.randomness import Stream, digest64
from bert_jax.input_pipeline.tasks.base import Arrays, cut_rows, get_row_lengths

# Of tokens: what vector registers and tensor cores are wide, and little padding even for sentences
# of a few words
_MULTIPLE = 8
# Epochs in a row that fill no batch, after which none is thought to.
_TRIES = 8


def permute(count: int, *name: int | str) -> np.ndarray:
    """Return int64 [count], a permutation that belongs to the name, e.g. (seed, 'epoch', 3)."""
    return Stream(*name).bits(count).argsort(kind='stable')


def draw_subset(items: Sequence[Any], count: int, seed: int) -> list[Any]:
    """Return `count` items drawn by seed, each once, in their old order; all of them for 0."""
    if not count or count >= len(items):
        return list(items)

    # Sorted, or the subset would also be a shuffle.
    drawn = permute(len(items), seed, 'subset')[:count]
    return [items[i] for i in sorted(drawn)]


def iterate_batches(
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
    (`_iterate_apart`).
    """
    weights = np.ones(batch_size, np.float32)
    if distinct is None:
        batches = _iterate_shuffled(len(features[keys[0]]), batch_size, seed, start_step)
    else:
        batches = itertools.islice(_iterate_apart(distinct, batch_size, seed), start_step, None)
    for chosen in batches:
        yield {name: features[name][chosen] for name in keys} | {'example_weights': weights}


def _iterate_shuffled(
    count: int, batch_size: int, seed: int, start_step: int
) -> Iterator[np.ndarray]:
    """Yield which of `count` rows each batch has, from that step on."""
    # Row r of the endless order is place r % count of epoch r // count, so any step can be the
    # first. A batch may have rows of several epochs.
    shuffled_epoch, shuffled = -1, np.empty(0, np.int64)
    for step in itertools.count(start_step):
        epochs, places = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size), count)
        batch = np.empty(batch_size, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            if epoch != shuffled_epoch:
                shuffled_epoch, shuffled = epoch, permute(count, seed, 'epoch', epoch)
            is_here = epochs == epoch
            batch[is_here] = shuffled[places[is_here]]
        yield batch


def count_left_over(distinct: np.ndarray, batch_size: int, seed: int) -> int:
    """Return how many rows find no place in the first epoch's batches of different texts."""
    steps = -(-len(distinct) // batch_size)
    batches = list(itertools.islice(_iterate_apart(distinct, batch_size, seed), steps))
    return len(distinct) - len(np.unique(batches))


def _iterate_apart(distinct: np.ndarray, batch_size: int, seed: int) -> Iterator[np.ndarray]:
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
        shuffled = permute(len(distinct), seed, 'epoch', epoch)
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


def group_by_length(
    features: Arrays, buckets: int, fewest: int = 1
) -> list[tuple[int, np.ndarray]]:
    """Return at most `buckets` static lengths, and the rows (int64) each is the shortest for.

    The lengths are multiples of 8 (of more, where rows have over 1,023 tokens), or the longest
    row's, chosen so that there are as few padded tokens as that many lengths allow; each has
    `fewest` rows or more, or there is one length only.
    """
    # The lengths that rows have, rounded up to few kinds, for these are compared with each other.
    S = features['input_mask'].shape[-1]
    multiple = _MULTIPLE * max(1, S // 512)
    lengths = np.minimum(-(-get_row_lengths(features) // multiple) * multiple, S)
    kinds, counts = np.unique(lengths, return_counts=True)
    chosen = _choose_lengths(kinds.tolist(), counts.tolist(), buckets, fewest)

    # Each row goes to the shortest of the chosen lengths that holds it.
    bucket = np.searchsorted(chosen, lengths)
    return [(length, np.flatnonzero(bucket == number)) for number, length in enumerate(chosen)]


class _Plan(NamedTuple):
    """Lengths for the shortest rows; of two plans the lesser one is better."""

    tokens: int  # of these rows, padded
    number: int  # of lengths
    lengths: tuple[int, ...] = ()


def _choose_lengths(
    kinds: list[int], counts: list[int], buckets: int, fewest: int
) -> tuple[int, ...]:
    """Return at most `buckets` of the lengths `kinds`, which ascend, for the fewest padded tokens.

    `counts`: how many rows have each. Dynamic programming over the kinds in order. A length serves
    its own kind and all shorter ones behind the length before it, so a plan for the first `end`
    kinds is one for the first `start` and one more length, that of kind end - 1.
    """
    shorter = [0, *itertools.accumulate(counts)]  # rows shorter than the i-th kind
    best = {0: _Plan(0, 0)}  # by the number of kinds that it serves
    for _ in range(buckets):  # one length more in each turn
        longer = {0: best[0]}
        for end in range(1, len(kinds) + 1):
            plans = []
            for start, plan in best.items():
                rows = shorter[end] - shorter[start]
                is_all = (start, end) == (0, len(kinds))
                if start < end and (rows >= fewest or is_all):
                    length = kinds[end - 1]
                    tokens = plan.tokens + rows * length
                    plans.append(_Plan(tokens, plan.number + 1, (*plan.lengths, length)))
            if plans:
                longer[end] = min(plans)
        best = longer
    return best[len(kinds)].lengths


def iterate_bucketed_batches(
    features: Arrays,
    keys: Sequence[str],
    batch_size: int,
    seed: int,
    buckets: int,
    start_step: int = 0,
    distinct: np.ndarray | None = None,
) -> Iterator[Arrays]:
    """Yield endless batches of rows of like length, cut to it (`group_by_length`).

    They are as `iterate_batches` makes them otherwise.

    The rows of a length are shuffled again in each epoch of theirs, and its batches are spread
    evenly, at random places, over those of other lengths: what a step sees is unbiased, and is
    arithmetic in (seed, step).
    """
    # The order is walked through from step 0 on without making a batch: how many a group has given
    # by `start_step` is all that its own stream needs to know.
    groups = group_by_length(features, buckets, batch_size)
    order = _order_groups([len(rows) for _, rows in groups], batch_size, seed)
    taken = [0] * len(groups)
    for number in itertools.islice(order, start_step):
        taken[number] += 1

    # Cut once, when the group is first asked for: a group's rows are all of its stream.
    streams: dict[int, Iterator[Arrays]] = {}
    for number in order:
        if number not in streams:
            length, rows = groups[number]
            group = {name: features[name][rows] for name in keys}
            group = cut_rows(group, features['input_mask'].shape[-1], length)
            apart = None if distinct is None else distinct[rows]
            its_seed = digest64(seed, 'bucket', number)
            streams[number] = iterate_batches(
                group, keys, batch_size, its_seed, taken[number], apart
            )
        yield next(streams[number])


def _order_groups(counts: Sequence[int], batch_size: int, seed: int) -> Iterator[int]:
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
        for _, number in sorted(events):
            yield number
