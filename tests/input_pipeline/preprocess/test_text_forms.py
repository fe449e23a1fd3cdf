"""The offline job on many small files, and on books whose lines a width has broken."""

from __future__ import annotations

import gzip
import textwrap

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.corpus import TextOptions
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


def test_files_as_documents_of_joined_lines(tmp_path, vocabulary, capsys):
    """They give the records of the same sentences, one a line."""
    (tmp_path / 'sentences').mkdir()
    for i, name in enumerate(vocabulary[2][:40]):
        path = tmp_path / 'sentences' / f'{name}.txt'
        (text,) = write_text(path, [name], i, sentences=(6, 12))

        # No full stops, which might end an abbreviation. A blank line after every third sentence
        # parts paragraphs, and no documents.
        lines = [line.capitalize().replace(' .', '!') for line in text.split('\n')]
        path.write_text('\n'.join(lines))
        paragraphs = [' '.join(lines[j : j + 3]) for j in range(0, len(lines), 3)]
        wrapped = '\n\n'.join(textwrap.fill(paragraph, 60) for paragraph in paragraphs)
        (tmp_path / f'{name}.txt').write_text(wrapped + '\n')
    options = {'eval_fraction': 0, 'workers': 2}
    expected = f'{tmp_path}/expected'
    run(tmp_path, vocabulary, input=f'{tmp_path}/sentences', output=expected, **options)
    assert 'broken at a width' not in capsys.readouterr().err

    # As it is, each line would be a sentence, and that is said.
    plain = run(tmp_path, vocabulary, output=f'{tmp_path}/plain', **options)
    (said,) = (line for line in plain.statistics['warnings'] if 'broken at a width' in line)
    assert said in capsys.readouterr().err and '--join_lines' in said

    text = TextOptions(join_lines=True, documents='file')
    joined = run(tmp_path, vocabulary, text=text, **options)
    assert digests(tmp_path / 'out') == digests(tmp_path / 'expected') and len(digests(expected))
    assert joined.options['join_lines'] is True and joined.options['documents'] == 'file'
    assert 'join_lines' not in plain.options
    with pytest.raises(UserError, match='another job .*join_lines is True there and None here'):
        run(tmp_path, vocabulary, **options)
