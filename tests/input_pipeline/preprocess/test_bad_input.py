"""What goes wrong with text and machines, through the whole job.

Each time there is a clear line, and correct files or none.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.full_disk import files_of_at_most
from tests.helpers.jobs import digests, run
from tests.helpers.refusals import refused


def put(folder, name, content):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / name)


def test_one_long_line(tmp_path, vocabulary, capsys):
    path = put(tmp_path, 'long', 'waa wab wac ' * 5_000 + '\n\nwad wae .\nwaf .\n')
    limit = {'max_line_bytes': 1_000}
    manifest = run(tmp_path, vocabulary, input=path, eval_fraction=0, **limit)
    errors = capsys.readouterr().err
    assert '1 line(s) longer than --max_line_bytes cut at white space' in errors
    assert 'is beyond --seq_len=64 is cut off: are these paragraphs, which need --seg' in errors
    sums = manifest.statistics['text']['train']
    assert [sums[name] for name in ('documents', 'sentences', 'tokens')] == [2, 62, 15_005]


@pytest.fixture(scope='module')
def text(tmp_path_factory, vocabulary):
    """A folder of four files, and what the job makes of them when nothing stops it."""
    folder = tmp_path_factory.mktemp('text')
    source, words = random.Random(0), [word for word in vocabulary[1] if word[0] in 'wd']
    for i in range(4):
        documents = (
            '\n'.join(' '.join(source.choices(words, k=12)) for _ in range(source.randint(5, 25)))
            for _ in range(100)
        )
        put(folder, f'{i}.txt', '\n\n'.join(documents))
    run(folder, vocabulary, output=f'{folder}/whole', dupe_factor=5)
    return folder


@pytest.fixture
def start(tmp_path, text, vocabulary):
    """Starts the same job by its command line."""
    flags = [
        f'--input={text}/*.txt',
        f'--tokenizer={vocabulary[0]}',
        f'--output={tmp_path}/out',
        '--seq_len=64',
        '--dupe_factor=5',
        '--workers=2',
    ]

    def start():
        command = [sys.executable, '-m', 'bert_jax.launch.preprocess', *flags]
        return subprocess.Popen(
            command,
            cwd=Path(__file__).parents[3],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def wait(job, folder, count):
    """Until so many results of a stage are there."""
    while not (folder.is_dir() and len(list(folder.glob('[!.]*'))) >= count):
        assert job.poll() is None
        time.sleep(0.005)


def test_a_worker_and_then_the_job_killed_in_the_middle(tmp_path, text, start):
    results = tmp_path / 'out' / '.tmp' / 'results' / 'unit'
    job = start()
    wait(job, results, 1)
    worker = Path(f'/proc/{job.pid}/task/{job.pid}/children').read_text().split()[-1]
    os.kill(int(worker), signal.SIGKILL)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 2 and 'a worker process died' in err and 'Traceback' not in err
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['.tmp']
    job = start()
    wait(job, results, 4)
    job.kill()
    job.communicate(timeout=60)
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {'.tmp', '.lock'}
    job = start()
    out, err = job.communicate(timeout=300)
    assert job.returncode == 0, err
    assert 'goes on with the job that was interrupted' in out
    assert digests(tmp_path / 'out') == digests(text / 'whole')
    assert not (tmp_path / 'out' / '.tmp').exists()


def test_a_full_disk_keeps_the_work(tmp_path, text, vocabulary, capsys):
    """The limit of ulimit -f stands for it, which only root can make."""
    job = {'input': f'{text}/*.txt', 'output': f'{tmp_path}/out', 'dupe_factor': 5}
    said = '^--output=.*a file grew beyond the limit.*same command again'
    with files_of_at_most(195 << 10), refused(said):
        run(tmp_path, vocabulary, **job)
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['.tmp']
    run(tmp_path, vocabulary, **job)
    assert 'goes on with the job that was interrupted' in capsys.readouterr().out
    assert digests(tmp_path / 'out') == digests(text / 'whole')
