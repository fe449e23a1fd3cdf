"""The offline job on Apache Beam makes the files of the local engine, by the sha256 of each.

In processes of its own, and on a Dask cluster.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
from pathlib import Path

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.preprocess.job_plan import plan_buckets
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions, train
from tests.helpers.buckets import make_bucket
from tests.helpers.jobs import PLAIN, write_text
from tests.helpers.jobs import run as job
from tests.helpers.vocabularies import write_vocabulary

pytest.importorskip(
    'apache_beam', reason='Apache Beam is not installed: bash launch/test.sh --beam'
)

ROOT = Path(__file__).parents[2]
PROCESSES = (
    '--runner=FnApiRunner',
    '--direct_num_workers=2',
    '--direct_running_mode=multi_processing',
)
pytestmark = pytest.mark.filterwarnings('default')  # those of Beam and Dask are not ours to mend


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    """A folder of 4 files with 320 documents, one of them compressed, and a vocabulary.

    Some of the documents are held in a fifth file too.
    """
    folder = tmp_path_factory.mktemp('text')
    names = [f'd{chr(97 + i)}{chr(97 + j)}' for i in range(17) for j in range(20)]
    write_vocabulary(folder / 'vocabulary', [*PLAIN, '##s', '##ing', '.', *names])
    texts = write_text(folder / 'all', names)
    for i in range(3):
        (folder / f'{i}.txt').write_text('\n\n'.join(texts[80 * i : 80 * i + 80]))
    (folder / '3.txt').write_bytes(gzip.compress('\n\n'.join(texts[240:320]).encode()))
    # 20 of them stand in 3.txt too.
    (folder / 'held_out.text').write_text('\n\n'.join(texts[300:]))
    return folder


def run(folder, output, /, *arguments, engine='beam', **options):
    options = {'output': str(output), 'num_shards': 3, 'eval_fraction': 0.1} | options
    vocabulary = [folder / 'vocabulary']
    return job(folder, vocabulary, engine=engine, beam_arguments=arguments, **options)


def digests(folder):
    """sha256 of every file in a finished directory, the manifest included."""
    files = [path for path in folder.rglob('*') if path.is_file()]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture
def many_buckets(monkeypatch):
    """Buckets so small that documents have to be brought together from all files."""
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.job_plan.MIN_BUCKET_TOKENS', 5000)
    assert plan_buckets(30_000, 300) == 4


def same_as_local(text, folder, /, *arguments, **options):
    manifest = run(text, folder / 'beam', *arguments, **options)
    assert run(text, folder / 'local', engine='local', **options) == manifest
    found = digests(folder / 'beam')
    assert found == digests(folder / 'local')
    assert {
        'manifest.json',
        'tokenizer/vocab.txt',
        'train-00002-of-00003.tfrecord',
    } <= set(found)
    assert {name[:4] for name in found if name.endswith('.tfrecord')} == {'trai', 'eval'}
    assert shards.verify(folder / 'beam').faults == []


def test_same_bytes_in_processes(tmp_path, text, many_buckets):
    given = (f'en={text}/[012].txt', f'ko={text}/3.txt')
    same_as_local(text, tmp_path, *PROCESSES, packing=True, ngram=3, input=given)


def test_no_run_is_pickled(tmp_path, text, many_buckets, monkeypatch):
    """What goes through the shuffles are numbers, paths and bytes: all of it has Beam's coders."""
    from apache_beam.coders import typecoders

    coders = set()
    coder_of = typecoders.registry.get_coder

    def noted(kind):
        coders.add(str(coder_of(kind)))
        return coder_of(kind)

    monkeypatch.setattr(typecoders.registry, 'get_coder', noted)
    same_as_local(text, tmp_path)
    assert 'TupleCoder[VarIntCoder, TupleCoder[VarIntCoder, BytesCoder]]' in coders


@pytest.fixture
def cluster():
    """The address of a Dask cluster of two workers, and what runs a function in each of them."""
    distributed = pytest.importorskip(
        'distributed', reason='Dask is not installed: bash launch/test.sh --beam'
    )
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield cluster.scheduler_address, client.run
        for opened in list(distributed.Client._instances):
            opened.close()  # Beam leaves one open for each pipeline


def test_same_bytes_on_a_cluster(tmp_path, text, many_buckets, cluster):
    """Workers that are started apart from the job and find its folder only by its path."""
    address, in_each_worker = cluster
    runner = (
        '--runner=apache_beam.runners.dask.dask_runner.DaskRunner',
        f'--dask_client_address={address}',
        '--dask_npartitions=4',
    )
    options = {'masking': 'dynamic', 'eval_fraction': None, 'eval_input': f'{text}/held_out.text'}
    same_as_local(text, tmp_path, *runner, **options)
    loaded = in_each_worker(lambda: (os.getpid(), set(sys.modules)))
    processes, modules = zip(*loaded.values())
    assert len({os.getpid(), *processes}) == 3
    for found in modules:
        assert (
            'bert_jax.input_pipeline.preprocess.job_stages' in found
            and not {'tensorflow', 'jax'} & found
        )


def test_a_mistake_found_by_a_worker_is_one_line(tmp_path, text):
    bad = tmp_path / 'bad.txt'
    bad.write_bytes(b'waa wab .\n\nwac \xff wad .\n')
    messages = []
    for engine, arguments in (('local', ()), ('beam', PROCESSES)):
        with pytest.raises(UserError, match=r'bad\.txt line 3: invalid UTF-8') as caught:
            run(
                text,
                tmp_path / 'out',
                *arguments,
                engine=engine,
                input=str(bad),
                on_bad_utf8='error',
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not (tmp_path / 'out').exists()


def test_more_shards_than_keys(tmp_path, text):
    """A shard for which no record comes is written all the same."""
    few = tmp_path / 'few.txt'
    few.write_text('waa wab .\nwac wad .\n\nwae waf .\nwag wah .\n')
    options = {'input': str(few), 'dupe_factor': 2, 'eval_fraction': 0, 'short_seq_prob': 0.0}
    records = run(text, tmp_path / 'one', engine='local', num_shards=1, **options).records('train')
    local = run(text, tmp_path / 'local', engine='local', num_shards=records, **options)
    assert 0 in {shard.records for shard in local.files}
    assert run(text, tmp_path / 'beam', num_shards=records, **options) == local and digests(
        tmp_path / 'beam'
    ) == digests(tmp_path / 'local')


def test_a_bucket_for_output(tmp_path, text, monkeypatch):
    """A gs:// folder, for which fsspec's file system in memory stands.

    That has no real folders either.
    """
    bucket = make_bucket(monkeypatch)
    run(text, 'gs://bucket/records')
    run(text, tmp_path / 'local', engine='local')
    found = {
        path.removeprefix('/bucket/records/'): hashlib.sha256(bucket.cat(path)).hexdigest()
        for path in bucket.store
    }
    assert found == digests(tmp_path / 'local')
    run(text, 'gs://bucket/records', overwrite=True, num_shards=2)
    assert len(bucket.store) == len(found) - 1
    with pytest.raises(UserError, match='local folder'):
        run(text, 'gs://bucket/other', engine='local')


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (['--runner=NoRunner'], 'Unexpected pipeline runner: NoRunner'),
        (['--runner=DataflowRunner'], 'Missing required option: project'),
    ],
)
def test_bad_pipeline_options(tmp_path, text, arguments, said):
    with pytest.raises(UserError, match=said):
        run(text, tmp_path / 'out', *arguments)
    assert not (tmp_path / 'out').exists()


def test_a_sentencepiece_vocabulary(tmp_path, text):
    """Its library's generated code refuses the protobuf that Beam needs, so nothing may load that.

    Not even the copy of the tokenizer.
    """
    lines = (line for i in range(3) for line in (text / f'{i}.txt').read_text().splitlines())
    train([line for line in lines if line][:500], VocabularyOptions(200, 'unigram'))[0].save(
        tmp_path / 'vocabulary'
    )
    run(text, tmp_path / 'beam', tokenizer=str(tmp_path / 'vocabulary'))
    run(text, tmp_path / 'local', engine='local', tokenizer=str(tmp_path / 'vocabulary'))
    found = digests(tmp_path / 'beam')
    assert found == digests(tmp_path / 'local') and 'tokenizer/spm.model' in found
