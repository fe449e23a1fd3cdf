"""An interrupted offline job goes on where it was, and ends with the bytes of one that was not."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from bert_jax.input_pipeline.preprocess.job_directory import KeptResults
from bert_jax.input_pipeline.records import shards
from tests.helpers.jobs import Killed, digests, killed_at, run, write_text
from tests.helpers.refusals import refused

# Of a job that has 2 units of text, several buckets and 3 shards.
OPTIONS = {'num_shards': 2, 'eval_fraction': 0.2}
ROOM = 'bert_jax.input_pipeline.preprocess'


@pytest.fixture(scope='module', autouse=True)
def several_buckets():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f'{ROOM}.job_plan.MIN_BUCKET_TOKENS', 5000)
        yield


@pytest.fixture(scope='module')
def text(tmp_path_factory, vocabulary, several_buckets):
    """A folder of two files, and what the job makes of them when nothing interrupts it."""
    folder = tmp_path_factory.mktemp('text')
    write_text(folder / 'a.txt', vocabulary[2][:150], seed=1)
    write_text(folder / 'b.txt', vocabulary[2][150:200], seed=2)
    run(folder, vocabulary, output=f'{folder}/whole', **OPTIONS)
    return folder


@pytest.fixture
def job(tmp_path, text, vocabulary):
    """Runs that job into another folder; and what is there afterwards is the same."""

    def job(**options):
        manifest = run(text, vocabulary, **OPTIONS | {'output': f'{tmp_path}/out'} | options)
        if not options:
            assert digests(tmp_path / 'out') == digests(text / 'whole')
            names = ({path.name for path in folder.iterdir()} for folder in folders)
            assert len(set(map(frozenset, names))) == 1
        return manifest

    folders = (tmp_path / 'out', text / 'whole')
    return job


@pytest.mark.parametrize('name', ['.tmp/notes.txt', 'tokenizer/vocab.txt', 'manifest.json'])
def test_what_the_job_did_not_make_stays(tmp_path, job, name):
    kept = tmp_path / 'out' / name
    kept.parent.mkdir(parents=True)
    kept.write_text('mine')
    held = name.split('/')[0]
    with refused(rf'holds (a )?{held}.* did not make.*--overwrite'):
        job()
    assert kept.read_text() == 'mine' and len(list((tmp_path / 'out').rglob('*'))) <= 2
    job(overwrite=True)


def test_after_a_kill_at_any_task(tmp_path, text, job, monkeypatch, capsys):
    """Killed at any task, then killed again at the next one.

    Before the task, or when its files are there and its result is not.
    """
    tasks = attempts = 0
    keep = KeptResults.run

    def killed_once(kept, number, function, task):
        nonlocal tasks
        tasks += 1
        result = keep(kept, number, function, task)
        if tasks % 2:
            Path(kept.folder, kept.names[number]).unlink()  # killed just before its result was kept
        raise Killed(result)

    monkeypatch.setattr(KeptResults, 'run', killed_once)
    while not (tmp_path / 'out' / 'manifest.json').exists():
        attempts += 1
        assert attempts < 40
        try:
            job()
        except Killed:
            assert not list((tmp_path / 'out').glob('*.tfrecord'))
    assert attempts == tasks + 1 and tasks >= 14
    ours, whole = (folder / 'manifest.json' for folder in (tmp_path / 'out', text / 'whole'))
    assert ours.read_bytes() == whole.read_bytes()
    last = capsys.readouterr().out
    assert last.count('goes on with the job that was interrupted') == attempts - 1
    assert 'done before' in last


@pytest.mark.parametrize('name', ['preprocess.job_directory._remove', 'manifest'])
def test_after_a_kill_while_files_get_their_names(job, name):
    """In place of another job's, which lie there; the last is killed before its own manifest."""
    job(seed=1, num_shards=3)
    if name == 'manifest':
        name, save, calls = 'records.shards.Manifest.save', shards.Manifest.save, []
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):

            def second(manifest, folder):
                calls.append(folder)
                if len(calls) > 1:
                    raise Killed
                save(manifest, folder)

            patch.setattr(shards.Manifest, 'save', second)
            job(overwrite=True)
    else:
        with killed_at(name, 'bert_jax.input_pipeline'):
            job(overwrite=True)
    job(overwrite=name.endswith('_remove'))
    job()


class Runs:
    """What a pickle of it does when it is read: it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, 'it ran')


def test_no_file_of_the_scratch_folder_is_run(tmp_path, text, job):
    """A pickle in place of each file in turn that an interrupted job has left, and goes on with."""
    options = {'dedup': 'lines', 'eval_fraction': None, 'eval_input': str(text / 'b.txt')}
    with killed_at('deduplication.drop_copies', ROOM):
        job(**options)
    scratch, left = tmp_path / 'out' / '.tmp', tmp_path / 'left'
    scratch.rename(left)
    files = [path.relative_to(left) for path in left.rglob('*') if path.is_file()]
    assert len(files) > 8 and Path('runs/held-out') in files
    # One file of each kind.
    files = {(path.parts[0], path.name.split('-')[0].rstrip('0123456789')): path for path in files}

    for name in (*files.values(), Path('manifest.json')):
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(left, scratch)
        (scratch / name).write_bytes(pickle.dumps(Runs(tmp_path / 'ran')))
        if name == Path('job.json'):
            job(**options)  # whose work this is cannot be told: made again
            shutil.rmtree(tmp_path / 'out')
        else:
            with refused(str(name)):
                job(**options)
        assert not (tmp_path / 'ran').exists(), name
