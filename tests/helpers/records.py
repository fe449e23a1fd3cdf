"""Columns of random records, their coding by TensorFlow, and whole directories of them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.records.fields import RecordSpec
from bert_jax.input_pipeline.records.stream import RecordStream

SPEC = RecordSpec(16, 4, 'static')


def example_columns(
    spec: RecordSpec, count: int, seed: int = 0, vocab_size: int = 30_522
) -> dict[str, np.ndarray]:
    """Random but lawful columns of `count` records."""
    rng = np.random.default_rng(seed)
    S, P = spec.seq_len, spec.max_predictions
    lengths = rng.integers(5, S + 1, count)
    mask = (np.arange(S) < lengths[:, None]).astype(np.int32)
    if spec.packed:
        return packed_columns(spec, rng, lengths, vocab_size)
    columns = {
        'input_ids': rng.integers(0, vocab_size, (count, S), np.int32) * mask,
        'input_mask': mask,
        'segment_ids': mask * (np.arange(S) >= lengths[:, None] // 2),
        'next_sentence_labels': rng.integers(0, 2, count, np.int32),
    }
    if spec.masking == 'dynamic':
        return {**columns, 'word_starts': rng.integers(0, 2, (count, S), np.int32) * mask}
    used = np.arange(P) < rng.integers(1, min(P, 4) + 1, count)[:, None]
    return {
        **columns,
        'masked_lm_positions': (
            np.sort(rng.integers(0, lengths[:, None], (count, P), np.int32), axis=1) * used
        ),
        'masked_lm_ids': rng.integers(0, vocab_size, (count, P), np.int32) * used,
        'masked_lm_weights': used.astype(np.float32),
    }


def packed_columns(
    spec: RecordSpec, rng: np.random.Generator, lengths: np.ndarray, vocab_size: int
) -> dict[str, np.ndarray]:
    """Records of these lengths, each of 1 to K packs, row by row."""
    columns = {
        f.name: np.zeros((len(lengths), f.length), np.int32 if f.kind == 'int' else np.float32)
        for f in spec.features
    }
    for row, length in enumerate(lengths.tolist()):
        starts = np.append(
            0,
            np.sort(rng.choice(np.arange(1, length), rng.integers(spec.max_packs), replace=False)),
        )
        for pack, (start, end) in enumerate(itertools.pairwise([*starts.tolist(), length])):
            columns['pack_ids'][row, start:end] = pack + 1
            columns['position_ids'][row, start:end] = range(end - start)
            columns['segment_ids'][row, (start + end) // 2 : end] = 1
            columns['cls_positions'][row, pack] = start
            columns['next_sentence_weights'][row, pack] = 1
            columns['next_sentence_labels'][row, pack] = rng.integers(2)
        columns['input_ids'][row, :length] = rng.integers(0, vocab_size, length)
        if spec.masking == 'dynamic':
            columns['word_starts'][row, :length] = rng.integers(0, 2, length)
            continue
        masked = rng.integers(1, min(spec.max_predictions, length) + 1)
        columns['masked_lm_positions'][row, :masked] = np.sort(
            rng.choice(length, masked, replace=False)
        )
        columns['masked_lm_ids'][row, :masked] = rng.integers(0, vocab_size, masked)
        columns['masked_lm_weights'][row, :masked] = 1
    return columns


def encoded(spec: RecordSpec, columns: dict[str, np.ndarray]) -> list[bytes]:
    payload, offsets = fields.encode(spec, columns)
    return [payload[a:b] for a, b in itertools.pairwise(offsets)]


def write_directory(path, sizes: dict[str, list[int]], masking='static', max_packs=1):
    """Shards of the given sizes; record i of a split begins with the ids (i, 1, ...)."""
    path.mkdir(parents=True, exist_ok=True)
    infos = []
    for split, counts in sizes.items():
        spec = (
            dataclasses.replace(SPEC, masking=masking, max_packs=max_packs)
            if split == 'train'
            else SPEC
        )
        columns = example_columns(spec, sum(counts), seed=5)
        columns['input_ids'][:, 0] = np.arange(sum(counts))
        for i, (first, end) in enumerate(itertools.pairwise(np.cumsum([0, *counts]))):
            part = {name: column[first:end] for name, column in columns.items()}
            infos.append(
                shards.write_shard(
                    path / f'{split}-{i:05d}-of-{len(counts):05d}.tfrecord',
                    encoded(spec, part),
                )
            )
    shards.Manifest(
        16, 4, masking, 'nsp', 30_522, 'ab' * 32, 0, {}, {}, tuple(infos), max_packs
    ).save(path)


def write_meaningless(folder, seed: int = 0, spec: RecordSpec = SPEC):
    """A directory of 300 and 90 records of 16 tokens whose text means nothing."""
    from tests.helpers.tiny_models import tokenizer  # which imports jax

    folder.mkdir()
    size, infos = tokenizer().vocab_size, []
    for i, count in enumerate((300, 90)):
        rows = encoded(spec, example_columns(spec, count, seed + i, size))
        infos.append(shards.write_shard(folder / f'train-{i:05d}-of-00002.tfrecord', rows))
    options = {'masked_lm_prob': 0.15, 'mask_mix': [0.8, 0.1, 0.1], 'whole_word': True}
    made = shards.Manifest(
        16,
        spec.max_predictions,
        spec.masking,
        'nsp',
        size,
        'ab' * 32,
        0,
        options,
        {},
        tuple(infos),
        spec.max_packs,
    )
    made.save(folder)
    tokenizer().save(folder / 'tokenizer')


def take(stream: RecordStream, steps: int, start: int = 0) -> list[dict]:
    """The training batches of so many steps."""
    return list(itertools.islice(stream.batches(start), steps))


def assert_same(found: list[dict], wanted: list[dict]) -> None:
    """The same batches, types of numbers included."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() == b.keys()
        for name, values in a.items():
            np.testing.assert_array_equal(values, b[name], err_msg=name)
            assert values.dtype == b[name].dtype, name


def frame_start(text: bytes, record: int) -> int:
    """Where the frame of a record begins."""
    at = 0
    for _ in range(record):
        at += 16 + int.from_bytes(text[at : at + 8], 'little')
    return at
