"""Files and folders are whole or absent."""

from __future__ import annotations

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
