"""What of a corpus is read, and what is refused: files, folders, formats and prepared datasets."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path

import pytest

from bert_jax.input_pipeline.records.tfrecord import frame_records
from bert_jax.input_pipeline.text.corpus import (
    Report,
    TextOptions,
    read_documents,
)
from bert_jax.input_pipeline.text.listing import matching
from tests.helpers.refusals import refused
from tests.helpers.texts import put, read

TEXT = 'One sentence.\nAnother one.\n\nA second document.\n'

DUMP = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n<siteinfo>\n</siteinfo>\n'
    '<page>\n<title>A</title>\n<text>One.</text>\n</page>\n</mediawiki>'
)


@pytest.mark.parametrize(
    'name, content, message',
    [
        ('a.txt', TEXT.encode('utf-16'), 'UTF-16'),
        ('a.txt', TEXT.replace('\n', '\r').encode(), 'CR alone'),
        ('a.bin', random.Random(0).randbytes(5000).replace(b'\0', b''), 'not text'),
        ('a.jsonl', b'{"text": "a"}\n{"a" 1}', r'line 2: not valid JSON \(.* delimiter: column 6'),
        ('a.xml', DUMP, r'a\.xml: is a MediaWiki XML dump: .*WikiExtractor'),
        ('a', '<TEI>\n<p>A.</p>\n<p>B.</p>\n', 'is XML'),
        ('a', '<head><title>A.</title></head>\n<body>\nA.\n', 'is HTML'),
        ('a.csv', 'text\nA.\n', r'a\.csv: is CSV.*hf:/.*:train.*--text_column; where'),
        ('a', 'id,text\n1,"A, ""b""\nc."\n2,B.\n3,C.\n', 'is CSV'),
    ],
)
def test_what_is_not_text_is_refused_with_the_way_out(tmp_path, name, content, message):
    with refused(message):
        read(put(tmp_path / name, content))


@pytest.mark.parametrize(
    'content',
    [
        f'A text that mentions\n{DUMP}\n<html>\n',
        '<unk> begins it.\nAnd goes on.\nAnd ends.\n',
        '<anna> Hello.\n<ben> Hi <b>there</b>.\n<anna> Bye.\n',
        'One, two.\nThree, four.\nFive, six.\n',
        '\tOne.\n\tTwo.\n\tThree.\n',
        '{} is a set.\nSo is it.\n',
    ],
)
def test_text_that_looks_like_something_else_is_read(tmp_path, content):
    lines = [line.strip() for line in content.split('\n') if line.strip()]
    assert read(put(tmp_path / 'a', content)) == [lines]


class TestTfds:
    """A prepared dataset as tfds lays it down; tfds itself says where the files are."""

    @pytest.fixture
    def prepared(self, tmp_path, monkeypatch):
        pytest.importorskip('tensorflow_datasets')
        folder = tmp_path / 'tfds' / 'made_text' / '1.0.0'
        core = 'tensorflow_datasets.core.features'
        text = {'pythonClassName': f'{core}.text_feature.Text', 'text': {}}
        group = lambda **features: {
            'pythonClassName': f'{core}.features_dict.FeaturesDict',
            'featuresDict': {'features': features},
        }
        features = group(text=text, inner=group(body=text))
        split = {
            'name': 'train',
            'shardLengths': ['2', '1'],
            'numBytes': '100',
            'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
        }
        info = {'name': 'made_text', 'version': '1.0.0', 'fileFormat': 'tfrecord'}
        put(folder / 'features.json', json.dumps(features))
        put(folder / 'dataset_info.json', json.dumps(info | {'splits': [split]}))
        for i, texts in enumerate([['One. Two.\nThree.', 'Vier.'], ['', 'Five.']]):
            records = [self.example(text.encode(), b'inner %d' % i) for text in texts]
            put(folder / f'made_text-train.tfrecord-0000{i}-of-00002', frame_records(records))
        monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'tfds'))
        return folder

    def example(self, text, inner):
        """A tf.train.Example written out by hand."""
        field = lambda number, content: bytes([number << 3 | 2, len(content)]) + content
        entries = [
            field(1, field(1, key) + field(2, field(1, field(1, value))))
            for key, value in ((b'inner/body', inner), (b'text', text))
        ]
        return field(1, b''.join(entries))

    def test_files_are_units_and_records_are_documents(self, prepared):
        before = set(sys.modules)
        found = list(read_documents('tfds:made_text/train'))
        assert [d.sentences for d in found] == [['One.', 'Two.', 'Three.'], ['Vier.'], ['Five.']]
        assert [d.name[0][-14:-9] for d in found] == ['00000', '00000', '00001']
        options = TextOptions(text_column='inner/body')
        assert next(read_documents('tfds:made_text/train', options)).sentences == ['inner 0']
        assert not {'tensorflow', 'jax'} & (set(sys.modules) - before)

    @pytest.mark.parametrize(
        'pattern, column, said',
        [
            (
                'tfds:made_text/train',
                'body',
                r"no text in column 'body' .it has inner/body, text.*--text_column",
            ),
            ('tfds:ag_news_subset/train', 'text', 'run tfds build ag_news_subset'),
        ],
    )
    def test_what_is_refused(self, prepared, pattern, column, said):
        with refused(said):
            read(pattern, text_column=column)


class TestWhatIsNotRead:
    """Text that lies there and is not taken is named; what cannot be read is refused."""

    def said(self, pattern):
        report = Report()
        found = read(pattern, report)
        return len(found), ' '.join(report.lines())

    def test_links_to_folders_hidden_files_and_pipes_are_named(self, tmp_path):
        put(tmp_path / 'text/a.txt', TEXT)
        put(tmp_path / 'text/.b.txt', TEXT)
        put(tmp_path / 'elsewhere/c.txt', TEXT)
        os.symlink(tmp_path / 'elsewhere', tmp_path / 'text/link')
        os.symlink(tmp_path / 'elsewhere/c.txt', tmp_path / 'text/d.txt')
        os.mkfifo(tmp_path / 'text/pipe')
        found, said = self.said(tmp_path / 'text')
        assert found == 4 and '3 left out, not read: ' in said
        for name in ('link (a link to a folder', '.b.txt (hidden)', 'pipe (no regular file)'):
            assert f'{tmp_path}/text/{name}' in said
        found, said = self.said(tmp_path / 'text/**/*.txt')  # which matches hidden ones too
        assert found == 6 and f'1 left out, not read: {tmp_path}/text/link' in said
        with refused('no file matches .*pipe.*no regular file'):
            read(tmp_path / 'text/pipe')

    @pytest.fixture
    def locked(self):
        """A folder of a file and a folder that may not be read, seen by one who is not root."""
        with tempfile.TemporaryDirectory() as folder:
            root, closed = Path(folder), Path(folder, 'closed')
            put(root / 'a.txt', TEXT)
            put(closed / 'b.txt', TEXT)
            put(root / 'secret.txt', TEXT).chmod(0)
            closed.chmod(0)
            root.chmod(0o755)
            user = os.geteuid()
            if user == 0:
                os.seteuid(65534)
            yield root
            os.seteuid(user)
            closed.chmod(0o755)

    @pytest.mark.parametrize('pattern', ['**/*.txt', 'closed/b.txt'])
    def test_a_folder_that_may_not_be_read_is_refused(self, locked, pattern):
        with refused('closed.*: cannot be read .Permission denied'):
            matching(str(locked / pattern))

    def test_a_name_that_is_not_utf8_is_refused(self, tmp_path):
        put(tmp_path / os.fsdecode(b'caf\xe9.txt'), TEXT)
        with refused(r'caf.udce9.txt: .*name is not UTF-8') as error:
            read(tmp_path)
        str(error.value).encode()


def test_absolute_and_relative_inputs_together(tmp_path, monkeypatch):
    put(tmp_path / 'x/a.txt', 'A.')
    put(tmp_path / 'y/b.txt', 'B.')
    monkeypatch.chdir(tmp_path / 'x')
    for given in (['a.txt', f'{tmp_path}/y/*.txt'], [f'../y/b.txt,{tmp_path}/x']):
        assert [d.name[0] for d in read_documents(given)] == ['x/a.txt', 'y/b.txt']
    assert [d.name[0] for d in read_documents(['a.txt', f'{tmp_path}/x/a.txt'])] == ['a.txt']
