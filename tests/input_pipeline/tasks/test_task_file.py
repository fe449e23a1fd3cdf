"""A user's own task file, right and wrong.

Whatever it holds, it is read or refused in one line that names the entry.
"""

from __future__ import annotations

import gzip
import json

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks import load_task

SQUAD = {
    'data': [{'paragraphs': [{'context': 'a b', 'qas': [
        {'id': '1', 'question': 'c', 'answers': [{'text': 'b', 'answer_start': 2}]},
    ]}]}]
}  # fmt: skip
DATA = {
    'train.tsv': 'text\tother\tlabel\na\tb\tpos\nc\td\tneg\n',
    'train.jsonl': (
        '{"text": "a b", "label": "pos", "answer": "b", "ends": ["x", "y"], "w": ["a"], "t":'
        ' ["O"]}\n'
    ),
    'train.txt': 'a O\nb B-X\n',
    'train.json': json.dumps(SQUAD),
}
_TEXTS = {'files': {'train': 'train.tsv'}, 'labels': ['neg', 'pos'], 'metrics': ['accuracy']}
TASKS = {
    'classification': (
        _TEXTS
        | {
            'columns': {'text': 'text', 'label': 'label'},
            'header': True,
            'format': 'tsv',
            'skip_bad_rows': False,
        }
    ),
    'pair': _TEXTS | {'columns': {'text': 'text', 'text_b': 'other', 'label': 'label'}},
    'span': {
        'files': {'train': 'train.json'},
        **dict.fromkeys(('doc_stride', 'max_query_length', 'max_answer_length', 'n_best'), 4),
        'unanswerable': False,
        'null_threshold': 0.0,
        'scorer': 'squad',
    },
    'tagging': {
        'files': {'train': 'train.txt'},
        'columns': {'tokens': 0, 'tags': 1},
        'labels': ['O', 'B-X', 'I-X'],
        'document_context': False,
        'comment': '#',
    },
    'choice': {
        'files': {'train': 'train.jsonl'},
        'columns': {'text': 'text', 'choices': 'ends', 'label': 'label'},
        'labels': ['neg', 'pos'],
    },
}


@pytest.fixture
def read(tmp_path):
    """Text or bytes of a task file, or a description -> its training examples."""
    for name, text in DATA.items():
        (tmp_path / name).write_text(text)

    def read_task(content, name='mine.json'):
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
        ({'labels': [['pos'], ['neg']]}, '"labels" is a list of texts or numbers'),
        ({'labels': ['1', 1]}, 'two or more different labels'),
        ({'files': {'train': 3}}, 'task mine: files.train: "file" is the name of a file, not 3'),
        ({'files': 'train.tsv'}, '"files" is an object of split -> file'),
        ({'files': {'train': []}}, 'files.train is an empty list'),
        ({'files': {'a/b': 'train.tsv'}}, "the name of a split is letters.* not 'a/b'"),
        ({'metrics': 'f1'}, '"metrics" is a list of different names'),
        ({'header': 'no'}, '"header" is true or false, not "no"'),
        (
            {'columns': {'text': True, 'label': 'label'}},
            '"columns" is an object of what -> the name or the place',
        ),
        (
            {'columns': {'text': ['text'], 'label': 'label'}},
            'columns.text is one column, not a list',
        ),
        (
            {'kind': 'tagging', 'columns': {'tokens': 'w'}, 'format': 'conll'},
            'columns.tokens: a column file has',
        ),
    ],
)
def test_the_line_says_which_entry_and_what_it_must_be(read, changes, message):
    with pytest.raises(UserError, match=message):
        read({'kind': 'classification', **TASKS['classification'], **changes})


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'{"kind": "\xe9"}', 'mine.json:1: byte 10 is not UTF-8'),
        ('[' * 100_000, 'nests too deep'),
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
        (
            'train.jsonl',
            r'{"text": "\ud83d", "label": "pos"}',
            "train.jsonl:1: 'text' holds half a character",
        ),
        ('train.jsonl', '[' * 100_000, 'train.jsonl: not JSON .it nests too deep'),
        (
            'train.jsonl',
            '{"a":' * 100_000,
            'train.jsonl:1: not JSON .it nests too deep',
        ),
        ('train.jsonl', '{"text": {"a": 1}, "label": "pos"}', "'text' is not a text or a number"),
        (
            'train.tsv',
            'text\ttext\tlabel\na\tb\tpos\n',
            "2 columns are named 'text': give the place",
        ),
        ('train.csv', 'text,label\n"a,pos\n', 'not CSV'),
        (
            'train.tsv.gz',
            gzip.compress(b'text\tlabel\na\tpos\n', mtime=0)[:-9],
            'train.tsv.gz: damaged gzip file',
        ),
    ],
)
def test_malformed_data_are_named_by_file_and_line(tmp_path, read, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = {
        'files': {'train': name},
        'columns': {'text': 'text', 'label': 'label'},
        'labels': ['neg', 'pos'],
    }
    with pytest.raises(UserError, match=message):
        read({'kind': 'classification', **settings})


def test_an_unreadable_file_is_one_line(tmp_path, read):
    (tmp_path / 'train.tsv').unlink()
    (tmp_path / 'train.tsv').mkdir()
    with pytest.raises(UserError, match='train.tsv: cannot be read .Is a directory'):
        read({'kind': 'classification', **TASKS['classification']})
    with pytest.raises(UserError, match='cannot be read .no such kind of address is known'):
        load_task('squad_v1', 'xx://there').examples('dev')
