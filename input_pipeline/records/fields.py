"""The feature schema of a record: the one place that names record fields.

A record is a serialised tf.train.Example. Static masking stores the seven features of
google-research/bert (create_pretraining_data.py:133-139), so files interchange with it
both ways; dynamic masking stores the unmasked ids and where words start. A packed record
holds several examples one after the other, which google-research/bert cannot read. This
file codes, checks and counts batches of records; it must not know about files, shards or
the order in which records are read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bert_jax.input_pipeline.records import example_proto
from bert_jax.input_pipeline.records.example_proto import BadRecord, Feature


@dataclass(frozen=True)
class RecordSpec:
    """What a record holds: S = seq_len token places and P = max_predictions masked places.

    `static`: ids are masked already; `dynamic`: the train step draws the masks, and P is
    how many it may draw. With K = max_packs > 1 a record holds up to K examples, each
    from [CLS] to [SEP], and P counts for all of them: `pack_ids` [S] are 1 in the first
    example, 2 in the second and so on, 0 in the padding; `position_ids` [S] count from 0 in
    each; `cls_positions`, `next_sentence_labels` and `next_sentence_weights` [K] have a place
    for each, with weight 0 where there are fewer.
    """

    seq_len: int
    max_predictions: int  # a row, over all of its examples
    masking: Literal['static', 'dynamic']
    max_packs: int = 1  # examples a record holds at most; 1: not packed
    # ids that may be seen, beyond the vocabulary that is predicted; 0: the vocabulary's alone
    known_words: int = 0

    @functools.cached_property
    def features(self) -> tuple[Feature, ...]:
        """Return the features in the order in which `encode` writes them."""
        S, P, K = self.seq_len, self.max_predictions, self.max_packs
        # The masks, or what the step needs to draw them. Empty entries of P are zeros with weight
        # 0, as in google-research/bert.
        masks: tuple[Feature, ...] = (Feature('word_starts', S, 'int'),)
        if self.masking == 'static':
            masks = (
                Feature('masked_lm_positions', P, 'int'),
                Feature('masked_lm_ids', P, 'int'),
                Feature('masked_lm_weights', P, 'float'),
            )

        # Several examples a row: whose token it is (pack_ids) takes the part of the input mask.
        if self.packed:
            return (
                Feature('input_ids', S, 'int'),
                Feature('segment_ids', S, 'int'),
                Feature('pack_ids', S, 'int'),
                Feature('position_ids', S, 'int'),
                *masks,
                Feature('cls_positions', K, 'int'),
                Feature('next_sentence_labels', K, 'int'),
                Feature('next_sentence_weights', K, 'float'),
            )

        return (
            Feature('input_ids', S, 'int'),
            Feature('input_mask', S, 'int'),
            Feature('segment_ids', S, 'int'),
            *masks,
            Feature('next_sentence_labels', 1, 'int'),
        )

    @property
    def packed(self) -> bool:
        """Tell whether a record may hold several examples."""
        return self.max_packs > 1


def encode(spec: RecordSpec, columns: dict[str, np.ndarray]) -> tuple[bytes, np.ndarray]:
    """Serialise a batch of N records.

    Args:
      spec: the schema.
      columns: an array a feature, [N, S], [N, P], [N, K] or, for next_sentence_labels that are not
        packed, [N]; ints must be in [0, 2**31).

    Returns:
      The N tf.train.Example messages one after the other, and int64 offsets [N + 1]:
      record i is payload[offsets[i]:offsets[i + 1]].
    """
    return example_proto.encode(spec.features, columns)


def decode_numpy(spec: RecordSpec, payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Decode N records: int32 [N, S], [N, P] and [N, K], float32 weights.

    next_sentence_labels are int32 [N] where records are not packed.

    Raises:
      BadRecord: a record is damaged, lacks a feature, or has one of another length.
    """
    return _flat_labels(spec, example_proto.decode(spec.features, payloads))


@functools.lru_cache
def make_kept_dtype(spec: RecordSpec, vocab_size: int) -> np.dtype:
    """Return the type of a record that is decoded and in range, kept until it is asked for.

    Each number takes as few bytes as the largest of its feature needs: less memory in all than the
    serialised record took, and copied as a whole.
    """
    limits = _limits(spec, vocab_size)
    columns: list[tuple[str, np.dtype, tuple[int]]] = []
    for feature in spec.features:
        kind = np.dtype(np.float32)
        if feature.kind == 'int':
            kind = np.min_scalar_type(limits[feature.name][0] - 1)
        columns.append((feature.name, kind, (feature.length,)))
    return np.dtype(columns, align=True)


def keep_numpy(
    spec: RecordSpec,
    vocab_size: int,
    text: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Decode the N records that lie at `starts` to `ends` of a text into `rows` [N].

    `rows` are of `make_kept_dtype`.

    Raises:
      BadRecord: a record is damaged, lacks a feature, has one of another length, or holds a number
        that no model can look up.
    """
    # At once where they are written as ours are, which is nearly always.
    below = {name: limit for name, (limit, _) in _limits(spec, vocab_size).items()}
    alike = example_proto.decode_alike(spec.features, text, starts, ends, rows, below)
    if alike and _weights_in_range(spec, rows):
        return

    # Else one by one, which also tells the record that is not in order, and why.
    payloads = [text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    columns = example_proto.decode(spec.features, payloads)
    if not in_range(spec, columns, vocab_size):
        raise BadRecord(*check(spec, _flat_labels(spec, columns), vocab_size)[0])
    for name, column in columns.items():
        rows[name] = column


def get_columns(
    spec: RecordSpec, rows: Mapping[str, np.ndarray] | np.ndarray
) -> dict[str, np.ndarray]:
    """Return what `decode_numpy` gives for those records, from `make_kept_dtype`."""
    return _flat_labels(spec, {f.name: rows[f.name].astype(f.dtype) for f in spec.features})


def _flat_labels(spec: RecordSpec, columns: dict[str, Any]) -> dict[str, Any]:
    """Make [N] of one label a record, which is stored as a list of one."""
    if spec.packed:
        return columns
    return {**columns, 'next_sentence_labels': columns['next_sentence_labels'][:, 0]}


def _limits(spec: RecordSpec, vocab_size: int) -> dict[str, tuple[int, str]]:
    """Return {feature of whole numbers: (the number it must stay below, what that is)}."""
    # What a lookup or a gather is made with: beyond its end jax takes the last entry without a
    # word.
    limits = {
        'input_ids': (max(vocab_size, spec.known_words), 'the vocabulary'),
        'segment_ids': (2, 'two segments'),
        'next_sentence_labels': (2, 'two labels'),
    }
    if spec.packed:
        limits['pack_ids'] = (spec.max_packs + 1, 'the packs')
        limits['position_ids'] = limits['cls_positions'] = (spec.seq_len, 'the sequence')
    else:
        limits['input_mask'] = (2, 'a mask')
    if spec.masking == 'dynamic':
        limits['word_starts'] = (2, 'a mask')
    else:
        limits['masked_lm_positions'] = (spec.seq_len, 'the sequence')
        limits['masked_lm_ids'] = (vocab_size, 'the vocabulary')
    return limits


def in_range(spec: RecordSpec, columns: dict[str, np.ndarray], vocab_size: int) -> bool:
    """Tell whether every number of a batch of decoded records is one that a model can look up.

    `check` says what is wrong, and where.
    """
    for name, (limit, _) in _limits(spec, vocab_size).items():
        if not example_proto.all_below(columns[name], limit):
            return False
    return _weights_in_range(spec, columns)


def _weights_in_range(spec: RecordSpec, columns: Mapping[str, np.ndarray] | np.ndarray) -> bool:
    """Tell whether all weights are 0 to 1; not so where a weight is NaN."""
    for feature in spec.features:
        if feature.kind == 'float':
            weights = columns[feature.name]
            if not (weights.min(initial=0) >= 0 and weights.max(initial=0) <= 1):
                return False
    return True


def check(
    spec: RecordSpec, columns: dict[str, np.ndarray], vocab_size: int
) -> list[tuple[int, str]]:
    """Return what cannot be true of decoded records: (row, its first reason), in row order."""
    reasons: dict[int, str] = {}

    # The first reason of a record is kept: what follows from it is no news.
    def report(rows: np.ndarray | np.bool, reason: str) -> None:
        for row in np.flatnonzero(rows).tolist():
            reasons.setdefault(row, reason)

    # First the numbers one by one, then how they fit each other, which means something only then.
    for name, (limit, what) in _limits(spec, vocab_size).items():
        values = columns[name].reshape(len(columns[name]), -1)
        for row, column in np.argwhere((values < 0) | (values >= limit)).tolist():
            value = int(values[row, column])
            reasons.setdefault(row, f'{name}[{column}] = {value} is outside [0, {limit}), {what}')

    # Which positions hold tokens: shown by the packs, or by a mask that must be one run of ones.
    if spec.packed:
        for rows, reason in _wrong_packs(spec, columns):
            report(rows, reason)
        used = columns['pack_ids'] > 0
    else:
        used = columns['input_mask'] != 0
        report(
            ~used[:, 0] | (~used[:, :-1] & used[:, 1:]).any(axis=1),
            'input_mask is not ones followed by zeros',
        )

    # A prediction in the padding would train on [PAD].
    if spec.masking == 'static':
        weights = columns['masked_lm_weights']
        report(~np.isin(weights, (0, 1)).all(axis=1), 'masked_lm_weights are not all 0 or 1')
        positions = np.clip(columns['masked_lm_positions'], 0, spec.seq_len - 1)
        in_padding = ~np.take_along_axis(used, positions, axis=1)
        report(((weights != 0) & in_padding).any(axis=1), 'a masked position lies in the padding')
    return sorted(reasons.items())


def _wrong_packs(
    spec: RecordSpec, columns: dict[str, np.ndarray]
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield (bool [N], what is wrong with the packs of those records)."""
    # Along a row packs may go up by one (a start), stay, or fall from the last one to 0 (the
    # padding).
    packs, positions = columns['pack_ids'], columns['position_ids']
    count = packs.max(axis=1, initial=0)
    steps = np.diff(packs, axis=1, prepend=0)
    starts = steps == 1
    ends = (packs == 0) & (steps == -count[:, None])  # the first place of the padding
    strange = (~starts & ~ends & (steps != 0)).any(axis=1)
    yield (
        strange | ~starts[:, 0] | (starts.sum(axis=1) != count),
        'pack_ids are not 1, 2, ... followed by zeros',
    )

    # Positions count from the last start before them.
    columns_S = np.arange(spec.seq_len)
    begin = np.maximum.accumulate(np.where(starts, columns_S, 0), axis=1)
    yield (
        (positions != np.where(packs > 0, columns_S - begin, 0)).any(axis=1),
        'position_ids do not count from 0 in each pack',
    )

    # One slot a pack, filled from the front.
    slots = np.arange(spec.max_packs) < count[:, None]
    yield (
        (columns['next_sentence_weights'] != slots).any(axis=1),
        'next_sentence_weights are not 1 for each pack and 0 beyond',
    )

    # Clipped, for pack_ids may be wrong, which is said above, and must not be an index then.
    firsts = np.zeros(columns['cls_positions'].shape, np.int64)
    row, first = np.nonzero(starts)
    slot = np.clip(packs[row, first] - 1, 0, spec.max_packs - 1)
    firsts[row, slot] = first
    yield (
        (columns['cls_positions'] != firsts).any(axis=1),
        'cls_positions are not where the packs begin',
    )


def count(spec: RecordSpec, columns: dict[str, np.ndarray]) -> dict[str, int | list[int]]:
    """Return sums over a batch of records, which add up over batches.

    records; examples (more than records where they are packed); tokens (padding not
    counted); random_next (label 1); for static masking masked, kept (masked positions that
    still show the original) and mask_histogram [P + 1]: how many records have 0, 1, ... P
    masked positions; for packed records pack_histogram [K + 1] likewise.
    """
    # Sums that add up, no means: shards are counted apart, in any order.
    labels = columns['next_sentence_labels']
    # Numbers of the packs; a mask is that of the one example of a row.
    used = columns['pack_ids' if spec.packed else 'input_mask']
    packs = used.max(axis=1, initial=0)
    if spec.packed:
        labels = labels * columns['next_sentence_weights']
    sums: dict[str, int | list[int]] = {
        'records': len(used),
        'examples': int(packs.sum()),
        'tokens': int(np.count_nonzero(used)),
        'random_next': int(labels.sum()),
    }
    if spec.packed:
        sums['pack_histogram'] = np.bincount(packs, minlength=spec.max_packs + 1).tolist()

    # Kept: 10 % of the masked ones show the original on purpose.
    if spec.masking == 'static':
        weighted = columns['masked_lm_weights'] > 0
        shown = np.take_along_axis(columns['input_ids'], columns['masked_lm_positions'], axis=1)
        sums['masked'] = int(weighted.sum())
        sums['kept'] = int((weighted & (shown == columns['masked_lm_ids'])).sum())
        sums['mask_histogram'] = np.bincount(
            weighted.sum(axis=1), minlength=spec.max_predictions + 1
        ).tolist()
    return sums


def add_counts(total: dict[str, Any], part: dict[str, Any]) -> None:
    """Add the sums that `count` gave of a batch to those of the batches before it, in place."""
    # Histograms add up entry by entry.
    for name, value in part.items():
        if name in total:
            value = np.add(total[name], value).tolist()
        total[name] = value
