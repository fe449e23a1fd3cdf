"""A corpus in units: small files together, large ones apart, and the same documents either way."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.input_pipeline.text import digest
from bert_jax.input_pipeline.text.corpus import TextOptions, read_documents, read_unit
from bert_jax.input_pipeline.text.listing import refuse_inside
from bert_jax.input_pipeline.text.units import units
from tests.helpers.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """100 small files of all kinds, and a larger one in their middle."""
    text = tmp_path / 'text'
    for i in range(100):
        path = text / f'{i % 7}' / f'{i:03}'
        path.parent.mkdir(parents=True, exist_ok=True)
        line = f'Text number {i}.'
        content = {
            0: f'{line}\n\nMore of {i}.\n'.encode(),
            1: gzip.compress(line.encode(), mtime=0),
            2: json.dumps({'text': line}).encode() + b'\n',
            3: f'<doc id="{i}" title="T">\nT\n\n{line}\n</doc>\n'.encode(),
            4: bz2.compress(json.dumps({'text': line}).encode() + b'\n'),
        }[i % 5]
        path.write_bytes(content)
    (text / '3' / '050.txt').write_text('Large.\n\n' * 20_000)
    return text


DEFAULT = TextOptions()


def documents(parts, options=DEFAULT):
    return [(each.name, each.sentences) for part in parts for each in read_unit(part, options)]


def test_documents_do_not_depend_on_what_is_put_together(folder, monkeypatch):
    together = documents(units(str(folder)))
    assert len(together) == 100 + 20 + 20_000
    assert together == [(each.name, each.sentences) for each in read_documents(str(folder))]
    for name, value in (('_MIN_UNIT_BYTES', 1), ('_UNIT_FILES', 7)):
        with monkeypatch.context() as patch:
            patch.setattr(f'bert_jax.input_pipeline.text.units.{name}', value)
            apart = units(str(folder))
            assert len(apart) > 4 and documents(apart) == together


def test_the_digests_are_those_of_single_files(folder):
    """As manifests have had them: of Python's lists of (name, place, bytes) and of checksums."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file())
    rows = [(name, 0, (folder / name).stat().st_size) for name in names]
    parts = units(str(folder))
    expected = hashlib.sha256(repr([rows, []]).encode()).hexdigest()
    assert digest.listing_digest(parts, []) == expected
    said = digest.describe([digest.marks(part) for part in parts])
    times = [(folder / name).stat().st_ctime_ns for name in names]
    assert said['input_times'] == hashlib.sha256(repr(times).encode()).hexdigest()


def test_a_small_file_that_changes_is_seen(folder):
    first, *_ = parts = units(str(folder))
    then = digest.marks(first)
    assert digest.same(first, then)
    path = next(first.files()).path
    content = Path(path).read_bytes()
    os.utime(path)  # touched, with the bytes it had
    assert digest.same(first, then) and digest.all_same([(first, then)])
    Path(path).write_bytes(content.replace(b'Text', b'Test'))
    assert not digest.same(first, then)
    assert not digest.as_described(parts, digest.describe([digest.marks(p) for p in parts[1:]]))


@pytest.mark.parametrize('form', ['text', 'parquet'])
@pytest.mark.parametrize('change', ['shorter', 'gone'])
def test_text_that_changes_after_it_was_listed_is_refused(tmp_path, form, change):
    path = tmp_path / 'a.parquet'
    write = {
        'text': lambda n: path.write_text('One.\n\n' * n),
        'parquet': lambda n: parquet.write_table(
            pa.table({'text': ['One.'] * n}), path, row_group_size=2
        ),
    }[form]
    write(20)
    parts = units(str(path), unit_bytes=40)
    assert len(parts) > 2 and len(documents(parts)) == 20
    if change == 'gone':
        path.unlink()
    else:
        write(4)
    for part in parts:
        with refused(r'a\.parquet: (has changed|cannot be read \(No such)'):
            documents([part])


INSIDE = '. text text/** text/**/*.txt text/*/* hf:text:train'.split()
OUTSIDE = 'other te* text/* text/*.txt text/**/*.jsonl text/a.txt hf:user/text:train'.split()


@pytest.mark.parametrize('pattern', [*INSIDE, *OUTSIDE])
def test_an_output_that_an_input_would_take_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    for name in ('text', 'other'):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'a.txt').write_text('A.\n')
    said = refused('--output=text/out: lies inside of')
    with said if pattern in INSIDE else contextlib.nullcontext():
        refuse_inside('output', 'text/out', [pattern], ['vocab.txt', 'manifest.json'])
    refuse_inside('output', 'textual/out', [pattern] if pattern != '.' else [], ['vocab.txt'])
