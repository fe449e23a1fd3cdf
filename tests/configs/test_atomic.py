"""Files and folders are whole or absent."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
from etils import epath

from bert_jax.configs.files.atomic import atomic_folder, atomic_write
from tests.helpers.full_disk import files_of_at_most


def test_a_full_disk_is_told_with_the_file_and_keeps_what_is_there(tmp_path):
    path = tmp_path / 'data.json'
    atomic_write(path, 'x' * 400)
    with files_of_at_most(100):
        atomic_write(path, 'x' * 400)  # it holds that already: nothing is written
        with pytest.raises(OSError) as full:
            atomic_write(path, 'y' * 400)
    assert full.value.filename == str(path)
    assert path.read_text() == 'x' * 400 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('kind', [epath.Path, lambda path: path], ids=['epath', 'pathlib'])
def test_a_folder_appears_when_all_is_in_it(tmp_path, kind):
    (tmp_path / 'new').mkdir()  # empty, so it may be taken
    with atomic_folder(kind(tmp_path / 'new')) as folder:
        (folder / 'deep').mkdir()
        (folder / 'deep/a').write_text('a')
        assert not list((tmp_path / 'new').iterdir())
    assert (tmp_path / 'new/deep/a').read_text() == 'a'
    with pytest.raises(ZeroDivisionError), atomic_folder(kind(tmp_path / 'other')) as folder:
        (folder / 'a').write_text('a')
        1 / 0  # noqa: B018
    with pytest.raises((OSError, ValueError)), atomic_folder(kind(tmp_path / 'new')):
        pass  # what is there is not replaced
    assert list(tmp_path.iterdir()) == [tmp_path / 'new'] and (tmp_path / 'new/deep/a').exists()


def _fill(path, ready):
    with atomic_folder(path) as folder:
        (folder / 'half').write_text('half')
        ready.set()
        signal.pause()


def test_what_a_killed_process_left_goes_and_what_is_being_filled_stays(tmp_path):
    context = multiprocessing.get_context('spawn')
    ready = [context.Event(), context.Event()]
    processes = [
        context.Process(target=_fill, args=(tmp_path / name, event), daemon=True)
        for name, event in zip(['new', 'other'], ready)
    ]
    for process, event in zip(processes, ready):
        process.start()
        assert event.wait(60)
    users_own = tmp_path / '.new.mine.tmp'
    users_own.mkdir()
    try:
        with atomic_folder(tmp_path / 'new'):
            assert len(list(tmp_path.glob('.new.*.tmp'))) == 3  # the other process goes on
        (tmp_path / 'new').rmdir()
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].join()
        with atomic_folder(tmp_path / 'new') as folder:
            assert set(tmp_path.glob('.new.*.tmp')) == {folder, users_own}
        assert list(tmp_path.glob('.other.*.tmp'))
    finally:
        for process in processes:
            process.kill()
            process.join()
