"""Packing: what it may put together, how full rows get, and what a packed row holds.

It is its examples, one after the other.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.input_pipeline.examples.packing import pack
from bert_jax.input_pipeline.examples.static_masking import MaskingRule, prediction_counts
from bert_jax.input_pipeline.records.fields import RecordSpec


def first_fit_decreasing(lengths, predictions, spec) -> int:
    """How many rows the textbook's algorithm needs.

    Longest first, each into the first row that has room.
    """
    rows = []
    for i in np.argsort(-lengths, kind='stable').tolist():
        need = (int(lengths[i]), int(predictions[i]), 1)
        row = next(
            (row for row in rows if all(have >= want for have, want in zip(row, need))), None
        )
        if row is None:
            row = [spec.seq_len, spec.max_predictions, spec.max_packs]
            rows.append(row)
        row[:] = [have - want for have, want in zip(row, need)]
    return len(rows)


@pytest.mark.parametrize('shape', [(512, 77, 8), (128, 8, 8)])
def test_rows_hold_what_they_may_and_are_as_full_as_first_fit_makes_them(shape):
    spec = RecordSpec(*shape[:2], 'static', shape[2])
    random = np.random.RandomState(0)
    lengths = np.where(
        random.rand(1500) < 0.3, spec.seq_len, random.randint(5, spec.seq_len + 1, 1500)
    )
    predictions = prediction_counts(lengths, MaskingRule(0.15, spec.max_predictions))
    packs = pack(lengths, predictions, spec)
    assert sorted(packs.order.tolist()) == list(range(1500)) and packs.bounds[-1] == 1500
    held = np.diff(packs.bounds)
    assert held.min() >= 1 and held.max() <= spec.max_packs
    for values, most in ((lengths, spec.seq_len), (predictions, spec.max_predictions)):
        assert np.add.reduceat(values[packs.order], packs.bounds[:-1]).max() <= most
    assert held.size <= first_fit_decreasing(lengths, predictions, spec) * 1.01
    some = packs.take(np.array([7, 3]))
    assert [some.order[a:b].tolist() for a, b in itertools.pairwise(some.bounds)] == [
        packs.order[packs.bounds[row] : packs.bounds[row + 1]].tolist() for row in (7, 3)
    ]
