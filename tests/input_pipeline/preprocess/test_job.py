"""The offline job as a whole: its folder, its options, its workers, its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from etils import epath
from pyarrow import parquet

from bert_jax.input_pipeline.preprocess import job_directory
from tests.helpers.jobs import digests, killed_at, run, write_text
from tests.helpers.refusals import refused


@pytest.mark.parametrize(
    'documents, options, message',
    [
        (0, {}, 'no text'),
        (1, {}, 'one document only.*--objective=full_sentences.*blank lines'),
        (None, {}, 'no file'),
        (30, {'seq_len': 4}, '--seq_len='),
        (30, {'mask_mix': (2.0, -1.0, 0.0)}, '--mask_mix='),
        (30, {'max_predictions': 65}, '--max_predictions='),
        (30, {'ngram': 3, 'masking': 'dynamic'}, '--ngram='),
        (30, {'input': ''}, '--input='),
        (30, {'output': 'gs://a/b'}, '--output='),
        (
            5,
            {'eval_fraction': 0.01},
            r'--eval_fraction=0\.01: 0 documents held out of 5',
        ),
        (5, {'eval_fraction': 0.999}, 'left to train on.*lower --eval_fraction'),
        (30, {'eval_fraction': 0.1, 'eval_input': 'a.txt'}, '--eval_fraction and --eval_input'),
        (30, {'eval_input': 'one.text'}, '--eval_input=.*1 document held out.*blank lines'),
        (30, {'num_shards': 5000}, '--num_shards=5000.*examples only'),
        (30, {'language_repeats': ('ko=2',)}, '--language_.* is for text in several languages'),
        (30, {'engine': 'beam'}, r"--engine=beam: Apache Beam is not installed: .*'\.\[beam\]'"),
    ],
)
def test_what_makes_no_records_is_refused(
    tmp_path, vocabulary, monkeypatch, documents, options, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'apache_beam', None)  # tests/beam has the tests with it
    if documents is not None:
        write_text(tmp_path / 'a.txt', vocabulary[2][:documents])
    write_text(tmp_path / 'one.text', vocabulary[2][-1:])
    with refused(message):
        run(tmp_path, vocabulary, **options)
    assert not list((tmp_path / 'out').glob('*.*'))


def test_unusual_text_is_warned_about(tmp_path, vocabulary, capsys):
    (tmp_path / 'a.txt').write_text('\n\n'.join(['waa wab wac .'] * 20 + ['zzz zzz ?']) + '\n\n')
    statistics = run(tmp_path, vocabulary, eval_fraction=0).statistics
    captured = capsys.readouterr()
    assert 'blank line after every sentence' in captured.err and '--dedup=lines' in captured.err
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
    with refused(r'another job.*seq_len is 64 there and 32 here.*--overwrite'):
        run(tmp_path, vocabulary, seq_len=32)
    assert digests(tmp_path / 'out') == before
    run(tmp_path, vocabulary, seq_len=32, num_shards=2, overwrite=True)
    assert set(digests(tmp_path / 'out')) == {
        'eval-00000-of-00001.tfrecord',
        'train-00000-of-00002.tfrecord',
        'train-00001-of-00002.tfrecord',
    }
    (tmp_path / 'a.txt').write_text('waa wab .\n\nwac wad .\n')  # other text
    with refused('another job'):
        run(tmp_path, vocabulary, seq_len=32, num_shards=2)
    (tmp_path / 'out' / 'manifest.json').unlink()
    with refused('no manifest.json'):
        run(tmp_path, vocabulary)
    with (
        job_directory.scratch(epath.Path(tmp_path / 'busy'), {}, False, lambda _: True),
        refused('another process'),
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


@pytest.mark.parametrize('name, stage', [('a.txt', 'write_output'), ('a.parquet', '')])
def test_changed_text_of_the_same_size_is_refused(tmp_path, vocabulary, capsys, name, stage):
    """Of a job that was interrupted, and of one that is finished."""

    def job(folder=tmp_path / 'text', **options):
        capsys.readouterr()
        run(tmp_path, vocabulary, input=str(folder), eval_fraction=0, **options)
        return capsys.readouterr().out

    text = tmp_path / 'text' / name
    text.parent.mkdir()
    write_corpus(text, vocabulary, 0)
    with killed_at(stage):
        job()
    times, size = text.stat(), text.stat().st_size
    write_corpus(text, vocabulary, 1)
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))  # as rsync and cp --preserve would
    assert text.stat().st_size == size
    with refused('another job .the input files have changed.*--overwrite'):
        job()
    # The same text again is the same job: written again, moved, or elsewhere.
    write_corpus(text, vocabulary, 0)
    shutil.copytree(tmp_path / 'text', tmp_path / 'elsewhere')
    goes_on = 'goes on with the job that was interrupted'
    assert (goes_on if stage else 'done already') in job(tmp_path / 'elsewhere')
    before = digests(tmp_path / 'out')
    assert 'done already' in job() and 'done already' in job()
    write_corpus(text, vocabulary, 1)
    assert 'done already' not in job(overwrite=True) and digests(tmp_path / 'out') != before


def test_workers_end_with_a_killed_job(tmp_path):
    """Each worker holds the pipe's other end, so its closing tells that all of them are gone."""
    code = f"""
import time
from bert_jax.input_pipeline.preprocess.job_directory import KeptResults
from bert_jax.input_pipeline.preprocess.engines import LocalEngine
from bert_jax.input_pipeline.progress import Progress
first, second = (KeptResults.numbered(f'{tmp_path}/{{i}}', 2) for i in range(2))
with LocalEngine(2) as engine:
    engine.run(print, [('ready',)] * 2, Progress('', 2, ''), first)
    print(flush=True)
    engine.run(time.sleep, [(60,)] * 2, Progress('', 2, ''), second)
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
