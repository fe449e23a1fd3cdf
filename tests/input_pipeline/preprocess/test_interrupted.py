"""An interrupted offline job goes on where it was, and ends with the bytes of one that was not."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.preprocess import job_directory
from bert_jax.input_pipeline.preprocess.kept_results import KeptResults
from bert_jax.input_pipeline.records import shards
from bert_jax.input_pipeline.tokenizer import Tokenizer
from tests.helpers.jobs import digests, run, write_text

# Of a job that has 2 units of text, several buckets and 3 shards.
OPTIONS = {'num_shards': 2, 'eval_fraction': 0.2}


class Killed(BaseException):
    """What no code of ours catches, as no code catches SIGKILL."""


@pytest.fixture(scope='module')
def text(tmp_path_factory, vocabulary):
    """A folder of two files, and what the job makes of them when nothing interrupts it."""
    folder = tmp_path_factory.mktemp('text')
    write_text(folder / 'a.txt', vocabulary[2][:150], seed=1)
    write_text(folder / 'b.txt', vocabulary[2][150:200], seed=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('bert_jax.input_pipeline.preprocess.plan.MIN_BUCKET_TOKENS', 5000)
        run(folder, vocabulary, output=f'{folder}/whole', **OPTIONS)
    return folder


@pytest.fixture(autouse=True)
def several_buckets(monkeypatch):
    """In every test, as above."""
    monkeypatch.setattr('bert_jax.input_pipeline.preprocess.plan.MIN_BUCKET_TOKENS', 5000)


@pytest.mark.parametrize(
    'name', ['.tmp/notes.txt', 'tokenizer/vocab.txt', 'tokenizer', 'manifest.json']
)
def test_what_the_job_did_not_make_stays(tmp_path, text, vocabulary, name):
    kept = tmp_path / 'out' / name
    kept.parent.mkdir(parents=True)
    kept.write_text('mine')
    options = {'output': f'{tmp_path}/out', **OPTIONS}
    held = name.split('/')[0]
    with pytest.raises(UserError, match=rf'holds (a )?{held}.* did not make.*--overwrite'):
        run(text, vocabulary, **options)
    assert kept.read_text() == 'mine' and len(list((tmp_path / 'out').rglob('*'))) <= 2
    run(text, vocabulary, overwrite=True, **options)
    assert digests(tmp_path / 'out') == digests(text / 'whole')


def test_the_tokenizer_may_lie_in_the_output(tmp_path, text, vocabulary):
    shutil.copytree(vocabulary[0], tmp_path / 'out' / 'tokenizer')
    (tmp_path / 'out' / 'tokenizer' / 'notes.txt').write_text('mine')
    given = (tmp_path / 'out' / 'tokenizer', *vocabulary[1:])
    run(text, given, output=f'{tmp_path}/out', **OPTIONS)
    assert digests(tmp_path / 'out') == digests(text / 'whole')
    assert (tmp_path / 'out' / 'tokenizer' / 'notes.txt').read_text() == 'mine'


def test_after_a_kill_at_any_task(tmp_path, text, vocabulary, monkeypatch, capsys):
    """Killed at any task, then killed again at the next one.

    Before the task, or when its files are there and its result is not.
    """
    tasks = 0
    keep = KeptResults.run

    def killed_once(kept, number, function, task):
        nonlocal tasks
        tasks += 1
        result = keep(kept, number, function, task)
        if tasks % 2:
            Path(kept.folder, f'{number:06}').unlink()  # killed just before its result was kept
        raise Killed(result)

    attempts = 0
    monkeypatch.setattr(KeptResults, 'run', killed_once)
    while not (tmp_path / 'out' / 'manifest.json').exists():
        attempts += 1
        assert attempts < 40
        try:
            run(text, vocabulary, output=f'{tmp_path}/out', **OPTIONS)
        except Killed:
            assert not list((tmp_path / 'out').glob('*.tfrecord'))
    assert attempts == tasks + 1 and tasks >= 14
    assert (
        digests(tmp_path / 'out') == digests(text / 'whole')
        and shards.verify(tmp_path / 'out').faults == []
    )
    assert (tmp_path / 'out' / 'manifest.json').read_bytes() == (
        text / 'whole' / 'manifest.json'
    ).read_bytes()
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {
        path.name for path in (text / 'whole').iterdir()
    }
    last = capsys.readouterr().out
    assert (
        last.count('goes on with the job that was interrupted') == attempts - 1
        and 'done before' in last
    )


@pytest.mark.parametrize('overwrite', [False, True])
@pytest.mark.parametrize('place', ['tokenizer', 'manifest', 'after'])
def test_after_a_kill_while_files_get_their_names(
    tmp_path, text, vocabulary, monkeypatch, place, overwrite
):
    def killed(*_):
        raise Killed

    if overwrite:
        run(text, vocabulary, output=f'{tmp_path}/out', seed=1, num_shards=3)
    with monkeypatch.context() as patch:
        if place == 'tokenizer':
            patch.setattr(Tokenizer, 'save', killed)
        elif place == 'manifest':
            save = shards.Manifest.save
            patch.setattr(
                shards.Manifest,
                'save',
                lambda self, folder: killed() if folder.name == 'out' else save(self, folder),
            )
        else:
            patch.setattr(
                job_directory,
                '_remove',
                lambda folder: (
                    killed()
                    if (folder.parent / 'manifest.json').exists() and not overwrite
                    else None
                ),
            )
            if overwrite:
                patch.setattr('bert_jax.input_pipeline.preprocess.statistics.report', killed)
        with pytest.raises(Killed):
            run(text, vocabulary, output=f'{tmp_path}/out', overwrite=overwrite, **OPTIONS)
    run(text, vocabulary, output=f'{tmp_path}/out', **OPTIONS)
    assert digests(tmp_path / 'out') == digests(text / 'whole')
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {
        path.name for path in (text / 'whole').iterdir()
    }


def test_another_job_does_not_go_on_with_it(tmp_path, text, vocabulary, monkeypatch):
    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr('bert_jax.input_pipeline.preprocess.stages.write_output', killed)
        with pytest.raises(Killed):
            run(text, vocabulary, output=f'{tmp_path}/out', **OPTIONS)
    with pytest.raises(
        UserError,
        match=r'unfinished work of another job .seed is 12345 there and 3 here.*--overwrite',
    ):
        run(text, vocabulary, output=f'{tmp_path}/out', seed=3, **OPTIONS)
    shutil.copytree(text, tmp_path / 'text')
    (tmp_path / 'text' / 'b.txt').write_text((text / 'b.txt').read_text() + 'waa .\n')
    with pytest.raises(
        UserError, match=r'unfinished work of another job .the input files have changed'
    ):
        run(tmp_path / 'text', vocabulary, output=f'{tmp_path}/out', **OPTIONS)
    manifest = run(text, vocabulary, output=f'{tmp_path}/out', seed=3, overwrite=True, **OPTIONS)
    assert manifest.seed == 3 and not (tmp_path / 'out' / '.tmp').exists()


class Runs:
    """What a pickle of it does when it is read: it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, 'it ran')


@pytest.mark.parametrize(
    'place', ['results/unit/000000', 'results/shards-train/000000', '*.keys.npy']
)
@pytest.mark.parametrize('engine', ['local', 'beam'])
def test_code_in_the_scratch_folder_is_not_run(
    tmp_path, text, vocabulary, monkeypatch, place, engine
):
    def killed(*_):
        raise Killed

    if engine == 'beam':
        pytest.importorskip(
            'apache_beam', reason='Apache Beam is not installed: bash launch/test.sh --beam'
        )
    options = OPTIONS | {'output': f'{tmp_path}/out'}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr('bert_jax.input_pipeline.preprocess.stages.write_output', killed)
        run(text, vocabulary, **options)
    places = list((tmp_path / 'out' / '.tmp').glob(place)) or [tmp_path / 'out' / '.tmp' / place]
    for path in places:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(Runs(tmp_path / 'ran')))
    with pytest.raises(
        UserError, match='(not what this job wrote|damaged, or shorter).*begins anew'
    ):
        run(text, vocabulary, engine=engine, **options)
    assert not (tmp_path / 'ran').exists()
    run(text, vocabulary, engine=engine, **options)
    assert digests(tmp_path / 'out') == digests(text / 'whole')


@pytest.mark.parametrize('stage', ['find_copies', 'drop_copies', 'make_records', 'write_output'])
def test_no_file_of_the_scratch_folder_is_run(tmp_path, text, vocabulary, monkeypatch, stage):
    """A pickle in place of each file in turn that an interrupted job has left, and goes on with."""

    def killed(*_):
        raise Killed

    module = 'deduplication' if stage.endswith('copies') else 'stages'
    options = {
        'output': f'{tmp_path}/out',
        'dedup': 'lines',
        'num_shards': 2,
        'eval_input': str(text / 'b.txt'),
    }
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(f'bert_jax.input_pipeline.preprocess.{module}.{stage}', killed)
        run(text, vocabulary, **options)
    scratch = tmp_path / 'out' / '.tmp'
    scratch.rename(tmp_path / 'left')
    names = [path.relative_to(tmp_path / 'left') for path in (tmp_path / 'left').rglob('*')]
    files = [name for name in names if (tmp_path / 'left' / name).is_file()]
    assert len(files) > 8 and Path('held_out.npy') in files

    for name in (*files, Path('manifest.json')):
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(tmp_path / 'left', scratch)
        (scratch / name).write_bytes(pickle.dumps(Runs(tmp_path / 'ran')))
        if name == Path('job.json'):
            run(text, vocabulary, **options)  # whose work this is cannot be told: made again
            shutil.rmtree(tmp_path / 'out')
        else:
            with pytest.raises(UserError, match=str(name)):
                run(text, vocabulary, **options)
        assert not (tmp_path / 'ran').exists(), name


def test_a_failure_that_another_process_kept_is_not_run(tmp_path):
    kept = KeptResults(str(tmp_path))
    (tmp_path / '000003.failed').write_bytes(pickle.dumps(Runs(tmp_path / 'ran')))
    with pytest.raises(UserError, match=r'000003\.failed: is not what this job wrote'):
        kept.raise_failure()
    assert not (tmp_path / 'ran').exists()
    kept.fail(3, UserError('a mistake'))
    with pytest.raises(UserError, match='a mistake'):
        kept.raise_failure()


def test_work_of_an_older_program_is_refused_in_one_line(tmp_path, text, vocabulary, monkeypatch):
    """One whose results were pickles, say: none of it is read."""

    def killed(*_):
        raise Killed

    options = OPTIONS | {'output': f'{tmp_path}/out'}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr('bert_jax.input_pipeline.preprocess.stages.write_output', killed)
        patch.setattr(job_directory, '_program', lambda: 'older')
        run(text, vocabulary, **options)
    for path in (tmp_path / 'out' / '.tmp' / 'results').glob('*/*'):
        path.write_bytes(pickle.dumps(Runs(tmp_path / 'ran')))
    with pytest.raises(UserError, match=r'the program has changed.*--overwrite to begin anew'):
        run(text, vocabulary, **options)
    run(text, vocabulary, overwrite=True, **options)
    assert digests(tmp_path / 'out') == digests(text / 'whole') and not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('name', ['tokens.npy', 'keys.npy', 'records', 'results'])
def test_a_damaged_byte_is_seen(tmp_path, text, vocabulary, monkeypatch, name):
    """As after a loss of power that left a file its length, and not all of its bytes."""

    def killed(*_):
        raise Killed

    stage = 'make_records' if name == 'tokens.npy' else 'write_output'
    options = OPTIONS | {'output': f'{tmp_path}/out'}
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(f'bert_jax.input_pipeline.preprocess.stages.{stage}', killed)
        run(text, vocabulary, **options)
    scratch = tmp_path / 'out' / '.tmp'
    path = next(iter(scratch.glob('results/*/*' if name == 'results' else f'*.{name}')))
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f'{path.name}: .*(checksum|damaged).*begins anew'):
        run(text, vocabulary, **options)
    run(text, vocabulary, **options)
    assert digests(tmp_path / 'out') == digests(text / 'whole')


def test_files_that_became_shorter_are_seen(tmp_path, text, vocabulary, monkeypatch):
    def killed(*_):
        raise Killed

    for name in ('tokens.npy', 'records'):
        with monkeypatch.context() as patch:
            patch.setattr(
                (
                    'bert_jax.input_pipeline.preprocess.stages.make_records'
                    if name == 'tokens.npy'
                    else 'bert_jax.input_pipeline.preprocess.stages.write_output'
                ),
                killed,
            )
            with pytest.raises(Killed):
                run(text, vocabulary, output=f'{tmp_path}/out', **OPTIONS)
        for path in (tmp_path / 'out' / '.tmp').glob(f'*.{name}'):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(UserError, match='shorter than it was made.*begins anew'):
            run(text, vocabulary, output=f'{tmp_path}/out', **OPTIONS)
    run(text, vocabulary, output=f'{tmp_path}/out', **OPTIONS)
    assert digests(tmp_path / 'out') == digests(text / 'whole')
