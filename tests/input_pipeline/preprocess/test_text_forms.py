"""The offline job on many small files, and on books whose lines a width has broken."""

from __future__ import annotations

import gzip

import pytest

from bert_jax.configs.errors import UserError
from tests.helpers.jobs import digests, run, write_text


@pytest.fixture
def small_files(tmp_path, vocabulary):
    """60 files of a document each, in two folders, some compressed."""
    for i, name in enumerate(vocabulary[2][:60]):
        path = tmp_path / 'text' / str(i % 2) / f'{i}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, [name], seed=i)
        if i % 3 == 0:
            path.with_suffix('.gz').write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            path.unlink()
    return tmp_path / 'text'


def test_records_do_not_depend_on_how_small_files_are_put_together(
    tmp_path, small_files, vocabulary, monkeypatch
):
    options = {'input': str(small_files), 'eval_fraction': 0.2, 'num_shards': 2}
    one = run(tmp_path, vocabulary, **options)
    text = one.statistics['text']
    assert text['train']['documents'] + text['eval']['documents'] == 60

    # A file a unit, by two workers: the same records, and the same manifest.
    monkeypatch.setattr('bert_jax.input_pipeline.text.inputs.units._UNIT_FILES', 1)
    other = run(tmp_path, vocabulary, output=f'{tmp_path}/two', workers=2, **options)
    assert one == other and digests(tmp_path / 'two') == digests(tmp_path / 'out')

    # So the job is known again, until a file changes.
    run(tmp_path, vocabulary, **options)
    path = next(small_files.rglob('*.txt'))
    path.write_text(path.read_text().replace('.', '!'))
    with pytest.raises(UserError, match='the input files have changed'):
        run(tmp_path, vocabulary, **options)
