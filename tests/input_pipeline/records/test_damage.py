"""Records directories damaged at random: verify_data finds each damage and names its place.

The stream never passes any of it on.
"""

from __future__ import annotations

import bisect
import io
import itertools
import random
import struct

import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import shards, tfrecord
from bert_jax.input_pipeline.records.stream import RecordStream
from tests.helpers.records import example_columns
from tests.helpers.shards import SPEC, VOCAB, make_directory, payloads_of

SIZES = (300, 520)


def damaged(kind: str, text: bytes, bounds: list[int], draw: random.Random) -> tuple[bytes, int]:
    """Another text, and the byte at which it begins to differ."""
    at = draw.randrange(len(text))
    length = draw.choice([1, 7, 60, 2000])
    if kind == 'flip':
        return text[:at] + bytes([text[at] ^ 1 << draw.randrange(8)]) + text[at + 1 :], at
    if kind == 'overwrite':
        return (
            text[:at]
            + bytes(byte ^ draw.randrange(1, 256) for byte in text[at : at + length])
            + text[at + length :],
            at,
        )
    if kind == 'zeros':  # a block of the disk that was never written
        at -= at % 4096
        return text[:at] + bytes(len(text[at : at + 4096])) + text[at + 4096 :], at
    if kind == 'cut':
        return text[:at], at
    if kind == 'insert':
        return text[:at] + draw.randbytes(length) + text[at:], at
    if kind == 'remove':
        return text[:at] + text[at + length :], at
    if kind == 'remove record':
        record = draw.randrange(len(bounds) - 1)
        return text[: bounds[record]] + text[bounds[record + 1] :], bounds[record]
    if kind == 'append':
        return text + draw.randbytes(length), len(text)
    first, second = sorted(draw.sample(range(len(bounds) - 1), 2))  # two records change places
    one, two = (text[bounds[i] : bounds[i + 1]] for i in (first, second))
    return (
        text[: bounds[first]]
        + two
        + text[bounds[first + 1] : bounds[second]]
        + one
        + text[bounds[second + 1] :],
        bounds[first],
    )


def read_all(path) -> None:
    """One pass over all records, as training reads them."""
    stream = RecordStream(path, 'train', 64, 0, 'numpy')
    for _ in itertools.islice(stream.batches(), -(-stream.records // 64)):
        pass


@pytest.mark.parametrize(
    'kind',
    ['flip', 'overwrite', 'zeros', 'cut', 'insert', 'remove', 'remove record', 'append', 'swap'],
)
def test_damage_to_a_shard(tmp_path, kind):
    make_directory(tmp_path, SIZES)
    assert shards.verify(tmp_path).faults == []
    read_all(tmp_path)
    for seed in range(8):
        draw = random.Random(f'{kind} {seed}')
        number = draw.randrange(2)
        path = tmp_path / f'train-0000{number}-of-00002.tfrecord'
        whole = path.read_bytes()
        bounds = tfrecord.frame_bounds(whole)
        text, at = damaged(kind, whole, bounds, draw)
        assert text != whole
        path.write_bytes(text)
        faults = shards.verify(tmp_path).faults
        assert faults and {fault.file for fault in faults} == {path.name}, (kind, seed)
        record = bisect.bisect_right(bounds, at) - 1
        # Where whole records are gone or exchanged, all that are left are sound.
        if kind not in ('remove record', 'swap'):
            assert (faults[0].record, faults[0].byte) == (record, bounds[record]), (kind, seed)
        # An exchange of equal records of equal length loses nothing.
        if kind != 'swap' or len(text) != len(whole):
            with pytest.raises(UserError, match=path.name):
                read_all(tmp_path)
        path.write_bytes(whole)


def test_a_damaged_payload_under_a_right_checksum(tmp_path):
    """As a faulty writer would leave it.

    Either the record says so, or the checksum of the file does.
    """
    make_directory(tmp_path, (300,))
    path, payloads = tmp_path / 'train-00000-of-00001.tfrecord', payloads_of(300)
    told = 0
    for seed in range(60):
        draw = random.Random(seed)
        items, row = list(payloads), draw.randrange(300)
        at = draw.randrange(len(items[row]))
        items[row] = (
            items[row][:at]
            + bytes([items[row][at] ^ 1 << draw.randrange(8)])
            + items[row][at + 1 :]
        )
        shards.write_shard(path, b''.join(items), np.cumsum([0, *map(len, items)]))
        faults = shards.verify(tmp_path).faults
        assert faults and {fault.file for fault in faults} == {path.name}, seed
        if faults[0].record is not None:
            assert [fault.record for fault in faults] == [row], seed
            told += 1
    # Most bits belong to names, lengths and ids; a flip of an id's low bits leaves another that is
    # lawful.
    assert told > 20


@pytest.mark.parametrize(
    'name',
    ['input_ids', 'segment_ids', 'masked_lm_positions', 'masked_lm_ids', 'next_sentence_labels'],
)
def test_values_out_of_range_anywhere(tmp_path, name):
    for seed in range(4):
        draw = random.Random(f'{name} {seed}')
        columns = example_columns(SPEC, 400, seed)
        column, row = columns[name].reshape(400, -1), draw.randrange(400)
        limit = {'input_ids': VOCAB, 'masked_lm_ids': VOCAB, 'masked_lm_positions': 16}.get(name, 2)
        column[row, draw.randrange(column.shape[1])] = draw.choice([limit, limit + 1, 2**31 - 1])
        make_directory(tmp_path, (400,), columns={**columns, name: column})
        (fault,) = shards.verify(tmp_path).faults
        bounds = tfrecord.frame_bounds((tmp_path / fault.file).read_bytes())
        assert (
            (fault.record, fault.byte) == (row, bounds[row])
            and name in fault.what
            and 'outside' in fault.what
        )


def test_damage_to_the_manifest(tmp_path):
    """A flipped bit in it either says nothing else, or is found before it misleads."""
    manifest = make_directory(tmp_path, SIZES)
    path = tmp_path / 'manifest.json'
    whole = path.read_bytes()
    for seed in range(150):
        draw = random.Random(seed)
        text, _ = damaged(
            draw.choice(['flip', 'flip', 'flip', 'overwrite', 'cut']), whole, [], draw
        )
        path.write_bytes(text)
        try:
            assert shards.Manifest.load(tmp_path) == manifest, seed
        except UserError as error:
            assert str(path) in str(error) and '\n' not in str(error)


def test_a_missing_file(tmp_path):
    for name in ('train-00001-of-00002.tfrecord', 'manifest.json'):
        make_directory(tmp_path, SIZES)
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match=name):
            read_all(tmp_path)
        try:
            assert [str(fault) for fault in shards.verify(tmp_path).faults] == [f'{name}: missing']
        except UserError as error:
            assert name in str(error)


class Claimed(io.BytesIO):
    """A file that refuses to be asked for more than there could be memory for."""

    def read(self, size=-1):
        assert 0 <= size <= 1 << 26
        return super().read(size)


@pytest.mark.parametrize(
    ('size', 'reason'),
    [
        (2**50, 'claims 1,125,899,906,842,624 bytes, and no record has more than 2,147,483,648'),
        (2**63, 'claims 9,223,372,036,854,775,808 bytes, and no record has more'),
        (2**30, 'cut before its end'),
    ],
)
def test_a_frame_that_claims_more_than_there_is(size, reason):
    """Its length is under a right checksum."""
    length = struct.pack('<Q', size)
    head = length + struct.pack('<I', tfrecord.masked_crc(length))
    text = tfrecord.frame_records([b'first']) + head + b'x' * 100
    with pytest.raises(tfrecord.CorruptRecord, match=f'record 1 at byte 21: {reason}'):
        list(tfrecord.read_records(Claimed(text)))
    with pytest.raises(tfrecord.CorruptRecord, match=f'record 1 at byte 21: {reason}'):
        tfrecord.frame_bounds(text)


def test_a_payload_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(tfrecord, '_PIECE', 7)
    payloads = [b'', b'short', bytes(range(100))]
    text = io.BytesIO(tfrecord.frame_records(payloads))
    assert [payload for _, payload in tfrecord.read_records(text)] == payloads
