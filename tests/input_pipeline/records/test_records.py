"""The coding of records, against TensorFlow's protobuf and tf.io.parse_example."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bert_jax.input_pipeline.records import fields
from bert_jax.input_pipeline.records.fields import RecordSpec
from tests.helpers.records import encoded, example_columns

STATIC, DYNAMIC, PACKED, PACKED_DYNAMIC = (
    RecordSpec(128, 20, 'static'),
    RecordSpec(64, 10, 'dynamic'),
    RecordSpec(64, 10, 'static', 4),
    RecordSpec(64, 10, 'dynamic', 4),
)


def their_example(tf, spec: RecordSpec, columns: dict[str, np.ndarray], row: int):
    """What google-research/bert puts into its writer (create_pretraining_data.py:127-141)."""
    features = {}
    for feature in spec.features:
        values = np.atleast_1d(columns[feature.name][row]).tolist()
        if feature.kind == 'int':
            features[feature.name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            features[feature.name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features))


def assert_equal(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize('spec', [STATIC, DYNAMIC, PACKED, PACKED_DYNAMIC])
def test_encoded_records_are_the_examples_of_tensorflow(spec):
    tf = pytest.importorskip('tensorflow')
    columns = example_columns(spec, 50, vocab_size=120_000)
    for row, payload in enumerate(encoded(spec, columns)):
        theirs = their_example(tf, spec, columns, row)
        assert tf.train.Example.FromString(payload) == theirs
        assert len(payload) == theirs.ByteSize()  # canonical: no varint longer than it needs to be


@pytest.mark.parametrize('spec', [STATIC, DYNAMIC, PACKED, RecordSpec(8, 1, 'static')])
def test_what_was_encoded_is_decoded_here_and_by_tensorflow(spec):
    columns = example_columns(spec, 2500, vocab_size=3_000_000)
    payloads = encoded(spec, columns)
    found = fields.decode_numpy(spec, payloads)
    assert_equal(found, columns)
    assert {name: array.dtype for name, array in found.items()} == {
        f.name: np.dtype(np.int32 if f.kind == 'int' else np.float32) for f in spec.features
    }
    tf = pytest.importorskip('tensorflow')
    types = {'int': tf.int64, 'float': tf.float32}
    read = {f.name: tf.io.FixedLenFeature([f.length], types[f.kind]) for f in spec.features}
    theirs = tf.io.parse_example(payloads, read)
    for name, column in theirs.items():
        np.testing.assert_array_equal(column.numpy().reshape(columns[name].shape), columns[name])


def varint(value: int) -> bytes:
    value %= 1 << 64
    text = b''
    while value > 127:
        text, value = text + bytes([value & 127 | 128]), value >> 7
    return text + bytes([value])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def test_unpacked_lists_and_unknown_features_are_read():
    """Protobuf lets a writer spell a list in several ways, and add what we do not know.

    Value by value, or split into parts.
    """
    spec = RecordSpec(4, 2, 'dynamic')
    columns = {
        'input_ids': np.array([[7, 300, 0, 2**31 - 1]], np.int32),
        'input_mask': np.array([[1, 1, 0, 0]], np.int32),
        'segment_ids': np.array([[0, -1, 1, 0]], np.int32),
        'word_starts': np.array([[1, 1, 0, 1]], np.int32),
        'next_sentence_labels': np.array([1], np.int32),
    }

    def unpacked(values) -> bytes:
        return b''.join(varint(1 << 3) + varint(int(v)) for v in values)

    def in_parts(values) -> bytes:
        return (
            field(1, varint(int(values[0])))
            + unpacked(values[1:2])
            + field(1, b''.join(varint(int(v)) for v in values[2:]))
        )

    entries = b''
    for i, (name, values) in enumerate(columns.items()):
        numbers = (unpacked, in_parts)[i % 2](np.atleast_1d(values[0]))
        # The value of a map's entry before its key.
        entries += field(1, field(2, field(3, numbers)) + field(1, name.encode()))
    entries += field(1, field(1, b'extra') + field(2, field(1, field(1, b'text'))))
    assert_equal(fields.decode_numpy(spec, [field(1, entries)]), columns)


def test_a_bad_record_is_named():
    columns = example_columns(DYNAMIC, 10)
    payloads = encoded(DYNAMIC, columns)
    shorter = RecordSpec(63, 10, 'dynamic')
    for bad, reason in [
        (payloads[4][:-3], 'not a tf.train.Example'),
        (payloads[4][:-1] + b'\x80', 'not a tf.train.Example'),
        (
            encoded(shorter, example_columns(shorter, 1))[0],
            'feature input_ids has 63 values, not 64',
        ),
        (payloads[4].replace(b'segment_ids', b'Segment_ids'), 'feature segment_ids is missing'),
    ]:
        for place in (0, 4):
            batch = [bad if i == place else payload for i, payload in enumerate(payloads)]
            with pytest.raises(fields.BadRecord, match=reason) as error:
                fields.decode_numpy(DYNAMIC, batch)
            assert error.value.row == place


def test_check_and_count_of_packed_records():
    columns = example_columns(PACKED, 40)
    assert fields.check(PACKED, columns, 30_522) == []
    sums = fields.count(PACKED, columns)
    packs, weights = columns['pack_ids'], columns['next_sentence_weights']
    assert (sums['examples'], sums['tokens']) == (weights.sum(), (packs > 0).sum())
    assert sums['pack_histogram'] == [sum(row.max() == k for row in packs) for k in range(5)]
    rows = np.flatnonzero((weights.sum(1) == 3) & (packs[:, -2:] == 0).all(1))
    assert rows.size
    row = int(rows[0])
    second = int(columns['cls_positions'][row, 1])
    last = int((packs[row] > 0).sum())
    wrong = [
        ('pack_ids', second, 3, 'pack_ids are not'),
        ('pack_ids', second, 5, r'pack_ids\[\d+\] = 5 is outside'),
        ('position_ids', last, 1, 'position_ids do not'),
        ('cls_positions', 1, second + 1, 'cls_positions are not'),
        ('next_sentence_weights', 1, 0, 'next_sentence_weights are not'),
        ('masked_lm_positions', 0, last, 'in the padding'),
    ]
    for name, place, value, reason in wrong:
        damaged = {**columns, name: columns[name].copy()}
        damaged[name][row, place] = value
        found = fields.check(PACKED, damaged, 30_522)
        assert [r for r, _ in found] == [row], (name, place)
        assert re.search(reason, found[0][1]), found
