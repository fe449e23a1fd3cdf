"""The offline job from text to records, which are compared with the text itself."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.input_pipeline.preprocess.job_plan import plan_buckets
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.text import corpus
from tests.helpers.jobs import digests, read, run, write_text

PAD, UNK, CLS, SEP, MASK = range(5)
PLAN = 'bert_jax.input_pipeline.preprocess.job_plan'


def names_in(folder, vocabulary, split='train'):
    """The documents whose names are in the rows of a split."""
    ids = set(read(folder, split)[1].ravel().tolist())
    return ids & {vocabulary[1][name] for name in vocabulary[2]}


@pytest.mark.oldest
def test_rows_are_stretches_of_the_text_and_labels_tell_the_truth(tmp_path, vocabulary):
    texts = write_text(tmp_path / 'a.txt', vocabulary[2][:60])
    manifest = run(tmp_path, vocabulary, eval_fraction=0)
    columns, restored, _ = read(tmp_path / 'out')
    index = vocabulary[1]

    def ids(word):  # an oracle for this vocabulary: a plain word, perhaps with a suffix
        return [index[word]] if word in index else [index[word[:3]], index['##' + word[3:]]]

    flat = [','.join(map(str, [i for word in text.split() for i in ids(word)])) for text in texts]
    everything = [f',{text},' for text in flat]
    for row, segments, mask, label in zip(
        restored, columns['segment_ids'], columns['input_mask'], columns['next_sentence_labels']
    ):
        n = int(mask.sum())
        first = row.tolist().index(SEP)
        assert row[0] == CLS and row[n - 1] == SEP and not row[n:].any() and mask[:n].all()
        assert segments.tolist() == [0] * (first + 1) + [1] * (n - first - 1) + [0] * (64 - n)
        a, b = (
            f',{",".join(map(str, part.tolist()))},'
            for part in (row[1:first], row[first + 1 : n - 1])
        )
        in_a, in_b = ({i for i, text in enumerate(everything) if part in text} for part in (a, b))
        assert in_a and in_b
        if not label:
            assert in_a & in_b
        elif len(in_a) == len(in_b) == 1:
            assert in_a != in_b
    assert manifest.statistics['text']['train']['documents'] == 60
    assert manifest.statistics['text']['train']['tokens'] == sum(
        len(text.split(',')) for text in flat
    )
    assert 0.45 < columns['next_sentence_labels'].mean() < 0.75
    counts = columns['masked_lm_weights'].sum(1).astype(int)
    histogram = manifest.statistics['records']['train']['mask_histogram']
    assert histogram == np.bincount(counts, minlength=11).tolist()
    assert shards.verify(tmp_path / 'out').faults == []


@pytest.mark.oldest
def test_bytes_do_not_depend_on_workers_nor_on_where_files_are_cut(
    tmp_path, vocabulary, monkeypatch
):
    write_text(tmp_path / 'a.txt', vocabulary[2][:150], seed=1)
    write_text(tmp_path / 'b.txt', vocabulary[2][150:300], seed=2)
    # More than one bucket, so that the workers have something to share.
    monkeypatch.setattr(f'{PLAN}.MIN_BUCKET_TOKENS', 5000)
    options = {'num_shards': 3, 'eval_fraction': 0.1}
    one = run(tmp_path, vocabulary, **options)
    assert one == run(tmp_path, vocabulary, workers=2, output=f'{tmp_path}/two', **options)
    monkeypatch.setattr(corpus.units, '__defaults__', (corpus.TextOptions(), 3000, None))
    run(tmp_path, vocabulary, output=f'{tmp_path}/three', **options)
    run(tmp_path, vocabulary, output=f'{tmp_path}/four', seed=7, **options)
    ours = digests(tmp_path / 'out')
    assert ours == digests(tmp_path / 'two') == digests(tmp_path / 'three') and len(ours) == 4
    assert not set(digests(tmp_path / 'four').values()) & set(ours.values())
    names = {path.name for path in (tmp_path / 'out').iterdir()}
    assert names == {*ours, 'manifest.json', 'tokenizer'}


@pytest.mark.parametrize(
    'tokens, documents, buckets',
    [
        (10**9, 63, 1),  # a few huge documents stay together, so that each has others
        (13 * 10**6, 27_000, 13),
        (4 * 10**9, 6 * 10**6, 500),
        (10**9, 11_000, 125),  # books
        (10**9, 100, 4),  # 24 documents of 10 million tokens each are many enough
    ],
)
def test_buckets_stay_small_and_full_of_documents(tokens, documents, buckets):
    assert plan_buckets(tokens, documents) == buckets


def test_held_out_documents_and_their_copies_are_not_trained_on(tmp_path, vocabulary):
    names = vocabulary[2][:200]
    texts = write_text(tmp_path / 'a.txt', names)
    # Copies have the same letters.
    copies = [text.upper().replace('.', '!').replace(' ', '  ') for text in texts]
    (tmp_path / 'b.txt').write_text('\n\n'.join(copies))
    manifest = run(tmp_path, vocabulary, eval_fraction=0.2)
    train, held_out = (names_in(tmp_path / 'out', vocabulary, name) for name in ('train', 'eval'))
    assert (
        train | held_out == {vocabulary[1][name] for name in names}
        and len(train) + len(held_out) == 200
    )
    assert 20 <= len(held_out) <= 60
    assert manifest.statistics['text']['eval']['documents'] == 2 * len(held_out)
    # Another seed or length leaves the split as it is.
    run(tmp_path, vocabulary, eval_fraction=0.2, seed=1, seq_len=128, output=f'{tmp_path}/other')
    assert names_in(tmp_path / 'other', vocabulary, 'eval') == held_out


def test_eval_input_is_the_held_out_split(tmp_path, vocabulary):
    texts = write_text(tmp_path / 'a.txt', vocabulary[2][:50])
    (tmp_path / 'held.text').write_text('\n\n'.join(texts[:10]))
    manifest = run(tmp_path, vocabulary, eval_input=f'{tmp_path}/held.text')
    train, held_out = (names_in(tmp_path / 'out', vocabulary, name) for name in ('train', 'eval'))
    assert (
        held_out == {vocabulary[1][name] for name in vocabulary[2][:10]}
        and not train & held_out
        and len(train) == 40
    )
    assert manifest.statistics['text']['train']['copies_of_held_out_dropped'] == 10


def test_dynamic_records_keep_the_text_and_held_out_ones_are_masked(tmp_path, vocabulary):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100])
    manifest = run(tmp_path, vocabulary, masking='dynamic', eval_fraction=0.2, dupe_factor=None)
    assert manifest.options['dupe_factor'] == 1 and shards.verify(tmp_path / 'out').faults == []
    train = read(tmp_path / 'out')[0]
    held_out = read(tmp_path / 'out', 'eval')[0]
    assert 'masked_lm_ids' not in train and not (train['input_ids'] == MASK).any()
    assert 'word_starts' not in held_out and (held_out['input_ids'] == MASK).any()
    ids, starts = train['input_ids'], train['word_starts'].astype(bool)
    pieces = np.isin(ids, [vocabulary[1]['##s'], vocabulary[1]['##ing']])
    after_special = np.zeros_like(starts)
    after_special[:, 1:] = np.isin(ids[:, :-1], (CLS, SEP))
    np.testing.assert_array_equal(starts, (ids > MASK) & (~pieces | after_special))


def test_packed_records_hold_the_examples_of_unpacked_ones(tmp_path, vocabulary):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100], sentences=(1, 4))
    options = {
        'seq_len': 128,
        'eval_fraction': 0.2,
        'max_predictions': 20,
        'short_seq_prob': 0.3,
    }
    run(tmp_path, vocabulary, **options)
    plain, restored, _ = read(tmp_path / 'out')
    wanted = zip(restored, plain['segment_ids'], plain['input_mask'], plain['next_sentence_labels'])
    wanted = sorted(
        (row[: n.sum()].tolist(), segments[: n.sum()].tolist(), label)
        for row, segments, n, label in wanted
    )
    manifest = run(
        tmp_path, vocabulary, packing=True, max_packs=3, output=f'{tmp_path}/packed', **options
    )
    assert manifest.spec.packed and shards.verify(tmp_path / 'packed').faults == []
    columns, restored, _ = read(tmp_path / 'packed')
    found, most = [], 0
    for row, segments, packs, places, weights, labels in zip(
        restored,
        *(
            columns[name]
            for name in (
                'segment_ids',
                'pack_ids',
                'masked_lm_positions',
                'masked_lm_weights',
                'next_sentence_labels',
            )
        ),
    ):
        predictions = np.bincount(packs[places[weights > 0]], minlength=4)
        for pack in range(1, packs.max() + 1):
            here = packs == pack
            found.append((row[here].tolist(), segments[here].tolist(), labels[pack - 1]))
            assert predictions[pack] == min(20, max(1, round(here.sum() * 0.15)))
        most = max(most, packs.max())
    assert sorted(found) == wanted and most == 3
    sums = manifest.statistics['records']['train']
    assert (
        sums['examples'] == len(wanted) > 1.2 * sums['records']
        and sums['tokens'] == plain['input_mask'].sum()
    )
    held_out = read(tmp_path / 'packed', 'eval')[0]  # one example each, as without packing
    np.testing.assert_array_equal(
        held_out['input_ids'], read(tmp_path / 'out', 'eval')[0]['input_ids']
    )


@pytest.mark.parametrize('rule', ['bert', 'roberta'])
def test_packed_dynamic_records_hold_the_text_once_and_have_room_for_every_mask(
    tmp_path, vocabulary, rule
):
    """The rows of unpacked ones, side by side; no draw of their masks can be cut off."""
    write_text(tmp_path / 'a.txt', vocabulary[2][:100], sentences=(1, 4))
    options = {'seq_len': 128, 'short_seq_prob': 0.3, 'masking': 'dynamic', 'mask_rule': rule}
    run(tmp_path, vocabulary, eval_fraction=0.2, dupe_factor=None, **options)
    single = read(tmp_path / 'out')[0]
    lengths = single['input_mask'].sum(1)
    names = ('input_ids', 'segment_ids', 'word_starts')
    wanted = sorted(
        [single[name][i, :n].tolist() for name in names] for i, n in enumerate(lengths.tolist())
    )
    packing = {'packing': True, 'max_packs': 4, 'output': f'{tmp_path}/packed'}
    manifest = run(tmp_path, vocabulary, eval_fraction=0.2, dupe_factor=None, **options, **packing)
    assert manifest.options['dupe_factor'] == 1 and shards.verify(tmp_path / 'packed').faults == []
    packed = read(tmp_path / 'packed')[0]
    assert not any(name.startswith('masked_lm') for name in packed)
    found, most = [], 0
    for i, packs in enumerate(packed['pack_ids']):
        room = 0
        for pack in range(1, packs.max() + 1):
            here = packs == pack
            found.append([packed[name][i, here].tolist() for name in names])
            share = here.sum() * 0.15
            room += max(1, round(share)) if rule == 'bert' else int(np.ceil(share))
        assert room <= manifest.max_predictions == 20
        most = max(most, packs.max())
    assert sorted(found) == wanted and most > 2
    held_out = read(tmp_path / 'packed', 'eval')[0]
    assert 'masked_lm_ids' in held_out and 'pack_ids' not in held_out


def test_too_little_to_hold_out(tmp_path, vocabulary, capsys):
    write_text(tmp_path / 'a.txt', vocabulary[2][:5])
    manifest = run(tmp_path, vocabulary)  # by default: a warning, and all is trained on
    assert manifest.records('eval') == 0 and manifest.statistics['text']['train']['documents'] == 5
    assert capsys.readouterr().err.count('nothing is held out') == 1


def test_a_large_shard_sorted_in_pieces_has_the_same_bytes(tmp_path, vocabulary, monkeypatch):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100])
    run(tmp_path, vocabulary, num_shards=2)
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.job_plan.SHARD_BYTES', 10_000)
    run(tmp_path, vocabulary, num_shards=2, output=f'{tmp_path}/pieces')
    ours, theirs = (
        {name: digest for name, digest in digests(tmp_path / folder).items() if 'train' in name}
        for folder in ('out', 'pieces')
    )
    assert ours == theirs and len(ours) == 2
