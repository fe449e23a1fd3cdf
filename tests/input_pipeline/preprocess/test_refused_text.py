"""Text that is refused in its middle: what was read stays, and the mended job goes on."""

from __future__ import annotations

import json
import os

import pytest

from bert_jax.input_pipeline.preprocess import job
from tests.helpers.files import write_lines
from tests.helpers.jobs import digests, run, write_text
from tests.helpers.refusals import refused

BAD = '{"text": "waa wab'


@pytest.fixture
def folder(tmp_path, vocabulary):
    """Four files of jsonl, the third with a bad line."""
    for place, name in enumerate('abcd'):
        texts = write_text(tmp_path / 'text', vocabulary[2][30 * place : 30 * place + 30], place)
        lines = [json.dumps({'text': text}) for text in texts]
        if name == 'c':
            lines.insert(7, BAD)
        write_lines(tmp_path / f'{name}.jsonl', lines)
    return tmp_path


@pytest.fixture
def units_read(monkeypatch):
    """The names of the units that the job reads, as it reads them; each file is one."""
    names = []
    monkeypatch.setattr('bert_jax.input_pipeline.text.units._UNIT_FILES', 1)
    read = job.corpus.read_unit

    def noted(unit, *arguments):
        names.extend(file.name for file in unit.files())
        return read(unit, *arguments)

    monkeypatch.setattr(job.corpus, 'read_unit', noted)
    return names


@pytest.fixture
def start(folder, vocabulary):
    """Runs the job; once it ends well, a new one must have made the same bytes and manifest."""

    def start(**options):
        options = {'input': f'{folder}/*.jsonl', 'eval_fraction': 0.1} | options
        manifest = run(folder, vocabulary, **options)
        run(folder, vocabulary, **options | {'output': f'{folder}/fresh'})
        assert digests(folder / 'out') and digests(folder / 'out') == digests(folder / 'fresh')
        made = ((folder / name / 'manifest.json').read_text() for name in ('out', 'fresh'))
        assert len(set(map(str, map(json.loads, made)))) == 1
        assert not (folder / 'out' / '.tmp').exists()
        return manifest

    return start


@pytest.fixture
def ended(folder, start, units_read):
    """After a first attempt, which ends at the bad line."""
    with (folder / 'b.jsonl').open('a') as file:
        file.write('{"text": null}\n')
    with refused(r'c\.jsonl line 8: not valid JSON.*goes on from there'):
        start()
    assert units_read == ['a.jsonl', 'b.jsonl', 'c.jsonl']
    assert {path.name for path in (folder / 'out').iterdir()} <= {'.tmp', '.lock'}
    units_read.clear()


def mend(folder):
    text = (folder / 'c.jsonl').read_text()
    (folder / 'c.jsonl').write_text(text.replace(BAD, '{"text": "waa wab ."}'))


def test_after_the_option_is_mended(ended, start, units_read):
    """Nulls, which only skipping counts, are read again."""
    manifest = start(on_bad_record='skip')
    assert units_read[:3] == ['b.jsonl', 'c.jsonl', 'd.jsonl']
    assert manifest.statistics['bad_records'] == {'input': {'not JSON': 1, 'null': 1}}
    (warning,) = (said for said in manifest.statistics['warnings'] if 'left out' in said)
    assert '1 not JSON' in warning and 'c.jsonl line 8' in warning


def test_files_that_changed_came_and_went_meanwhile(folder, ended, start, units_read, capsys):
    mend(folder)
    text = (folder / 'a.jsonl').read_text()
    (folder / 'a.jsonl').write_text(text.replace('waa', 'wab'))  # of the same size
    (folder / 'd.jsonl').rename(folder / 'aa.jsonl')  # in front of what stays
    manifest = start()
    assert units_read[:3] == ['a.jsonl', 'aa.jsonl', 'c.jsonl']
    assert 'goes on, with 1 part(s) of the text read' in capsys.readouterr().out
    # Jobs of before there was the option are still known as done.
    assert 'on_bad_record' not in manifest.options and 'bad_records' not in manifest.statistics


def test_a_file_that_changes_while_it_is_read_ends_the_job(folder, start, units_read, monkeypatch):
    mend(folder)
    path, read = folder / 'c.jsonl', job.corpus.read_unit

    def changing(unit, *arguments):
        for number, document in enumerate(read(unit, *arguments)):
            if number == 29 and document.name[0] == path.name:
                before = path.stat()
                path.write_text(path.read_text().replace('waa', 'wab'))
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # its times set back
            yield document

    monkeypatch.setattr(job.corpus, 'read_unit', changing)
    said = r'c\.jsonl: has changed since the reading.*goes on from there'
    with refused(said):
        start()
    monkeypatch.setattr(job.corpus, 'read_unit', read)
    start()  # what was read of the others stays; the text is now what the file holds
