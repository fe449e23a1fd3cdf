"""A user's own task file, right and wrong.

Whatever it holds, it is read or refused in one line that names the entry.
"""

from __future__ import annotations

import json

import pytest

from bert_jax.input_pipeline.tasks.load_task import load_task
from tests.helpers.refusals import refused

DATA = 'text\tother\tlabel\na\tb\tpos\nc\td\tneg\n'
TASK = {
    'kind': 'classification',
    'files': {'train': 'train.tsv'},
    'columns': {'text': 'text', 'label': 'label'},
    'labels': ['neg', 'pos'],
}
TAGS = {'kind': 'tagging', 'labels': ['O', 'B-X'], 'files': {'train': 'a.conll'}}


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
    'content, message',
    [
        ({'kind': ['pair']}, r'mine.json: "kind" is a text, not \["pair"\]'),
        ({'labels': 2}, r'"labels" is a list of texts or numbers, as in .*, not 2'),
        ({'labels': ['1', 1]}, 'two or more different labels'),
        ({'files': {'a/b': 'train.tsv'}}, "the name of a split is letters.* not 'a/b'"),
        ({'columns': {'text': 'text', 'lable': 'label'}}, r"unknown columns \['lable'\]"),
        ({'dev_share': 1}, '"dev_share" must be between 0 and 1, not 1'),
        ({'kind': 'guess'}, "kind 'guess' is none of classification"),
        ({'files': {'train': {'file': 'a.tsv', 'size': 1}}}, "files.train: unknown .*'size'"),
        ({'colums': {}}, r"unknown entries \['colums'\]"),
        (TAGS | {'columns': {'tokens': 'w'}, 'format': 'conll'}, 'columns.tokens: a column file'),
        ('{"kind": "pair", "kind": "span"}', "'kind' is there more than once"),
        ('', 'not JSON'),
        ('["pair"]', 'a task file is a JSON object with "kind"'),
    ],
)
def test_the_line_says_which_entry_and_what_it_must_be(read, content, message):
    with refused(message):
        read(content)


LABELLED = {
    'one.tsv': ('a\tpos\nb\tpos\n', "one.tsv: it has the label 'pos' alone"),
    'case.tsv': (
        'a\tpos\nb\tPos\n',
        'case.tsv:3: label \'Pos\', and \'pos\' at .*case.tsv:2: spell .*"labels": {"pos": "pos"',
    ),
    'free.tsv': (
        ''.join(f'a\tlabel {i}\n' for i in range(30)),
        'free.tsv: 30 different labels in 30 rows: is it the column',
    ),
}


@pytest.mark.parametrize(
    'name, content, message',
    [
        ('train.jsonl', r'{"text": "\ud83d", "label": "pos"}', "1: 'text' holds half a character"),
        ('train.csv', 'text,label\n"a,pos\n', 'not CSV'),
        ('train.tsv', 'text\ttext\tlabel\na\tb\tpos\n', "2 columns are named 'text': give the"),
        ('train.tsv', 'sentence\tlabel\na\tpos\n', "no column 'text' for 'text'; it has 2: senten"),
        ('train.tsv', 'text\tlabel\n', 'train.tsv: no examples'),
        (
            'train.tsv',
            b'\xef\xbb\xbftext\tlabel\n\xff\tpos\n',
            r'train.tsv:2: byte 14 is not UTF-8',
        ),
        # Labels that nobody lists, where they are none.
        *((name, f'text\tlabel\n{rows}', message) for name, (rows, message) in LABELLED.items()),
    ],
)
def test_malformed_data_are_named_by_file_and_line(tmp_path, read, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    labels = {'labels': None} if name in LABELLED else {}
    with refused(message):
        read({'files': {'train': name}} | labels)


def test_an_unreadable_file_is_one_line(tmp_path, read):
    (tmp_path / 'train.tsv').unlink()
    (tmp_path / 'train.tsv').mkdir()
    with refused('train.tsv: cannot be read .Is a directory'):
        read({})
    with refused('cannot be read .no such kind of address is known'):
        load_task('squad_v1', 'xx://there').examples('dev')


def loaded(tmp_path, **description):
    (tmp_path / 'mine.json').write_text(json.dumps(description))
    return load_task(str(tmp_path / 'mine.json'))


def test_labels_are_those_of_the_training_files(tmp_path):
    rows = ['b\t10', 'c\t9', 'a\t10']
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + '\n'.join(rows))
    (tmp_path / 'dev.tsv').write_text('text\tlabel\nb\t8')
    (tmp_path / 'tags.conll').write_text('He O\nsaw O\nNew I-LOC\nYork I-LOC\n\nHi O\n')
    files = {'train': 'train.tsv', 'dev': 'dev.tsv'}
    columns = {'text': 'text', 'label': 'label'}
    task = loaded(tmp_path, kind='classification', files=files, columns=columns)
    assert task.labels == ('9', '10'), 'numbers by what they are'
    with refused("dev.tsv:2: unknown label '8'; task mine has 9, 10"):
        task.examples('dev')

    # Several spellings of one label, and tags of entities, whatever their scheme.
    named = {'9': 'few', '10': 'many', '8': 'few'}
    task = loaded(tmp_path, kind='classification', files=files, columns=columns, labels=named)
    assert task.labels == ('few', 'many')
    assert [example.label for example in task.examples('dev')] == [0]
    tagging = loaded(tmp_path, kind='tagging', files={'train': 'tags.conll'})
    assert tagging.labels == ('O', 'B-LOC', 'I-LOC')
    assert tagging.metrics == ('entity_f1',)


def test_a_share_is_held_out_by_its_texts(tmp_path):
    # Every text twice, with either label: both rows are on the same side.
    rows = [f'{text}\t{label}' for text in range(100) for label in ('a', 'b')]
    (tmp_path / 'train.tsv').write_text('text\tlabel\n' + '\n'.join(rows))

    def split(**entries):
        columns = {'text': 'text', 'label': 'label'}
        task = loaded(
            tmp_path,
            kind='classification',
            files={'train': 'train.tsv'},
            columns=columns,
            **entries,
        )
        assert task.selection_split == 'dev'
        return [[example.text for example in task.examples(s)] for s in ('train', 'dev')]

    train, dev = split(dev_share=0.25)
    assert len(train) + len(dev) == 200
    assert 30 < len(dev) < 70
    assert not set(train) & set(dev)
    assert split(dev_share=0.25) == [train, dev]
    assert split(dev_share=0.25, dev_seed=1) != [train, dev]
    # more is held out of the same rows, and none comes back
    assert set(dev) < set(split(dev_share=0.5)[1])
