"""The feature schema of a record: the one place that names record fields.

A record is a serialised tf.train.Example. Static masking stores the seven features of
google-research/bert (create_pretraining_data.py:133-139), so files interchange with it
both ways; dynamic masking stores the unmasked ids and where words start. This file codes,
checks and counts batches of records; it must not know about files, shards or the order in
which records are read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from input_pipeline import example_proto
from input_pipeline.example_proto import BadRecord, Feature

__all__ = ['BadRecord', 'Feature', 'RecordSpec', 'check', 'count', 'decode_numpy', 'decode_tensorflow', 'encode']


@dataclass(frozen=True)
class RecordSpec:
    """What a record holds: S = seq_len token places and P = max_predictions masked places.

    `static`: ids are masked already; `dynamic`: the train step draws the masks, and P is
    how many it may draw.
    """

    seq_len: int
    max_predictions: int
    masking: Literal['static', 'dynamic']

    @functools.cached_property
    def features(self) -> tuple[Feature, ...]:
        """The features in the order in which `encode` writes them."""
        S, P = self.seq_len, self.max_predictions
        tokens = (Feature('input_ids', S, 'int'), Feature('input_mask', S, 'int'), Feature('segment_ids', S, 'int'))
        masks = (Feature('masked_lm_positions', P, 'int'), Feature('masked_lm_ids', P, 'int'), Feature('masked_lm_weights', P, 'float'))
        words = (Feature('word_starts', S, 'int'),)
        return tokens + (masks if self.masking == 'static' else words) + (Feature('next_sentence_labels', 1, 'int'),)


def encode(spec: RecordSpec, columns: dict[str, np.ndarray]) -> tuple[bytes, np.ndarray]:
    """Serialises a batch of N records.

    Args:
      spec: the schema.
      columns: an array a feature, [N, S], [N, P] or, for next_sentence_labels, [N]; ints must be in [0, 2**31).

    Returns:
      The N tf.train.Example messages one after the other, and int64 offsets [N + 1]:
      record i is payload[offsets[i]:offsets[i + 1]].
    """
    return example_proto.encode(spec.features, columns)


def decode_numpy(spec: RecordSpec, payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Decodes N records: int32 [N, S] and [N, P], float32 [N, P] weights, int32 [N] next_sentence_labels.

    Raises:
      BadRecord: a record is damaged, lacks a feature, or has one of another length.
    """
    return _flat_labels(example_proto.decode(spec.features, payloads))


def decode_tensorflow(spec: RecordSpec, serialized: Any) -> dict[str, Any]:
    """`decode_numpy` for a string tensor [N], by tf.io.parse_example: for use inside tf.data."""
    import tensorflow as tf

    types = {'int': tf.int64, 'float': tf.float32}
    parsed = tf.io.parse_example(serialized, {f.name: tf.io.FixedLenFeature([f.length], types[f.kind]) for f in spec.features})
    return _flat_labels({f.name: tf.cast(parsed[f.name], tf.int32) if f.kind == 'int' else parsed[f.name] for f in spec.features})


def _flat_labels(columns: dict[str, Any]) -> dict[str, Any]:
    """Stored as lists of one, the labels are [N] everywhere else."""
    return {**columns, 'next_sentence_labels': columns['next_sentence_labels'][:, 0]}


def check(spec: RecordSpec, columns: dict[str, np.ndarray], vocab_size: int) -> list[tuple[int, str]]:
    """What cannot be true of a batch of decoded records: (row, reason), the first reason for each row, in row order."""
    found: dict[int, str] = {}

    def within(name: str, limit: int, what: str) -> None:
        values = columns[name].reshape(len(columns[name]), -1)
        wrong = (values < 0) | (values >= limit)
        for row in np.flatnonzero(wrong.any(axis=1)).tolist():
            place = int(wrong[row].argmax())
            found.setdefault(row, f'{name}[{place}] = {int(values[row, place])} is outside [0, {limit}), {what}')

    def report(rows: np.ndarray, reason: str) -> None:
        for row in np.flatnonzero(rows).tolist():
            found.setdefault(row, reason)

    within('input_ids', vocab_size, 'the vocabulary')
    within('input_mask', 2, 'a mask')
    within('segment_ids', 2, 'two segments')
    within('next_sentence_labels', 2, 'two labels')
    mask = columns['input_mask']
    report((mask[:, 0] != 1) | (np.diff(mask, axis=1) > 0).any(axis=1), 'input_mask is not ones followed by zeros')
    if spec.masking == 'dynamic':
        within('word_starts', 2, 'a mask')
    else:
        within('masked_lm_positions', spec.seq_len, 'the sequence')
        within('masked_lm_ids', vocab_size, 'the vocabulary')
        weights = columns['masked_lm_weights']
        report(~np.isin(weights, (0, 1)).all(axis=1), 'masked_lm_weights are not all 0 or 1')
        places = np.clip(columns['masked_lm_positions'], 0, spec.seq_len - 1)
        report(((weights != 0) & (np.take_along_axis(mask, places, axis=1) == 0)).any(axis=1), 'a masked position lies in the padding')
    return sorted(found.items())


def count(spec: RecordSpec, columns: dict[str, np.ndarray]) -> dict[str, int | list[int]]:
    """Sums over a batch of records, which add up over batches.

    records; tokens (padding not counted); random_next (label 1); and for static masking
    masked, kept (masked positions that still show the original) and mask_histogram
    [P + 1]: how many records have 0, 1, ... P masked positions.
    """
    sums: dict[str, int | list[int]] = {
        'records': len(columns['input_ids']),
        'tokens': int(columns['input_mask'].sum()),
        'random_next': int(columns['next_sentence_labels'].sum()),
    }
    if spec.masking == 'static':
        weighted = columns['masked_lm_weights'] > 0
        shown = np.take_along_axis(columns['input_ids'], columns['masked_lm_positions'], axis=1)
        sums['masked'] = int(weighted.sum())
        sums['kept'] = int((weighted & (shown == columns['masked_lm_ids'])).sum())
        sums['mask_histogram'] = np.bincount(weighted.sum(axis=1), minlength=spec.max_predictions + 1).tolist()
    return sums
