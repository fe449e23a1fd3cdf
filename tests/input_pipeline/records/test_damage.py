"""Records directories damaged at random: verify_data finds each damage and names its place.

The stream never passes any of it on.
"""

from __future__ import annotations

import bisect
import io
import itertools
import random
import struct

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import shards, tfrecord
from bert_jax.input_pipeline.records.stream import RecordStream
from tests.helpers.refusals import refused
from tests.helpers.shards import make_directory

SIZES = (300, 520)


def damaged(kind: str, text: bytes, bounds: list[int], draw: random.Random) -> tuple[bytes, int]:
    """Another text, and the byte at which it begins to differ."""
    at = draw.randrange(len(text))
    if kind == 'flip':
        return text[:at] + bytes([text[at] ^ 1 << draw.randrange(4)]) + text[at + 1 :], at
    if kind == 'cut':
        return text[:at], at
    if kind == 'remove record':
        record = draw.randrange(len(bounds) - 1)
        return text[: bounds[record]] + text[bounds[record + 1] :], bounds[record]
    if kind == 'append':
        return text + draw.randbytes(7), len(text)
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
    stream = RecordStream(path, 'train', 64, 0)
    for _ in itertools.islice(stream.batches(), -(-stream.records // 64)):
        pass


@pytest.mark.parametrize(
    'kind',
    ['flip', 'cut', 'remove record', 'append', 'swap'],
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
            with refused(path.name):
                read_all(tmp_path)
        path.write_bytes(whole)


def test_damage_to_the_manifest(tmp_path):
    """A flipped bit in it either says nothing else, or is found before it misleads."""
    manifest = make_directory(tmp_path, SIZES)
    path = tmp_path / 'manifest.json'
    whole = path.read_bytes()
    for seed in range(60):
        draw = random.Random(seed)
        text, _ = damaged(draw.choice(['flip', 'cut']), whole, [], draw)
        path.write_bytes(text)
        try:
            assert shards.Manifest.load(tmp_path) == manifest, seed
        except UserError as error:
            assert str(path) in str(error) and '\n' not in str(error)


class Claimed(io.BytesIO):
    """A file that refuses to be asked for more than there could be memory for."""

    def read(self, size=-1):
        assert 0 <= size <= 1 << 26
        return super().read(size)


@pytest.mark.parametrize(
    'size, reason',
    [
        (2**50, 'claims 1,125,899,906,842,624 bytes, and no record has more than 2,147,483,648'),
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
