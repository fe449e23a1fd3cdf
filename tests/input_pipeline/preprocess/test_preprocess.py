"""The offline job from text to records.

Read back by the numpy decoder and compared with the text itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from etils import epath
from pyarrow import parquet

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.preprocess import job_directory, stages
from bert_jax.input_pipeline.preprocess.job import preprocess
from bert_jax.input_pipeline.preprocess.kept_results import KeptResults
from bert_jax.input_pipeline.preprocess.local_engine import LocalEngine
from bert_jax.input_pipeline.preprocess.options import PreprocessOptions
from bert_jax.input_pipeline.preprocess.plan import plan_buckets
from bert_jax.input_pipeline.progress import Progress
from bert_jax.input_pipeline.records import fields, shards
from bert_jax.input_pipeline.text.corpus import TextOptions
from tests.helpers.jobs import digests, run, write_text
from tests.helpers.shards import split_frames

PAD, UNK, CLS, SEP, MASK = range(5)


def read(folder, split='train'):
    """The columns of a split, and its rows with the original tokens put back."""
    manifest = shards.Manifest.load(folder)
    payloads = []
    for shard in manifest.shards(split):
        payloads += split_frames((Path(folder) / shard.file).read_bytes())
    columns = fields.decode_numpy(manifest.spec_of(split), payloads)
    restored = columns['input_ids'].copy()
    if 'masked_lm_ids' in columns:
        row, rank = np.nonzero(columns['masked_lm_weights'])
        restored[row, columns['masked_lm_positions'][row, rank]] = columns['masked_lm_ids'][
            row, rank
        ]
    return columns, restored


def names_in(rows, vocabulary):
    """The documents whose names stand in some rows."""
    return set(rows.ravel().tolist()) & {vocabulary[1][name] for name in vocabulary[2]}


def test_rows_are_stretches_of_the_text_and_labels_tell_the_truth(tmp_path, vocabulary):
    texts = write_text(tmp_path / 'a.txt', vocabulary[2][:60])
    manifest = run(tmp_path, vocabulary, eval_fraction=0)
    columns, restored = read(tmp_path / 'out')
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


def test_masks_of_records_have_the_statistics_of_the_reference(tmp_path, vocabulary):
    write_text(tmp_path / 'a.txt', vocabulary[2][:200])
    manifest = run(tmp_path, vocabulary, eval_fraction=0, max_predictions=8, dupe_factor=10)
    columns, restored = read(tmp_path / 'out')
    lengths = columns['input_mask'].sum(1)
    counts = columns['masked_lm_weights'].sum(1).astype(int)
    assert counts.tolist() == [min(8, max(1, round(n * 0.15))) for n in lengths.tolist()]
    chosen = columns['masked_lm_weights'] > 0
    labels = columns['masked_lm_ids'][chosen]
    shown = np.take_along_axis(columns['input_ids'], columns['masked_lm_positions'], 1)[chosen]
    assert not np.isin(labels, (PAD, CLS, SEP)).any()
    assert abs((shown == MASK).mean() - 0.8) < 0.01 and abs((shown == labels).mean() - 0.1) < 0.01
    untouched = np.ones(restored.shape, bool)
    row, rank = np.nonzero(chosen)
    untouched[row, columns['masked_lm_positions'][row, rank]] = False
    np.testing.assert_array_equal(columns['input_ids'][untouched], restored[untouched])
    assert (
        manifest.statistics['records']['train']['mask_histogram']
        == np.bincount(counts, minlength=9).tolist()
    )
    assert shards.verify(tmp_path / 'out').faults == []


def test_bytes_do_not_depend_on_workers_nor_on_where_files_are_cut(
    tmp_path, vocabulary, monkeypatch
):
    write_text(tmp_path / 'a.txt', vocabulary[2][:150], seed=1)
    write_text(tmp_path / 'b.txt', vocabulary[2][150:300], seed=2)
    # More than one bucket, so that the workers have something to share.
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.plan.MIN_BUCKET_TOKENS', 5000)
    kwargs = {'num_shards': 3, 'eval_fraction': 0.1}
    one = run(tmp_path, vocabulary, **kwargs)
    two = run(tmp_path, vocabulary, workers=2, output=f'{tmp_path}/two', **kwargs)
    assert (
        len(digests(tmp_path / 'out')) == 4
        and digests(tmp_path / 'out') == digests(tmp_path / 'two')
        and one == two
    )
    monkeypatch.setattr(
        'bert_jax.input_pipeline.text.corpus.units.__defaults__', (*_units_defaults()[:-1], 3000)
    )
    assert run(tmp_path, vocabulary, output=f'{tmp_path}/three', **kwargs).records(
        'train'
    ) == one.records('train')
    assert digests(tmp_path / 'three') == digests(tmp_path / 'out')
    run(tmp_path, vocabulary, output=f'{tmp_path}/four', seed=7, **kwargs)
    assert not set(digests(tmp_path / 'four').values()) & set(digests(tmp_path / 'out').values())
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {
        *digests(tmp_path / 'out'),
        'manifest.json',
        'tokenizer',
    }


def _units_defaults():
    from bert_jax.input_pipeline.text import corpus

    return corpus.units.__defaults__


def test_buckets_stay_small_and_full_of_documents():
    assert plan_buckets(100, 3) == 1
    # A few huge documents stay together, so that each has others.
    assert plan_buckets(10**9, 63) == 1
    assert plan_buckets(10**6, 40_000) == 1
    assert plan_buckets(13 * 10**6, 27_000) == 13
    assert plan_buckets(4 * 10**9, 6 * 10**6) == 500
    assert plan_buckets(10**9, 11_000) == 125  # books
    for tokens, documents in ((10**8, 1000), (10**7, 100)):
        assert documents / plan_buckets(tokens, documents) >= 64
    assert plan_buckets(10**9, 100) == 4  # 24 documents of 10 million tokens each are many enough


def test_a_long_document_is_gone_through_without_a_break(tmp_path, vocabulary):
    """Rows end where they are full, and with the document: nowhere else."""
    write_text(tmp_path / 'a.txt', vocabulary[2][:1], sentences=(3000, 3001))
    text = (tmp_path / 'a.txt').read_text()
    # A line has 5 tokens at most.
    (tmp_path / 'a.txt').write_text('\n'.join(line[:12] + ' .' for line in text.splitlines()))
    options = {
        'objective': 'full_sentences',
        'dupe_factor': 1,
        'eval_fraction': 0,
        'short_seq_prob': 0.0,
    }
    run(tmp_path, vocabulary, **options)
    columns, _ = read(tmp_path / 'out')
    lengths = columns['input_mask'].sum(1)
    assert lengths.size > 100 and (lengths <= 64 - 5).sum() <= 1


def test_held_out_documents_and_their_copies_are_not_trained_on(tmp_path, vocabulary):
    names = vocabulary[2][:200]
    texts = write_text(tmp_path / 'a.txt', names)
    # Copies have the same letters.
    copies = [text.upper().replace('.', '!').replace(' ', '  ') for text in texts]
    (tmp_path / 'b.txt').write_text('\n\n'.join(copies))
    manifest = run(tmp_path, vocabulary, eval_fraction=0.2)
    train, held_out = (
        names_in(read(tmp_path / 'out', split)[1], vocabulary) for split in ('train', 'eval')
    )
    assert (
        train | held_out == {vocabulary[1][name] for name in names}
        and len(train) + len(held_out) == 200
    )
    assert 20 <= len(held_out) <= 60
    assert manifest.statistics['text']['eval']['documents'] == 2 * len(held_out)
    # Another seed or length leaves the split as it is.
    run(tmp_path, vocabulary, eval_fraction=0.2, seed=1, seq_len=128, output=f'{tmp_path}/other')
    assert names_in(read(tmp_path / 'other', 'eval')[1], vocabulary) == held_out


def test_languages_are_weighed_and_stay_apart(tmp_path, vocabulary, capsys, monkeypatch):
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.plan.MIN_BUCKET_TOKENS', 5000)
    large, small = vocabulary[2][:300], vocabulary[2][300:360]
    for language, names in (('en', large), ('ko', small)):
        (tmp_path / language).mkdir()
        write_text(tmp_path / language / 'a.txt', names)  # the same name in both folders
    options = {
        'input': (f'en={tmp_path}/en/*.txt', f'ko={tmp_path}/ko/*.txt'),
        'language_exponent': 0.5,
        'dupe_factor': 4,
        'eval_fraction': 0.1,
    }
    manifest = run(tmp_path, vocabulary, **options)
    held_out = names_in(read(tmp_path / 'out', 'eval')[1], vocabulary)
    _, restored = read(tmp_path / 'out')
    ids = {
        language: {vocabulary[1][name] for name in names}
        for language, names in (('en', large), ('ko', small))
    }
    seen = {language: int(np.isin(restored, list(found)).sum()) for language, found in ids.items()}
    text = manifest.statistics['text']['train']['languages']
    assert text['en']['documents'] + text['ko']['documents'] == 360 - len(held_out)
    assert seen['en'] / seen['ko'] == pytest.approx(
        (text['en']['tokens'] / text['ko']['tokens']) ** 0.5, rel=0.1
    )
    for row in restored:  # a random B of another language would give itself away
        found = names_in(row, vocabulary)
        assert found <= ids['en'] or found <= ids['ko']
    assert f'ko: {text["ko"]["documents"]} documents' in capsys.readouterr().out
    for workers in (1, 2):
        run(
            tmp_path,
            vocabulary,
            output=f'{tmp_path}/{workers}',
            workers=workers,
            packing=True,
            ngram=3,
            **options,
        )
    assert (
        digests(tmp_path / '1') == digests(tmp_path / '2')
        and shards.verify(tmp_path / '1').faults == []
    )
    run(
        tmp_path,
        vocabulary,
        output=f'{tmp_path}/few',
        **options | {'masking': 'dynamic', 'dupe_factor': None},
    )
    assert 'warning: en: 17% of its documents are left out' in capsys.readouterr().err
    with pytest.raises(
        UserError, match=r'--language_exponent=0\.5: is for text in several languages'
    ):
        run(tmp_path, vocabulary, language_exponent=0.5)
    with pytest.raises(UserError, match='another job.*language_exponent is 0.5 there and 0.7 here'):
        run(tmp_path, vocabulary, **options | {'language_exponent': None})


def test_eval_input_is_the_held_out_split(tmp_path, vocabulary):
    texts = write_text(tmp_path / 'a.txt', vocabulary[2][:50])
    (tmp_path / 'held.text').write_text('\n\n'.join(texts[:10]))
    manifest = run(tmp_path, vocabulary, eval_input=f'{tmp_path}/held.text')
    train, held_out = (
        names_in(read(tmp_path / 'out', split)[1], vocabulary) for split in ('train', 'eval')
    )
    assert (
        held_out == {vocabulary[1][name] for name in vocabulary[2][:10]}
        and not train & held_out
        and len(train) == 40
    )
    assert manifest.statistics['text']['train']['copies_of_held_out_dropped'] == 10
    with pytest.raises(UserError, match='--eval_fraction and --eval_input'):
        run(tmp_path, vocabulary, eval_input=f'{tmp_path}/held.text', eval_fraction=0.1)
    (tmp_path / 'one.text').write_text(texts[0])
    with pytest.raises(UserError, match=r'--eval_input=.*1 document held out.*blank lines'):
        run(tmp_path, vocabulary, eval_input=f'{tmp_path}/one.text', output=f'{tmp_path}/new')


def test_dynamic_records_keep_the_text_and_held_out_ones_are_masked(tmp_path, vocabulary):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100])
    manifest = run(tmp_path, vocabulary, masking='dynamic', eval_fraction=0.2, dupe_factor=None)
    assert manifest.options['dupe_factor'] == 1 and shards.verify(tmp_path / 'out').faults == []
    train, _ = read(tmp_path / 'out')
    held_out, _ = read(tmp_path / 'out', 'eval')
    assert 'masked_lm_ids' not in train and not (train['input_ids'] == MASK).any()
    assert 'word_starts' not in held_out and (held_out['input_ids'] == MASK).any()
    ids, starts = train['input_ids'], train['word_starts'].astype(bool)
    pieces = np.isin(ids, [vocabulary[1]['##s'], vocabulary[1]['##ing']])
    after_special = np.zeros_like(starts)
    after_special[:, 1:] = np.isin(ids[:, :-1], (CLS, SEP))
    np.testing.assert_array_equal(starts, (ids > MASK) & (~pieces | after_special))


@pytest.mark.parametrize('by_words', [{'whole_word': True}, {'ngram': 3}])
def test_whole_words_stay_together_in_records(tmp_path, vocabulary, by_words):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100])
    run(tmp_path, vocabulary, eval_fraction=0, **by_words)
    columns, restored = read(tmp_path / 'out')
    suffix = np.isin(restored, [vocabulary[1]['##s'], vocabulary[1]['##ing']])
    chosen = np.zeros_like(suffix)
    row, rank = np.nonzero(columns['masked_lm_weights'])
    chosen[row, columns['masked_lm_positions'][row, rank]] = True
    # Not the tail of a truncated word after [CLS] or [SEP].
    inner = suffix[:, 1:] & (restored[:, :-1] > MASK)
    np.testing.assert_array_equal(chosen[:, 1:][inner], chosen[:, :-1][inner])
    assert suffix.any() and inner.any()
    # The start of a word, chosen after a chosen token.
    next_to_each_other = chosen[:, 1:] & chosen[:, :-1] & ~suffix[:, 1:]
    neighbours = next_to_each_other.sum() / chosen.sum()
    assert neighbours > 0.2 if 'ngram' in by_words else neighbours < 0.15, neighbours


@pytest.mark.parametrize('objective', ['nsp', 'full_sentences'])
def test_packed_records_hold_the_examples_of_unpacked_ones(tmp_path, vocabulary, objective):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100], sentences=(1, 4))
    options = {
        'objective': objective,
        'seq_len': 128,
        'eval_fraction': 0.2,
        'max_predictions': 20,
        'short_seq_prob': 0.3,
    }
    run(tmp_path, vocabulary, **options)
    plain, restored = read(tmp_path / 'out')
    wanted = zip(restored, plain['segment_ids'], plain['input_mask'], plain['next_sentence_labels'])
    wanted = sorted(
        (row[: n.sum()].tolist(), segments[: n.sum()].tolist(), label)
        for row, segments, n, label in wanted
    )
    manifest = run(
        tmp_path, vocabulary, packing=True, max_packs=3, output=f'{tmp_path}/packed', **options
    )
    assert manifest.spec.packed and shards.verify(tmp_path / 'packed').faults == []
    columns, restored = read(tmp_path / 'packed')
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
    held_out, _ = read(tmp_path / 'packed', 'eval')  # one example each, as without packing
    np.testing.assert_array_equal(
        held_out['input_ids'], read(tmp_path / 'out', 'eval')[0]['input_ids']
    )


@pytest.mark.parametrize('objective', ['sop', 'full_sentences'])
def test_other_objectives_need_one_document_only(tmp_path, vocabulary, objective):
    write_text(tmp_path / 'a.txt', vocabulary[2][:1], sentences=(30, 31))
    manifest = run(tmp_path, vocabulary, objective=objective)
    columns, restored = read(tmp_path / 'out')
    assert manifest.objective == objective and shards.verify(tmp_path / 'out').faults == []
    if objective == 'full_sentences':
        assert not columns['next_sentence_labels'].any() and not columns['segment_ids'].any()
        assert ((restored == SEP).sum(1) == 1).all()
    else:
        assert 0 < columns['next_sentence_labels'].mean() < 1


def test_one_document_cannot_have_next_sentence_prediction(tmp_path, vocabulary):
    write_text(tmp_path / 'a.txt', vocabulary[2][:1])
    with pytest.raises(
        UserError, match='one document only.*--objective=full_sentences.*blank lines'
    ):
        run(tmp_path, vocabulary)
    assert {path.name for path in tmp_path.iterdir()} == {'a.txt'}


def test_the_noise_of_released_alberts_is_asked_for_by_name(tmp_path, vocabulary, capsys):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100], sentences=(1, 4))
    plain = run(tmp_path, vocabulary, objective='sop', seq_len=16)
    noisy = run(
        tmp_path, vocabulary, objective='sop', seq_len=16, sop_noise=True, output=f'{tmp_path}/b'
    )
    assert 'sop_noise' not in plain.options and noisy.options['sop_noise'] is True
    clean, found = (read(tmp_path / name)[0]['next_sentence_labels'] for name in ('out', 'b'))
    assert abs(clean.mean() - 0.5) < 0.1 and found.mean() > 0.6
    assert 'swapped or random' in capsys.readouterr().out
    with pytest.raises(UserError, match='--sop_noise is for --objective=sop, not nsp'):
        run(tmp_path, vocabulary, sop_noise=True)


def test_too_little_to_hold_out(tmp_path, vocabulary, capsys):
    write_text(tmp_path / 'a.txt', vocabulary[2][:5])
    manifest = run(tmp_path, vocabulary)  # by default: a warning, and all is trained on
    assert manifest.records('eval') == 0 and manifest.statistics['text']['train']['documents'] == 5
    assert capsys.readouterr().err.count('nothing is held out') == 1
    with pytest.raises(
        UserError, match=r'--eval_fraction=0\.01: 0 documents held out of 5.*--eval_input'
    ):
        run(tmp_path, vocabulary, eval_fraction=0.01, output=f'{tmp_path}/new')
    with pytest.raises(UserError, match=r'left to train on.*lower --eval_fraction'):
        run(tmp_path, vocabulary, eval_fraction=0.999, output=f'{tmp_path}/new')
    assert not (tmp_path / 'new').exists()


def test_a_lone_held_out_document_is_trained_on_by_default(
    tmp_path, vocabulary, monkeypatch, capsys
):
    texts = write_text(tmp_path / 'a.txt', vocabulary[2][:40])
    lone = min(stages.fingerprint(text.split('\n')) for text in texts)
    monkeypatch.setattr(
        'bert_jax.input_pipeline.preprocess.plan.EVAL_FRACTION', (lone + 1) / 2**64 * (1 + 1e-9)
    )
    manifest = run(tmp_path, vocabulary)
    assert (
        manifest.records('eval') == 0 and len(names_in(read(tmp_path / 'out')[1], vocabulary)) == 40
    )
    assert capsys.readouterr().err.count('nothing is held out') == 1


def test_empty_text_is_refused(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_text('\n\n \n')
    with pytest.raises(UserError, match='no text'):
        run(tmp_path, vocabulary)
    with pytest.raises(UserError, match='no file'):
        run(tmp_path, vocabulary, input=f'{tmp_path}/*.none')


def test_unusual_text_is_warned_about(tmp_path, vocabulary, capsys):
    (tmp_path / 'a.txt').write_text('\n\n'.join(['waa wab wac .'] * 20 + ['zzz zzz ?']) + '\n\n')
    statistics = run(tmp_path, vocabulary, eval_fraction=0).statistics
    captured = capsys.readouterr()
    assert 'blank line after every sentence' in captured.err and 'repetitions' in captured.err
    assert (
        len(statistics['warnings']) == 2
        and statistics['text']['train']['duplicate_line_rate'] == 1 - 2 / 21
    )
    assert statistics['text']['train']['unknown_rate'] == 3 / 83
    last = captured.out.strip().split('\n')[-1]
    assert 'examples in' in last and 'examples/CPU-second' in last and 'peak memory' in last


def test_a_directory_holds_one_job(tmp_path, vocabulary, capsys):
    write_text(tmp_path / 'a.txt', vocabulary[2][:30])
    run(tmp_path, vocabulary)
    before = digests(tmp_path / 'out')
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / 'out').iterdir()}
    assert (
        run(tmp_path, vocabulary, workers=2).records('train') > 0
        and 'done already' in capsys.readouterr().out
    )
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / 'out').iterdir()} == times
    with pytest.raises(
        UserError, match=r'another job.*seq_len is 64 there and 32 here.*--overwrite'
    ):
        run(tmp_path, vocabulary, seq_len=32)
    assert digests(tmp_path / 'out') == before
    run(tmp_path, vocabulary, seq_len=32, num_shards=2, overwrite=True)
    assert set(digests(tmp_path / 'out')) == {
        'train-00000-of-00002.tfrecord',
        'train-00001-of-00002.tfrecord',
    }
    (tmp_path / 'a.txt').write_text('waa wab .\n\nwac wad .\n')  # other text
    with pytest.raises(UserError, match='another job'):
        run(tmp_path, vocabulary, seq_len=32, num_shards=2)
    (tmp_path / 'out' / 'manifest.json').unlink()
    with pytest.raises(UserError, match='no manifest.json'):
        run(tmp_path, vocabulary)
    with (
        job_directory.scratch(epath.Path(tmp_path / 'busy'), {}, False, lambda _: True),
        pytest.raises(UserError, match='another process'),
    ):
        run(tmp_path, vocabulary, output=f'{tmp_path}/busy')


def write_corpus(path, vocabulary, seed):
    """Documents as text or as parquet, of the same size for every seed."""
    documents = [
        f'{name} waa wab .\n{name} wa{"cdefg"[(i + seed) % 5]} .'
        for i, name in enumerate(vocabulary[2][:60])
    ]
    if path.suffix == '.parquet':
        table = pyarrow.table({'text': documents})
        parquet.write_table(
            table, path, row_group_size=20, compression='none', use_dictionary=False
        )
    else:
        path.write_text('\n\n'.join(documents))


@pytest.mark.parametrize('killed', [False, True], ids=['finished', 'interrupted'])
@pytest.mark.parametrize('name', ['a.txt', 'a.parquet'])
def test_changed_text_of_the_same_size_is_refused(
    tmp_path, vocabulary, monkeypatch, capsys, name, killed
):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    def job(folder=tmp_path / 'text', **options):
        capsys.readouterr()
        run(tmp_path, vocabulary, input=str(folder), eval_fraction=0, **options)
        return capsys.readouterr().out

    text = tmp_path / 'text' / name
    text.parent.mkdir()
    write_corpus(text, vocabulary, 0)
    with (
        monkeypatch.context() as patch,
        pytest.raises(Killed) if killed else contextlib.nullcontext(),
    ):
        if killed:
            patch.setattr(stages, 'write_output', kill)
        job()
    times, size = text.stat(), text.stat().st_size
    write_corpus(text, vocabulary, 1)
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))  # as rsync and cp --preserve would
    assert text.stat().st_size == size
    with pytest.raises(UserError, match='another job .the input files have changed.*--overwrite'):
        job()
    # The same text again is the same job: written anew, moved, or lying elsewhere.
    write_corpus(text, vocabulary, 0)
    shutil.copytree(tmp_path / 'text', tmp_path / 'elsewhere')
    goes_on = 'goes on with the job that was interrupted'
    assert (goes_on if killed else 'done already') in job(tmp_path / 'elsewhere')
    assert 'done already' in job() and 'done already' in job()
    before = digests(tmp_path / 'out')
    write_corpus(text, vocabulary, 1)
    assert 'done already' not in job(overwrite=True) and digests(tmp_path / 'out') != before
    assert 'done already' in job()


@pytest.mark.parametrize('stage', ['make_records', 'write_output'])
def test_a_full_disk_leaves_no_records_and_the_same_command_goes_on(
    tmp_path, vocabulary, monkeypatch, stage
):
    write_text(tmp_path / 'a.txt', vocabulary[2][:30])

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run(tmp_path, vocabulary)
    before = digests(tmp_path / 'out')
    with monkeypatch.context() as patch:
        patch.setattr(stages, stage, full)
        with pytest.raises(UserError, match='disk full.*same command again'):
            run(tmp_path, vocabulary, output=f'{tmp_path}/new/deep')
        assert [path.name for path in (tmp_path / 'new' / 'deep').iterdir()] == ['.tmp']
        with pytest.raises(UserError, match='disk full'):
            run(tmp_path, vocabulary, seq_len=32, overwrite=True)
    assert digests(tmp_path / 'out') == before and shards.verify(tmp_path / 'out').faults == []
    run(tmp_path, vocabulary, output=f'{tmp_path}/new/deep')
    assert digests(tmp_path / 'new' / 'deep') == before


def test_a_shard_is_sorted_by_key_over_all_buckets(tmp_path):
    random = np.random.RandomState(0)
    everything = []
    for bucket in range(3):
        keys = np.sort(random.randint(0, 2**62, 50).astype(np.uint64) * np.uint64(4))
        texts = [f'{key}'.encode() * random.randint(1, 4) for key in keys]
        np.save(tmp_path / f'{bucket}.keys.npy', keys)
        np.save(tmp_path / f'{bucket}.offsets.npy', np.cumsum([0, *map(len, texts)]))
        (tmp_path / f'{bucket}.records').write_bytes(b''.join(texts))
        everything += zip(keys.tolist(), texts)
    found = []
    for i in range(4):
        path = tmp_path / f'train-{i}.tfrecord'
        stages.write_output(
            i, 4, 1 + i % 2, [f'{tmp_path}/{bucket}' for bucket in range(3)], str(path)
        )
        found += split_frames(path.read_bytes())
    assert found == [text for _, text in sorted(everything)]


def test_a_large_shard_sorted_in_pieces_has_the_same_bytes(tmp_path, vocabulary, monkeypatch):
    write_text(tmp_path / 'a.txt', vocabulary[2][:100])
    run(tmp_path, vocabulary, num_shards=2)
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.plan.SHARD_BYTES', 10_000)
    run(tmp_path, vocabulary, num_shards=2, output=f'{tmp_path}/pieces')
    ours, theirs = (
        {name: digest for name, digest in digests(tmp_path / folder).items() if 'train' in name}
        for folder in ('out', 'pieces')
    )
    assert ours == theirs and len(ours) == 2
    with pytest.raises(UserError, match='--num_shards=5000.*examples only'):
        run(tmp_path, vocabulary, num_shards=5000, output=f'{tmp_path}/many')


@pytest.mark.parametrize(
    'bad',
    [
        {'seq_len': 4},
        {'max_packs': 1},
        {'max_packs': 1 << 40},
        {'masked_lm_prob': float('nan')},
        {'masked_lm_prob': float('inf')},
        {'mask_mix': (float('nan'),) * 3},
        {'mask_mix': (0.5, float('nan'), 0.5)},
        {'mask_mix': (float('inf'), 0.0, 0.0)},
        {'mask_mix': (2.0, -1.0, 0.0)},
        {'max_predictions': 65},
        {'ngram': 0},
        {'ngram': 3, 'masking': 'dynamic'},
        {'short_seq_prob': float('nan')},
        {'eval_fraction': float('nan')},
        {'input': ''},
        {'eval_input': ''},
        {'eval_input': ('en=',)},
        {'dupe_factor': 1 << 40},
        {'workers': 1 << 20},
        {'seed': 1 << 64},
        {'language_exponent': 1.5},
        {'language_exponent': float('nan')},
        {'dupe_factor': 0},
        {'short_seq_prob': 2.0},
        {'eval_fraction': 1.0},
        {'num_shards': 0},
        {'workers': 0},
        {'seed': -1},
        {'output': 'gs://a/b'},
    ],
)
def test_bad_options_name_their_flag(tmp_path, vocabulary, bad):
    with pytest.raises(UserError, match=f'--{next(iter(bad))}='):
        run(tmp_path, vocabulary, **bad)


def test_a_worker_that_dies_is_reported(tmp_path):
    with LocalEngine(2) as engine, pytest.raises(UserError, match='worker process died'):
        engine.run(
            os._exit,
            [(1,), (1,)],
            [1, 1],
            Progress('dying', 2, 'tasks'),
            KeptResults(str(tmp_path)),
        )


def test_workers_end_with_a_killed_job(tmp_path):
    """Each worker holds the pipe's other end, so its closing tells that all of them are gone."""
    code = f"""
import time
from bert_jax.input_pipeline.preprocess.kept_results import KeptResults
from bert_jax.input_pipeline.preprocess.local_engine import LocalEngine
from bert_jax.input_pipeline.progress import Progress
with LocalEngine(2) as engine:
    engine.run(print, [('ready',)] * 2, [1, 1], Progress('', 2, ''), KeptResults('{tmp_path}/1'))
    print(flush=True)
    engine.run(time.sleep, [(600,)] * 2, [1, 1], Progress('', 2, ''), KeptResults('{tmp_path}/2'))
"""
    job = subprocess.Popen(
        [sys.executable, '-c', code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert job.stdout.readline()  # the first tasks are done, so the workers are there
    job.kill()
    job.communicate(timeout=30)  # ends when no process holds the pipes any more


def modules_after_a_job(folder, vocabulary) -> list[str]:
    run(folder, (vocabulary,), eval_fraction=0.2, text=TextOptions(segment=True))
    return sorted({name.split('.')[0] for name in sys.modules})


def test_workers_import_neither_tensorflow_nor_jax(tmp_path, vocabulary):
    """A worker process that has done all there is to do."""
    for name in 'ab':
        (tmp_path / name).mkdir()
        write_text(tmp_path / name / 'text.txt', vocabulary[2][:40])
    with LocalEngine(2) as engine:
        tasks = [(str(tmp_path / name), str(vocabulary[0])) for name in 'ab']
        for loaded in engine.run(
            modules_after_a_job,
            tasks,
            [1, 1],
            Progress('working', 2, 'jobs'),
            KeptResults(str(tmp_path / 'kept')),
        ):
            assert {'bert_jax', 'sentencex'} <= set(loaded) and not {
                'tensorflow',
                'jax',
                'tensorflow_datasets',
                'apache_beam',
            } & set(loaded)


def test_command_line(tmp_path, vocabulary, binary):
    write_text(tmp_path / 'a.txt', vocabulary[2][:30])
    flags = [
        f'--input={tmp_path}/a.txt',
        f'--tokenizer={vocabulary[0]}',
        f'--output={tmp_path}/out',
        '--seq_len=32',
        '--workers=2',
    ]
    done = binary('preprocess', *flags)
    assert done.returncode == 0 and 'examples/CPU-second' in done.stdout.strip().split('\n')[-1], (
        done.stderr
    )
    assert shards.Manifest.load(tmp_path / 'out').max_predictions == 5
    bad = binary('preprocess', *flags, '--mask_mix=a,b')
    assert bad.returncode == 2 and '--mask_mix=a,b' in bad.stderr and 'Traceback' not in bad.stderr
    for arguments, said in (
        (
            ['--', '--runner=FlinkRunner'],
            '--runner=FlinkRunner: pipeline options are for --engine=beam',
        ),
        (['seq'], "unexpected argument 'seq'"),
    ):
        refused = binary('preprocess', *flags, *arguments)
        assert (
            refused.returncode == 2 and said in refused.stderr and 'Traceback' not in refused.stderr
        )


def test_beam_that_is_not_installed(tmp_path, vocabulary, monkeypatch):
    """Whatever is installed here; tests/beam has the tests with it."""
    monkeypatch.setitem(sys.modules, 'apache_beam', None)
    write_text(tmp_path / 'a.txt', vocabulary[2][:30])
    with pytest.raises(
        UserError, match=r"--engine=beam: Apache Beam is not installed: pip install .*'\.\[beam\]'"
    ):
        run(tmp_path, vocabulary, engine='beam')
    assert not (tmp_path / 'out').exists()


def test_real_text(tmp_path, test_data):
    """google-research/bert's own sample: 3 documents, 31 sentences."""
    manifest = preprocess(
        PreprocessOptions(
            input=str(test_data / 'corpora' / 'sample_text.txt'),
            tokenizer=str(test_data / 'vocab' / 'bert-base-uncased'),
            output=str(tmp_path / 'out'),
            workers=1,
        )
    )
    assert (
        manifest.statistics['text']['train'] | {'documents': 3, 'sentences': 31}
        == manifest.statistics['text']['train']
    )
    assert shards.verify(tmp_path / 'out').faults == []
    columns, _ = read(tmp_path / 'out')
    assert (columns['input_ids'][:, 0] == 101).all() and 80 < len(columns['input_ids']) < 180
