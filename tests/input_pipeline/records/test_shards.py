"""TFRecord files and their manifest, against TensorFlow's reader and writer, and against damage."""

from __future__ import annotations

import dataclasses
import os

import google_crc32c
import pytest

from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.shards import Manifest
from tests.helpers.refusals import refused
from tests.helpers.shards import make_directory, payloads_of, split_frames


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


@pytest.mark.parametrize(
    'text, message',
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
    with refused(message) as error:
        Manifest.load(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_pipe_in_place_of_a_shard_is_refused_at_once(tmp_path):
    make_directory(tmp_path)
    shard = tmp_path / Manifest.load(tmp_path).files[0].file
    shard.unlink()
    os.mkfifo(shard)
    with refused(f'{shard.name}: is no file but a pipe'):
        Manifest.load(tmp_path)


def test_counts_that_differ_from_the_manifest_are_found(tmp_path):
    manifest = make_directory(tmp_path)
    wrong = {'records': {'train': {'records': 820, 'masked': 1}}}
    dataclasses.replace(manifest, statistics=wrong).save(tmp_path)
    verified = shards.verify(tmp_path)
    assert 'train masked is 1' in verified.faults[0].what and len(verified.faults) == 1
    assert sum(verified.counts['train']['mask_histogram']) == 820
