"""Documents and sentences from files of every form, and what is said about damaged ones."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from bert_jax.input_pipeline.text import corpus
from bert_jax.input_pipeline.text.corpus import (
    Report,
    TextOptions,
    read_documents,
    read_unit,
    units,
)
from tests.helpers.refusals import refused
from tests.helpers.texts import put, read

TEXT = 'One sentence.\nAnother one.\n\nA second document.\n'
DOCUMENTS = [['One sentence.', 'Another one.'], ['A second document.']]


@pytest.mark.parametrize(
    'content',
    [
        TEXT.replace('\n', '\r\n'),
        '\ufeff' + TEXT,
        '\n\n' + TEXT + '\n \t\n',
        TEXT.rstrip('\n'),
        TEXT.replace('\n\n', '\n\u3000\n'),
    ],
)
def test_line_ends_and_blank_lines(tmp_path, content):
    assert read(put(tmp_path / 'a.txt', content)) == DOCUMENTS


@pytest.mark.parametrize(
    'compress', [gzip.compress, bz2.compress, lzma.compress, zstandard.compress]
)
class TestCompressed:
    def test_is_told_by_content(self, tmp_path, compress):
        assert read(put(tmp_path / 'no_extension', compress(TEXT.encode()))) == DOCUMENTS

    def test_truncated_or_damaged_is_refused_by_name(self, tmp_path, compress):
        content = compress(os.urandom(4000).hex().encode())
        damaged = [content[:-5], content[:1500]]
        if compress is not zstandard.compress:  # by default it writes no checksum
            damaged.append(content[:1000] + b'garbage' + content[1007:])
        for bad in damaged:
            with refused('broken.*damaged'):
                read(put(tmp_path / 'broken', bad))


def test_names_are_relative_and_carry_the_offset_of_the_first_line(tmp_path):
    put(tmp_path / 'x/b.txt', '\n\n' + TEXT)
    put(tmp_path / 'x/y/a.txt.gz', gzip.compress(('\ufeff' + TEXT).encode()))
    second = TEXT.index('A second')
    plain, packed = 'x/b.txt', 'x/y/a.txt.gz'
    names = [(plain, 2), (plain, 2 + second), (packed, 0), (packed, 3 + second)]
    for pattern in ('**/*', '', '**'):
        assert [d.name for d in read_documents(str(tmp_path / pattern))] == names


@pytest.mark.parametrize('kind', ['text', 'crlf', 'jsonl', 'wiki'])
def test_units_give_every_document_once_in_order(tmp_path, kind):
    documents = [
        [f'Sentence {i} {j} é.' * (i % 4 + 1) for j in range(i % 5 + 1)] for i in range(60)
    ]
    newline = '\r\n' if kind == 'crlf' else '\n'
    if kind == 'jsonl':
        parts = [json.dumps({'text': '\n'.join(d)}) + '\n' for d in documents]
    elif kind == 'wiki':
        parts = ['<doc title="T">\nT\n\n' + '\n\n'.join(d) + '\n</doc>\n' for d in documents]
    else:
        parts = [newline.join([*d, '', '']) for d in documents]
    path = put(tmp_path / ('a.jsonl' if kind == 'jsonl' else 'a'), ''.join(parts))
    options = TextOptions(segment=False)
    parts = units(str(path), options, unit_bytes=50)
    assert sum(unit.bytes for unit in parts) == path.stat().st_size
    assert len(parts) > 20
    found = [d for unit in parts for d in read_unit(unit, options)]
    assert [d.sentences for d in found] == documents
    assert [d.name for d in found] == [d.name for d in read_documents(str(path), options)]
    assert len({d.name for d in found}) == len(documents)


class TestParagraphs:
    TEXT = 'Dr. Smith went home. He slept.\nA new paragraph! Is it?\n'

    @pytest.mark.parametrize('title', ['A & B', 'A &amp; B'])
    def test_the_title_that_wikiextractor_repeats_is_no_sentence(self, tmp_path, title):
        expected = [['Dr. Smith went home.', 'He slept.', 'A new paragraph!', 'Is it?']] * 2
        article = f'{title}\n\n{self.TEXT}'
        doc = f'<doc id="1" url="u" title="A &amp; B">\n{article}\n</doc>\n'
        assert read(put(tmp_path / 'doc', doc * 2)) == expected
        record = {'id': '1', 'revid': '2', 'url': 'u', 'title': title, 'text': article}
        assert read(put(tmp_path / 'json', f'{json.dumps(record)}\n' * 2)) == expected

        # Other jsonl says what is its text, and that is read as it is.
        record = {'body': article}
        found = read(put(tmp_path / 'a.jsonl', json.dumps(record)), text_column='body')
        assert found == [[title, *expected[0]]]

    def test_language(self, tmp_path):
        assert read(put(tmp_path / 'a.txt', '我来了。你呢？'), segment=True, language='zh') == [
            ['我来了。', '你呢？']
        ]
        # Of Khmer and Tibetan the ends of sentences are known here, whatever the language.
        for language, sentences in (
            ('km', ['ខ្ញុំអាន។', 'គាត់ទៅ៕»', 'ផ្សារ ។ល។', 'ពួកគេ']),
            ('bo', ['༄༅། །བོད་སྐད།', 'ང་རང་ལ།།', 'འགྲོ་༎ །', 'ང་ཡོད']),
        ):
            for between in (' ', ''):
                path = put(tmp_path / f'{language}{between}.txt', between.join(sentences))
                assert read(path, segment=True, language=language) == [sentences]
        with refused('--language=german'):
            TextOptions(language='german')


class TestBadUtf8:
    CONTENT = b'Good.\nBad \xff\xfe here.\n\nFine.\n' + b'x\xe9\n' * 6

    def test_replace_keeps_the_line_and_says_where(self, tmp_path):
        report = Report()
        found = read(put(tmp_path / 'a.txt', self.CONTENT), report)
        assert found == [['Good.', 'Bad \ufffd\ufffd here.'], ['Fine.'] + ['x\ufffd'] * 6]
        assert report.bad_utf8 == 7 and len(report.bad_places) == 5
        assert 'a.txt line 2' in report.lines()[0] and 'a.txt line 8 ...' in report.lines()[0]

    def test_line_numbers_count_over_the_whole_file_in_every_unit(self, tmp_path):
        path, report = put(tmp_path / 'a.txt', b'Fine.\n\n' * 100 + b'\xff\n'), Report()
        for unit in units(str(path), unit_bytes=50):
            list(read_unit(unit, TextOptions(), report))
        assert report.bad_places == [f'{path} line 201']


class TestLongLines:
    @pytest.mark.parametrize(
        'content',
        [b'word ' * 300_000 + b'\nnext\n', b'x' + b' ' * 1_200_000 + b'y\n'],
    )
    def test_are_cut_at_white_space_and_stay_one_document(self, tmp_path, content):
        report = Report()
        (sentences,) = read(put(tmp_path / 'a.txt', content), report, max_line_bytes=10_000)
        assert ' '.join(sentences).split() == content.decode().split()
        assert max(map(len, sentences)) <= 10_000
        assert report.cut_lines == 1 and report.lines()

    def test_without_white_space_are_cut_between_characters(self, tmp_path):
        report, content = Report(), 'xx' + '한국어' * 50_000
        (sentences,) = read(put(tmp_path / 'a.txt', content), report, max_line_bytes=1000)
        assert ''.join(sentences) == content and (report.bad_utf8, report.cut_lines) == (0, 1)


class TestParquet:
    """pyarrow writes, and says what a column holds."""

    def put(self, path, column, **options):
        parquet.write_table(
            pa.table({'id': list(range(len(column))), 'text': column}), path, **options
        )
        return path

    def test_row_groups_are_units_and_rows_are_documents(self, tmp_path):
        texts = ['Ä one. And two.\nThree.', '', None, 'Four.', ' \n ', 'Five.\n\nSix.']
        path = self.put(tmp_path / 'a.parquet', texts, row_group_size=2, compression='zstd')
        parts = units(str(path))
        assert [unit.start for unit in parts] == [0, 1, 2] and all(unit.bytes for unit in parts)
        found = [d for unit in parts for d in read_unit(unit)]
        assert [d.name for d in found] == [('a.parquet', 0), ('a.parquet', 3), ('a.parquet', 5)]
        documents = [['Ä one.', 'And two.', 'Three.'], ['Four.'], ['Five.', 'Six.']]
        assert [d.sentences for d in found] == documents

    @pytest.mark.parametrize(
        'name, column, said',
        [
            (
                'a.parquet',
                'body',
                r"a.parquet: no text in column 'body' .it has id, text.*--text",
            ),
            ('a.parquet', 'id', r"column 'id' holds int64 and not text"),
            ('two.parquet', 'text', "two.parquet: has 2 columns named 'text'"),
            ('b.parquet.gz', 'text', 'parquet file inside gzip: unpack it'),
            ('cut', 'text', 'damaged parquet file'),
            ('flipped', 'text', 'damaged parquet file'),
        ],
    )
    def test_what_is_refused(self, tmp_path, name, column, said):
        whole = self.put(tmp_path / 'a.parquet', ['One.']).read_bytes()
        put(tmp_path / 'cut', whole[:-200])
        put(tmp_path / 'b.parquet.gz', gzip.compress(whole))
        checked = {'write_page_checksum': True, 'compression': 'none'}
        sound = self.put(tmp_path / 'c.parquet', ['One and some more.'], **checked).read_bytes()
        put(tmp_path / 'flipped', sound.replace(b'some', b'same', 1))
        twice = pa.Table.from_arrays([pa.array(['One.'])] * 2, names=['text', 'text'])
        parquet.write_table(twice, tmp_path / 'two.parquet')
        with refused(said):
            read(tmp_path / name, text_column=column)


def test_documents_without_an_end_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, 'MAX_DOCUMENT_LINES', 100)
    report = Report()
    assert [len(d) for d in read(put(tmp_path / 'a.txt', 'a b.\n' * 250), report)] == [100, 100, 50]
    assert report.cut_documents == 2 and 'no end of a document' in report.lines()[0]
    wiki = put(tmp_path / 'b.txt', '<doc id="1">\n' + 'a b.\n' * 250 + '</doc>\n')
    assert [len(d) for d in read(wiki)] == [100, 100, 50]


def test_a_document_in_one_record(tmp_path, monkeypatch):
    """Its long lines are cut as those of text are, and it may not be larger than memory allows."""
    report, text = Report(), 'word ' * 1000
    path = put(tmp_path / 'a.jsonl', json.dumps({'text': 'a'}) + '\n' + json.dumps({'text': text}))
    _, sentences = read(path, report, max_line_bytes=100)
    assert max(map(len, sentences)) <= 100 and report.cut_lines == 1
    assert ' '.join(sentences).split() == text.split()
    monkeypatch.setattr(corpus, 'MAX_DOCUMENT_BYTES', 1000)
    with refused('a.jsonl line 2: longer than .* MiB: jsonl has one object'):
        read(path)


class TestWikiExtractor:
    def article(self, number, end='\n</doc>\n'):
        return f'<doc id="{number}" title="T{number}">\nT{number}\n\nText {number}.{end}'

    def test_an_article_without_its_end_is_read_and_counted(self, tmp_path):
        unclosed = {0, 1, 9}
        articles = (self.article(i, '\n' if i in unclosed else '\n</doc>\n') for i in range(10))
        report = Report()
        found = read(put(tmp_path / 'wiki', ''.join(articles)), report)
        assert found == [[f'Text {i}.'] for i in range(10)]
        assert report.unclosed_documents == len(unclosed)
        assert f'no </doc> for {len(unclosed)} <doc>' in ' '.join(report.lines())
