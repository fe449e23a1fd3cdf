"""Records directories of random records."""

from __future__ import annotations

import io

from bert_jax.input_pipeline.records import fields, shards, tfrecord
from bert_jax.input_pipeline.records.shards import Manifest
from tests.helpers.records import SPEC, encoded, example_columns

VOCAB = 30_522


def make_directory(path, sizes=(300, 520), seed=0, columns=None) -> Manifest:
    """A records directory with one train shard of each size."""
    path.mkdir(parents=True, exist_ok=True)
    infos, sums = [], []
    for i, size in enumerate(sizes):
        batch = columns or example_columns(SPEC, size, seed + i)
        infos.append(
            shards.write_shard(
                path / f'train-{i:05d}-of-{len(sizes):05d}.tfrecord', encoded(SPEC, batch)
            )
        )
        if columns is None:
            sums.append(fields.count(SPEC, batch))
    promised = (
        {'train': {name: sum(s[name] for s in sums) for name in ('records', 'masked')}}
        if sums
        else {}
    )
    manifest = Manifest(
        seq_len=16,
        max_predictions=4,
        masking='static',
        objective='nsp',
        vocab_size=VOCAB,
        tokenizer_fingerprint='ab' * 32,
        seed=seed,
        options={'dupe_factor': 1},
        statistics={'records': promised},
        files=tuple(infos),
    )
    manifest.save(path)
    return manifest


def payloads_of(size: int, seed: int = 0) -> list[bytes]:
    return encoded(SPEC, example_columns(SPEC, size, seed))


def split_frames(content: bytes) -> list[bytes]:
    """The payloads of a file, or of a stretch of it that begins with a frame."""
    return [payload for _, payload in tfrecord.read_records(io.BytesIO(content))]
