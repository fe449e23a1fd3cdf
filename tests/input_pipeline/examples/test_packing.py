"""Packing: what it may put together, how full rows get, and what a packed row holds.

It is its examples, one after the other.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bert_jax.input_pipeline.examples.masking import MaskingRule, mask, prediction_counts
from bert_jax.input_pipeline.examples.packing import join, pack
from bert_jax.input_pipeline.examples.pairs import make_examples
from bert_jax.input_pipeline.examples.rows import lay_out
from bert_jax.input_pipeline.randomness import Stream
from bert_jax.input_pipeline.records import fields
from bert_jax.input_pipeline.records.fields import RecordSpec
from tests.helpers.documents import make_documents


def best_fit_over_a_buffer(lengths, spec, rows=64, buffer=512) -> float:
    """How full the rows of ModernBERT's packer are, which has seen no more than a buffer.

    As sequence_packer.py: the next one goes to the fullest row that it fits in, or waits; batches
    that the last of the text cannot fill are left out.
    """
    waiting, used, made = list(lengths), 0, 0
    while len(waiting) > buffer:
        room, left = [spec.seq_len] * rows, []
        for length in waiting[:buffer]:
            fitting = [i for i in range(rows) if room[i] >= length]
            if fitting:
                room[min(fitting, key=room.__getitem__)] -= length
            else:
                left.append(length)
        waiting = left + waiting[buffer:]
        used, made = used + rows * spec.seq_len - sum(room), made + rows
    return used / made / spec.seq_len


def test_rows_are_fuller_than_those_of_a_buffer():
    """Documents as Wikipedia's: most short, the long ones cut to rows."""
    spec, random = RecordSpec(1024, 308, 'static', 32), np.random.RandomState(0)
    documents = random.lognormal(5.4, 1.2, 1500).astype(int) + 3
    parts = [[1024] * (n // 1022) + [n % 1022 + 2] * (n % 1022 > 0) for n in documents.tolist()]
    lengths = np.array(list(itertools.chain.from_iterable(parts)))
    packs = pack(lengths, prediction_counts(lengths, MaskingRule(0.3, 308)), spec)
    full = lengths.sum() / (packs.bounds.size - 1) / 1024
    assert full > 0.995 and full >= best_fit_over_a_buffer(lengths, spec)


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


@pytest.mark.parametrize('shape', [(512, 77, 8), (128, 20, 3), (128, 8, 8), (64, 64, 2)])
@pytest.mark.parametrize('full', [0.6, 0.0])
def test_rows_hold_what_they_may_and_are_as_full_as_first_fit_makes_them(shape, full):
    spec = RecordSpec(*shape[:2], 'static', shape[2])
    random = np.random.RandomState(0)
    lengths = np.where(
        random.rand(1500) < full, spec.seq_len, random.randint(5, spec.seq_len + 1, 1500)
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


def test_a_packed_row_is_its_examples_one_after_the_other():
    spec = RecordSpec(64, 12, 'static', 4)
    documents = make_documents(count=40, most_sentences=4, most_tokens=12)
    examples = make_examples(documents, 'nsp', spec.seq_len, 5, 0.3, Stream(1))
    rows = lay_out(documents.tokens, examples, spec.seq_len, 2, 3)
    rule = MaskingRule(0.15, spec.max_predictions)
    masked = mask(rows.input_ids, rows.candidates, rows.lengths, None, rule, 4, 1000, Stream(2))
    packs = pack(rows.lengths, prediction_counts(rows.lengths, rule), spec)
    assert np.diff(packs.bounds).max() == 4
    columns = {
        'input_ids': masked.input_ids,
        'input_mask': rows.input_mask,
        'segment_ids': rows.segment_ids,
        'masked_lm_positions': masked.positions,
        'masked_lm_ids': masked.ids,
        'masked_lm_weights': masked.weights,
        'next_sentence_labels': examples.labels,
    }
    joined = join(
        spec, {name: column[packs.order] for name, column in columns.items()}, packs.bounds
    )
    assert (
        set(joined) == {feature.name for feature in spec.features}
        and fields.check(spec, joined, 1000) == []
    )
    for row, (first, end) in enumerate(itertools.pairwise(packs.bounds.tolist())):
        wanted = {name: [] for name in joined}
        for slot, example in enumerate(packs.order[first:end].tolist()):
            start, length = len(wanted['input_ids']), int(rows.lengths[example])
            wanted['cls_positions'].append(start)
            wanted['next_sentence_labels'].append(examples.labels[example])
            wanted['next_sentence_weights'].append(1)
            wanted['input_ids'] += masked.input_ids[example, :length].tolist()
            wanted['segment_ids'] += rows.segment_ids[example, :length].tolist()
            wanted['pack_ids'] += [slot + 1] * length
            wanted['position_ids'] += range(length)
            for place, label, weight in zip(
                masked.positions[example], masked.ids[example], masked.weights[example]
            ):
                if weight:
                    wanted['masked_lm_positions'].append(start + place)
                    wanted['masked_lm_ids'].append(label)
                    wanted['masked_lm_weights'].append(1)
        for name, values in wanted.items():
            assert joined[name][row].tolist() == values + [0] * (
                joined[name].shape[1] - len(values)
            ), name
