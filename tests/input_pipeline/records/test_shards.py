"""TFRecord files and their manifest, against TensorFlow's reader and writer, and against damage."""

from __future__ import annotations

import dataclasses

import google_crc32c
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.shards import Manifest
from tests.helpers.shards import SPEC, make_directory, payloads_of, split_frames


def test_the_file_is_byte_for_byte_what_tensorflow_writes(tmp_path):
    tf = pytest.importorskip('tensorflow')
    info = shards.write_shard(tmp_path / 'train-00000-of-00001.tfrecord', payloads_of(600, 1))
    with tf.io.TFRecordWriter(str(tmp_path / 'theirs')) as writer:
        for item in payloads_of(600, 1):
            writer.write(item)
    ours = (tmp_path / info.file).read_bytes()
    assert ours == (tmp_path / 'theirs').read_bytes()
    assert info == shards.ShardInfo(
        info.file, 'train', 600, len(ours), google_crc32c.value(ours), info.index
    )
    assert len(info.index) == 3 and info.block_records(2) == 88
    start, end = info.block(1)
    assert split_frames(ours[start:end]) == payloads_of(600, 1)[256:512]


def test_manifest_round_trip(tmp_path):
    manifest = make_directory(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    assert manifest.records('train') == 820 and manifest.records('eval') == 0
    assert [s.file for s in manifest.shards('train')] == [
        'train-00000-of-00002.tfrecord',
        'train-00001-of-00002.tfrecord',
    ]
    assert manifest.spec == SPEC
    dynamic = dataclasses.replace(manifest, masking='dynamic')
    assert dynamic.spec.masking == 'dynamic' and dynamic.spec_of('eval').masking == 'static'


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (None, 'no manifest.json'),
        ('{"seq_len": 1', 'broken'),
        ('{"schema_version": 99}', 'schema version 99'),
        ('{"schema_version": 1, "shards": []}', 'broken'),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / 'manifest.json').write_text(text)
    with pytest.raises(UserError, match=message) as error:
        Manifest.load(tmp_path)
    assert str(tmp_path) in str(error.value) and '\n' not in str(error.value)


def test_bytes_after_the_end_and_another_file_of_equal_size_are_found(tmp_path):
    make_directory(tmp_path, sizes=(300, 300))
    first, second = (tmp_path / f'train-0000{i}-of-00002.tfrecord' for i in (0, 1))
    with second.open('ab') as file:
        file.write(bytes(7))
    (fault,) = shards.verify(tmp_path).faults
    assert (fault.file, fault.record) == (second.name, 300)
    # Two records of equal length change places: every frame reads, only the checksum of the file
    # can tell.
    items = payloads_of(300, 0)
    i, j = next(
        (i, j)
        for i in range(256)
        for j in range(i)
        if len(items[i]) == len(items[j]) and items[i] != items[j]
    )
    items[i], items[j] = items[j], items[i]
    shards.write_shard(first, items)
    assert any(
        fault.file == first.name and 'another file' in fault.what
        for fault in shards.verify(tmp_path).faults
    )


def test_counts_that_differ_from_the_manifest_are_found(tmp_path):
    manifest = make_directory(tmp_path)
    wrong = {'records': {'train': {'records': 820, 'masked': 1}}}
    dataclasses.replace(manifest, statistics=wrong).save(tmp_path)
    verified = shards.verify(tmp_path)
    assert 'train masked is 1' in verified.faults[0].what and len(verified.faults) == 1
    assert sum(verified.counts['train']['mask_histogram']) == 820
