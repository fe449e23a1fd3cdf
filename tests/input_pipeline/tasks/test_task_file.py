"""A user's own task file, right and wrong.

Whatever it holds, it is read or refused in one line that names the entry.
"""

from __future__ import annotations

import json

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks import load_task

DATA = 'text\tother\tlabel\na\tb\tpos\nc\td\tneg\n'
TASK = {
    'kind': 'classification',
    'files': {'train': 'train.tsv'},
    'columns': {'text': 'text', 'label': 'label'},
    'labels': ['neg', 'pos'],
}
TAGS = {'kind': 'tagging', 'labels': ['O', 'B-X'], 'files': {'train': 'a.conll'}}
SPAN = {'kind': 'span', 'labels': None, 'columns': None, 'files': {'train': 'a.json'}}


@pytest.fixture
def read(tmp_path):
    """Text or bytes of a task file, or a description -> its training examples."""
    (tmp_path / 'train.tsv').write_text(DATA)

    def read_task(content, name='mine.json'):
        if isinstance(content, dict):  # what is None is left out
            content = {name: value for name, value in (TASK | content).items() if value is not None}
        text = json.dumps(content) if isinstance(content, dict) else content
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_task(str(tmp_path / name)).examples('train')

    return read_task


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'kind': ['pair']}, r'mine.json: "kind" is a text, not \["pair"\]'),
        (
            {'labels': 2},
            r'"labels" is a list of texts or numbers, as in \["neg", "pos"\], or.*, not 2',
        ),
        ({'labels': ['1', 1]}, 'two or more different labels'),
        ({'files': {'train': 3}}, 'task mine: files.train: "file" is the name of a file, not 3'),
        ({'files': 'train.tsv'}, '"files" is an object of split -> file'),
        ({'files': {'train': []}}, 'files.train is an empty list'),
        ({'files': {'a/b': 'train.tsv'}}, "the name of a split is letters.* not 'a/b'"),
        ({'metrics': ['f1', 'f1']}, '"metrics" is a list of different names'),
        ({'header': 'no'}, '"header" is true or false, not "no"'),
        ({'columns': {'text': True}}, '"columns" is an object of what -> the name or the place'),
        ({'columns': {'text': ['text'], 'label': 'label'}}, 'columns.text is one column, not a li'),
        ({'columns': {'text': 'text', 'lable': 'label'}}, r"unknown columns \['lable'\]"),
        ({'kind': 'guess'}, "kind 'guess' is none of classification"),
        ({'kind': 'pair'}, r"which column is \['text_b'\]"),
        ({'labels': None}, r"missing entries \['labels'\]"),
        ({'metrics': ['rouge']}, "metric 'rouge' is none of accuracy"),
        ({'only': ['de']}, r'"only" is an object of column -> what stands there'),
        ({'colums': {}}, r"unknown entries \['colums'\]"),
        ({'files': {'train': {'path': 'x'}}}, 'files.train=.*expected a file name'),
        (TAGS | {'columns': {'tokens': 'w'}, 'format': 'conll'}, 'columns.tokens: a column file'),
        (TAGS | {'columns': None, 'only': {'tag': 'O'}}, '"only" is for tables, not for .*a.conll'),
        (SPAN | {'only': {'id': '1'}}, 'a.json: "only" is for tables with columns'),
    ],
)
def test_the_line_says_which_entry_and_what_it_must_be(read, changes, message):
    with pytest.raises(UserError, match=message):
        read(changes)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'{"kind": "\xe9"}', 'mine.json:1: byte 10 is not UTF-8'),
        ('{"kind": ' * 100_000, 'nests too deep'),
        ('{"kind": "pair", "kind": "span"}', "'kind' is there more than once"),
        ('', 'not JSON'),
        ('["pair"]', 'a task file is a JSON object with "kind"'),
    ],
)
def test_a_file_that_is_no_json_object(read, content, message):
    with pytest.raises(UserError, match=message):
        read(content)


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        (
            'train.jsonl',
            '{"text": null, "label": "pos"}',
            "train.jsonl:1: 'text' for 'text' is null",
        ),
        ('train.jsonl', r'{"text": "\ud83d", "label": "pos"}', "1: 'text' holds half a character"),
        ('train.jsonl', '[' * 100_000, 'train.jsonl: not JSON .it nests too deep'),
        ('train.jsonl', '{"text": {"a": 1}, "label": "pos"}', "'text' is not a text or a number"),
        ('train.jsonl', '["a"]', 'entry 0: not a JSON object'),
        ('train.csv', 'text,label\n"a,pos\n', 'not CSV'),
        ('train.tsv', 'text\ttext\tlabel\na\tb\tpos\n', "2 columns are named 'text': give the"),
        ('train.tsv', 'text\tlabel\na\tgreat\n', "train.tsv:2: unknown label 'great'; task mine"),
        (
            'train.tsv',
            'text\tlabel\na\tb\tpos\n',
            r'train.tsv:2: 3 columns where the first line has 2',
        ),
        ('train.tsv', 'sentence\tlabel\na\tpos\n', "no column 'text' for 'text'; it has 2: senten"),
        ('train.tsv', 'text\tlabel\n', 'train.tsv: no examples'),
        (
            'train.tsv',
            b'\xef\xbb\xbftext\tlabel\n\xff\tpos\n',
            r'train.tsv:2: byte 14 is not UTF-8',
        ),
    ],
)
def test_malformed_data_are_named_by_file_and_line(tmp_path, read, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        read({'files': {'train': name}})
    assert '\n' not in str(caught.value)


def test_an_unreadable_file_is_one_line(tmp_path, read):
    (tmp_path / 'train.tsv').unlink()
    (tmp_path / 'train.tsv').mkdir()
    with pytest.raises(UserError, match='train.tsv: cannot be read .Is a directory'):
        read({})
    with pytest.raises(UserError, match='cannot be read .no such kind of address is known'):
        load_task('squad_v1', 'xx://there').examples('dev')
