"""Records streamed from files of every format, compressed or not, and what is said of faults."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text import encodings, files
from bert_jax.input_pipeline.text.record_files import BadRecord, Reader, parse_columns, parse_shard
from tests.helpers.refusals import refused


@pytest.fixture
def read(tmp_path):
    def read(
        name: str, content: str | bytes, required=('text',), optional=('text_b', 'id'), **settings
    ):
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
        return list(Reader(str(tmp_path / name), required, optional, **settings))

    return read


def test_each_format(read):
    a, b = {'text': 'a "b', 'text_b': 'c', 'id': '7'}, {'text': 'é', 'text_b': 'f', 'id': '8'}
    only = lambda *texts: [{'text': text} for text in texts]
    cases = (
        ('x.tsv', 'id\ttext_b\ttext\n7\tc\ta "b\n8\tf\té\n', {}, (2, 3), [a, b]),
        ('x.csv', 'id,text,text_b\r\n7,"a ""b",c\r\n8,é,f', {}, (2, 3), [a, b]),
        ('x.jsonl', '\n\n'.join(map(json.dumps, (a | {'id': 7}, b))), {}, (1, 3), [a, b]),
        ('x.txt', 'one\n\ntwo\u2028\tx\n', {}, (1, 2, 3), only('one', '', 'two\u2028\tx')),
        ('x.csv', 'text\n"two\nlines"\nlast\n', {}, (2, 4), only('two\nlines', 'last')),
        ('x.tsv', 's\nt\n', {'columns': {'text': 's'}}, (2,), only('t')),
        ('x.jsonl', '{"t": ["a", 1]}', {'columns': {'text': 't'}}, (1,), only(['a', '1'])),
        ('x.txt.gz', gzip.compress(b'\xef\xbb\xbfone\ntwo'), {}, (1, 2), only('one', 'two')),
    )
    for name, content, settings, numbers, records in cases:
        assert read(name, content, **settings) == list(zip(numbers, records, strict=True))
    settings = {'form': 'tsv', 'header': False, 'columns': {'text': 1, 'id': 0}}
    assert read('x', 'a\tb\n', **settings) == [(1, {'text': 'b', 'id': 'a'})]


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / 'x.txt'
    path.write_text('one\n')
    records = iter(Reader(str(path), ('text',)))
    next(records)
    path.write_text('one\ntwo\nthree\n')
    with refused(r'x\.txt: has changed since the reading began'):
        list(records)


@pytest.mark.parametrize(
    'name, content, reason',
    [
        (
            'x.tsv',
            'text\tid\nx\ty\tz\n',
            '3 columns where the first line has 2 (a tab inside a text?)',
        ),
        ('x.jsonl', '{"text": \n', 'not JSON'),
        ('x.jsonl', '{"txt": "a"}\n', "no 'text' for 'text'; it has txt"),
        ('x.txt', b'\xff\n', 'byte 0 of the line is not UTF-8'),
    ],
)
def test_a_bad_record_is_one_of_its_own(read, name, content, reason):
    *_, (_, found) = read(name, content)
    assert isinstance(found, BadRecord) and reason in found.reason


@pytest.mark.parametrize(
    'name, content, settings, message',
    [
        (
            'x.tsv',
            'a\tb\n1\t2\n',
            {},
            "no column 'text' for 'text'; it has 2: a, b; name it as in --columns=text=NAME",
        ),
        ('x.txt', '', {}, 'no records in it'),
        ('x.tsv', 'text\n1\n', {'columns': {'text_b': 'there'}}, "no column 'there' for 'text_b'"),
        ('x.foo', 'text\n', {}, 'cannot tell the format from the name'),
        (
            'x.txt',
            'text\n',
            {'required': ('question', 'context')},
            'reads question and context, and a line of text is one',
        ),
        (
            'x.txt',
            '1\tA.\n2\tB.\n3\tC.\n',
            {},
            'is TSV: end its name in .tsv (and say --columns=text=',
        ),
        ('x.txt.gz', gzip.compress(b'one\n' * 1000, mtime=0)[:-9], {}, 'damaged gzip file'),
    ],
)
def test_what_cannot_be_read_is_refused(read, name, content, settings, message):
    with pytest.raises(UserError) as error:
        read(name, content, **settings)
    assert message in str(error.value)


def test_flags():
    assert parse_columns('text=a b,id=-1') == {'text': 'a b', 'id': -1} and parse_columns('') == {}
    assert parse_shard('2/4') == (2, 4)


@pytest.mark.parametrize(
    'parse, text, said',
    [
        *((parse_shard, text, '--shard=') for text in ('4/4', '1', 'a/b', '-1/2', '0/0')),
        (parse_columns, 'text', 'write ROLE=COLUMN'),
        (lambda path: list(Reader(path, ('text',))), '/nowhere.txt', 'No such file'),
    ],
)
def test_what_is_no_flag_is_refused(parse, text, said):
    with refused(said):
        parse(text)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / 'texts.tsv')
    for read in (encodings.read_utf8, files.open_file):
        with refused('texts.tsv: is no file but a pipe'):
            read(str(tmp_path / 'texts.tsv'))
