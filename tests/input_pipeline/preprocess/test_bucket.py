"""Text that lies in a bucket: as it is read there, and as it is copied to the disk and read."""

from __future__ import annotations

import gzip
import json
import os

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from bert_jax.input_pipeline.preprocess import job
from bert_jax.input_pipeline.preprocess.job_directory import Interrupted
from bert_jax.input_pipeline.text import units as units_of_text
from bert_jax.input_pipeline.text.corpus import read_documents, read_unit
from bert_jax.input_pipeline.text.units import copy_from_bucket, units
from bert_jax.runs.vocabulary_training import Text, TextOptions
from tests.helpers.buckets import make_bucket
from tests.helpers.jobs import Killed, digests, killed_at, run, write_text
from tests.helpers.refusals import refused


@pytest.fixture
def bucket(monkeypatch):
    return make_bucket(monkeypatch)


@pytest.fixture
def folder(tmp_path, vocabulary, bucket):
    """Text as jsonl, plain and packed, and as parquet, in a folder here and in a bucket."""
    here = tmp_path / 'text'
    here.mkdir()
    for number, name in enumerate(('a.jsonl', 'b.jsonl.gz', 'c.jsonl.zst', 'd.parquet', 'e.txt')):
        names = vocabulary[2][30 * number : 30 * number + 30]
        texts = write_text(tmp_path / 'made', names, number)
        content = '\n'.join(json.dumps({'text': text}) for text in texts).encode()
        if name.endswith('.gz'):
            content = gzip.compress(content)
        elif name.endswith('.zst'):
            content = zstandard.compress(content)
        elif name.endswith('.txt'):
            content = '\n\n'.join(texts).encode()
        (here / name).write_bytes(content)
        if name == 'd.parquet':
            table = pa.table({'n': range(30), 'text': texts})
            parquet.write_table(table, here / name, row_group_size=8)
        bucket.pipe(f'/b/text/{name}', (here / name).read_bytes())
    bucket.opened.clear()
    return here


@pytest.mark.parametrize('pattern', ['gs://b/text', 'gs://b/text/*', 'gs://b/text/d.parquet'])
def test_what_is_read_there_is_what_is_read_here(folder, pattern):
    local = pattern.replace('gs://b/text', str(folder))
    there, here = list(read_documents(pattern)), list(read_documents(local))
    assert there == here and len(there) in (30, 150)


def test_row_groups_are_read_apart(folder, bucket):
    found = units('gs://b/text/*.parquet')
    assert [(unit.start, unit.whole) for unit in found] == [(i, False) for i in range(4)]
    assert not bucket.exists('/b/text/copy')


def test_words_of_a_vocabulary(folder):
    text = Text(('gs://b/text/*',), None, (), TextOptions())
    tables, _, read = text.count_words(lambda lines: list(lines))
    assert read.documents == 150 and len(tables['']) == read.sentences


@pytest.mark.parametrize('cache_gb', [10.0, 0.0])
def test_the_records_are_those_of_local_files(tmp_path, folder, vocabulary, bucket, cache_gb):
    """With a cache each file is fetched once, but to look at its first bytes, and parquet."""
    local = run(tmp_path, vocabulary, input=f'{folder}/*', output=f'{tmp_path}/local')
    there = run(tmp_path, vocabulary, input='gs://b/text', cache_gb=cache_gb)
    assert digests(tmp_path / 'out') == digests(tmp_path / 'local')
    assert there.statistics == local.statistics
    fetched = bucket.opened.count('/b/text/b.jsonl.gz')
    assert fetched == 1 if cache_gb else fetched > 2
    assert {path.name for path in (tmp_path / 'out').iterdir()} >= {'manifest.json'}

    # What makes no records is no part of what the job is: it is done already.
    bucket.opened.clear()
    assert run(tmp_path, vocabulary, input='gs://b/text', cache_gb=1.0) == there
    assert '/b/text/b.jsonl.gz' not in bucket.opened


def test_the_disk_never_holds_more_than_the_limit(tmp_path, folder, monkeypatch):
    """A unit that does not fit is read in the bucket; a copy goes when its unit is read."""
    copies = tmp_path / 'copies'
    monkeypatch.setattr(units_of_text, '_UNIT_FILES', 1)
    found, held = [], []
    for unit in units('gs://b/text/*', unit_bytes=4000):  # stretches of text, and files
        with copy_from_bucket(unit, str(copies), limit=5000):
            held.append(sum(path.stat().st_size for path in copies.glob('*')))
            found += read_unit(unit)
        is_parquet = next(unit.files()).format == 'parquet'
        assert held[-1] == (0 if is_parquet or unit.bytes > 5000 else unit.bytes)
        assert not copies.exists()
    assert found == list(read_documents(f'{folder}/*'))
    assert len(held) > 10 and 0 < max(held) <= 5000


def test_a_killed_job_goes_on_by_unit(tmp_path, folder, vocabulary, bucket, monkeypatch):
    monkeypatch.setattr(units_of_text, '_UNIT_FILES', 1)
    options = {'input': 'gs://b/text', 'eval_fraction': 0.1}
    read = job.corpus.read_unit

    def killed(unit, *arguments):
        if next(unit.files()).name == 'c.jsonl.zst':
            runs = tmp_path / 'out' / '.tmp' / 'runs'
            assert [os.listdir(path) for path in runs.glob('*.copy')] == [['0']]
            (runs / 'unit-left.copy').mkdir()  # as of another worker, killed at once
            raise Killed
        return read(unit, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(job.corpus, 'read_unit', killed)
        run(tmp_path, vocabulary, **options)
    bucket.opened.clear()
    run(tmp_path, vocabulary, **options)
    assert '/b/text/a.jsonl' not in bucket.opened and '/b/text/c.jsonl.zst' in bucket.opened
    run(tmp_path, vocabulary, **options | {'output': f'{tmp_path}/fresh'})
    assert digests(tmp_path / 'out') == digests(tmp_path / 'fresh')
    assert not (tmp_path / 'out' / '.tmp').exists()


def test_a_file_that_changes_between_two_starts_is_other_text(tmp_path, folder, vocabulary, bucket):
    run(tmp_path, vocabulary, input='gs://b/text')
    changed = bucket.cat('/b/text/a.jsonl').replace(b'waa', b'wab', 1)  # of the same size
    bucket.change('/b/text/a.jsonl', changed)
    with refused('--output=.*the input files have changed'):
        run(tmp_path, vocabulary, input='gs://b/text')


def test_an_unfinished_job_does_not_go_on_with_other_text(tmp_path, folder, vocabulary, bucket):
    with killed_at('make_records'):
        run(tmp_path, vocabulary, input='gs://b/text')
    bucket.change('/b/text/a.jsonl', bucket.cat('/b/text/a.jsonl').replace(b'waa', b'wab', 1))
    with pytest.raises(Interrupted, match='unfinished work .*the input files have changed'):
        run(tmp_path, vocabulary, input='gs://b/text')
    run(tmp_path, vocabulary, input='gs://b/text', overwrite=True)


def test_a_file_that_changes_while_the_job_reads(tmp_path, folder, vocabulary, bucket, monkeypatch):
    read = job.corpus.read_unit

    def changing(unit, *arguments):
        if next(unit.files()).name == 'a.jsonl':
            bucket.pipe('/b/text/a.jsonl', b'{"text": "Other."}\n')
        return read(unit, *arguments)

    monkeypatch.setattr(job.corpus, 'read_unit', changing)
    with refused('gs://b/text/a.jsonl: has changed since the reading began'):
        run(tmp_path, vocabulary, input='gs://b/text')


@pytest.mark.parametrize('name', ['a.jsonl', 'b.jsonl.gz', 'd.parquet'])
@pytest.mark.parametrize('cache_gb', [10.0, 0.0])
def test_a_bucket_that_is_not_reached(tmp_path, folder, vocabulary, bucket, name, cache_gb):
    bucket.unreachable = name
    with refused(rf'^gs://b/text/{name}: cannot be read \(.*the network is down\): correct'):
        run(tmp_path, vocabulary, input='gs://b/text', cache_gb=cache_gb)
    bucket.unreachable = ''
    run(tmp_path, vocabulary, input='gs://b/text', cache_gb=cache_gb)


@pytest.mark.parametrize('pattern', ['gs://b/text', 'gs://b/text/a.jsonl', 'gs://b/text/*.jsonl'])
def test_a_bucket_that_cannot_be_listed(folder, bucket, pattern):
    bucket.is_down = True
    with refused(r'^gs://b/text.*: cannot be read \(.*the network is down\): correct the address'):
        units(pattern)
    bucket.is_down = False
    with refused(r"^no file matches 'gs://b/nothing/\*'"):
        units('gs://b/nothing/*')


def test_a_bucket_that_is_not_reached_in_the_middle(folder, bucket):
    documents = read_documents('gs://b/text/d.parquet')
    next(documents)
    bucket.unreachable = 'd.parquet'
    with refused(r'^gs://b/text/d.parquet: cannot be read \(.*the network is down\)'):
        list(documents)


def test_a_broken_row_group(tmp_path, folder, vocabulary, bucket):
    """In a file whose footer is whole: the units before it stay read."""
    path = folder / 'd.parquet'
    group = parquet.ParquetFile(path).metadata.row_group(2).column(1)
    broken = bytearray(path.read_bytes())
    at = group.dictionary_page_offset or group.data_page_offset
    broken[at : at + group.total_compressed_size] = b'\xff' * group.total_compressed_size
    bucket.pipe('/b/text/d.parquet', bytes(broken))
    with refused(r'gs://b/text/d.parquet: damaged parquet file \(.*\): copy or make it again'):
        run(tmp_path, vocabulary, input='gs://b/text')
    bucket.pipe('/b/text/d.parquet', path.read_bytes())
    run(tmp_path, vocabulary, input='gs://b/text')
