"""The stream: one order for any batch size, start, share of rows and decoder.

Also what it says of damage.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import shutil
import time

import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.records.blocks import BlockCache
from bert_jax.input_pipeline.records.sampler import Growth
from bert_jax.input_pipeline.records.stream import RecordStream
from tests.helpers.records import (
    SPEC,
    assert_same,
    encoded,
    example_columns,
    frame_start,
    take,
    write_directory,
)
from tests.helpers.refusals import refused

SHARD = 'train-00001-of-00004.tfrecord'


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """Records that no test changes."""
    folder = tmp_path_factory.mktemp('records')
    write_directory(folder, {'train': [300, 520, 256, 3], 'eval': [270, 40]})
    return folder


@pytest.fixture
def directory(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / 'records')


def names(batches: list[dict]) -> np.ndarray:
    """The record that stands in each row."""
    return np.concatenate([batch['input_ids'][:, 0] for batch in batches])


@pytest.mark.parametrize('batch_size', [13, 2500])
def test_every_record_comes_once_an_epoch(whole, batch_size):
    directory = whole
    stream = RecordStream(directory, 'train', batch_size, seed=3)
    assert stream.records == 1079
    found = names(take(stream, -(-3 * 1079 // batch_size)))
    epochs = [found[i * 1079 : (i + 1) * 1079] for i in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(1079))
    assert (epochs[0] != epochs[1]).mean() > 0.99 and (epochs[1] != epochs[2]).mean() > 0.99
    one = RecordStream(directory, 'train', 83, seed=3)
    np.testing.assert_array_equal(epochs[0], names(take(one, 13)))  # whatever the batch size


def test_resume_gives_the_rest_of_the_uninterrupted_stream(directory):
    start, stream = 7, RecordStream(directory, 'train', 100, 1)
    assert_same(take(stream, 25 - start, start), take(stream, 25)[start:])


def test_shares_of_rows_make_up_the_whole(directory):
    whole = take(RecordStream(directory, 'train', 96, 1), 15)
    for rows in (((0, 48),), ((48, 96),), ((90, 96), (4, 10))):
        share = take(RecordStream(directory, 'train', 96, 1, rows=rows), 15)
        of_rows = np.concatenate([np.arange(96)[first:end] for first, end in rows])
        assert_same(share, [{name: x[of_rows] for name, x in batch.items()} for batch in whole])


def test_a_batch_that_grows_reads_the_same_order_row_after_row(directory):
    """24 rows for 3 steps, 48 and 72 for as many, then 96, in eight micro-batches."""
    parts = 8
    sizes = [24] * 3 + [48] * 3 + [72] * 3 + [96] * 3
    growth = Growth(24, 3, 96, parts)
    assert [growth.size(step) for step in range(12)] == sizes
    assert [growth.before(step) for step in range(13)] == np.cumsum([0, *sizes]).tolist()
    stream = RecordStream(directory, 'train', 96, 1, 'numpy', growth=growth)
    order = names(take(RecordStream(directory, 'train', 12, 1), 70))
    whole, read = take(stream, 12), 0
    for step, batch in enumerate(whole):
        weights, found = batch['example_weights'], batch['input_ids'][:, 0]
        # The places that count are those of the first micro-batches, place p being in p % parts.
        used = sizes[step] * parts // 96
        np.testing.assert_array_equal(weights, np.arange(96) % parts < used)
        rows = order[read : read + sizes[step]]
        np.testing.assert_array_equal(found[weights > 0], rows)
        assert set(found) == set(rows)  # and nothing else is read
        read += sizes[step]
    assert stream.read_by(3, 4).startswith('rows 72 to 119 of the order')

    # A resumed run, and a process that has some of the rows.
    assert_same(take(stream, 7, 5), whole[5:])
    share = RecordStream(directory, 'train', 96, 1, 'numpy', ((8, 20), (60, 96)), growth=growth)
    wanted = np.r_[8:20, 60:96]
    assert_same(
        take(share, 12), [{name: x[wanted] for name, x in batch.items()} for batch in whole]
    )


@pytest.mark.parametrize('most, ahead', [(1, 0), (6, 50), (20, 1)])
def test_rows_of_kept_blocks_are_those_asked_for_however_few_are_kept(most, ahead):
    """Blocks of 1 to 256 rows, made slowly and by several threads, in the place of others."""
    rng, made = np.random.default_rng(0), collections.Counter()
    sizes = rng.integers(1, shards.BLOCK + 1, 20)

    def make(block: int, rows: np.ndarray) -> None:
        time.sleep(rng.random() / 1000)
        rows[:] = block * 1000 + np.arange(len(rows))
        made[block] += 1

    groups = []
    for size in rng.integers(1, 40, 100):
        blocks = rng.choice(20, size=size, p=np.arange(20) / 190)
        groups.append((blocks, rng.integers(sizes[blocks])))
    kept = BlockCache(make, sizes, np.empty((most, shards.BLOCK), np.int64), 8)
    for (blocks, places), found in zip(groups, kept.rows(iter(groups), ahead), strict=True):
        np.testing.assert_array_equal(found, blocks * 1000 + places)
    assert set(made) <= set(range(1, 20))
    assert most < 20 or set(made.values()) == {1}


@pytest.mark.parametrize('rows', [None, ((64, 128), (0, 8))])
def test_evaluation_pads_its_tail_and_drops_nothing(directory, rows):
    stream = RecordStream(directory, 'eval', 128, 1, 'numpy', rows)
    batches = list(stream.evaluation())
    chosen = np.concatenate([np.arange(a, b) for a, b in rows or ((0, 128),)])
    assert [len(batch['input_ids']) for batch in batches] == [len(chosen)] * 3
    wanted = np.concatenate([step * 128 + chosen for step in range(3)])
    weights = np.concatenate([batch['example_weights'] for batch in batches])
    np.testing.assert_array_equal(weights, wanted < 310)
    np.testing.assert_array_equal(names(batches)[weights == 1], wanted[wanted < 310])
    masked = np.concatenate([batch['masked_lm_weights'] for batch in batches]).sum(axis=1)
    assert (masked[weights == 1] > 0).all() and (masked[weights == 0] == 0).all()
    assert (
        len(list(stream.evaluation(max_batches=2))) == 2
        and len(list(stream.evaluation(max_batches=9))) == 3
    )


def test_damage_is_named_by_file_record_and_byte(directory):
    file = directory / 'train-00001-of-00004.tfrecord'
    text = file.read_bytes()
    at = frame_start(text, 290)
    file.write_bytes(text[: at + 50] + bytes([text[at + 50] ^ 4]) + text[at + 51 :])
    with pytest.raises(UserError) as error:
        take(RecordStream(directory, 'train', 64, 1), 20)
    message = str(error.value)
    assert f'{file}: record 290 at byte {at}: payload damaged' in message and '\n' not in message


@pytest.mark.parametrize(
    'name, value, words',
    [
        ('masked_lm_weights', np.nan, 'masked_lm_weights are not all 0 or 1'),
        ('cls_positions', 16, r'cls_positions\[2\] = 16 is outside \[0, 16\), the sequence'),
    ],
)
def test_a_number_that_no_model_can_look_up_is_refused(tmp_path, name, value, words):
    """The checksums are right: someone wrote such records, or the tokenizer is another one."""
    spec = dataclasses.replace(SPEC, max_packs=3)
    columns = example_columns(spec, 300, seed=5)
    columns[name][270, 2] = value
    info = shards.write_shard(tmp_path / 'train-00000-of-00001.tfrecord', encoded(spec, columns))
    shards.Manifest(16, 4, 'static', 'nsp', 30_522, '', 0, {}, {}, (info,), 3).save(tmp_path)
    at = frame_start((tmp_path / info.file).read_bytes(), 270)
    with refused(
        f'{info.file}: record 270 at byte {at}: {words}.*preprocess verify .* every fault'
    ):
        take(RecordStream(tmp_path, 'train', 64, 1), 5)


@pytest.mark.parametrize(
    'split, damage, said',
    [
        ('test', None, 'no test records'),
        ('train', lambda files: files['manifest.json'].unlink(), 'no manifest'),
        ('train', lambda files: os.truncate(files[SHARD], 99), f'{SHARD}: .* bytes long'),
        ('train', lambda files: files[SHARD].unlink(), f'{SHARD}: missing'),
    ],
)
def test_what_is_wrong_at_the_start_is_said_at_the_start(directory, split, damage, said):
    if damage is not None:
        damage({path.name: path for path in directory.iterdir()})
    with refused(said):
        RecordStream(directory, split, 8, 0)


def test_rows_beyond_the_batch_are_a_mistake_of_the_program(directory):
    with pytest.raises(ValueError, match='ranges'):
        RecordStream(directory, 'train', 8, 0, 'numpy', rows=((4, 9),))
