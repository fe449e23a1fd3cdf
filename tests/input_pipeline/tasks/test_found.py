"""A table becomes a task by its looks, or the line says which option settles it."""

from __future__ import annotations

import json

import pytest

from bert_jax.input_pipeline.tasks.found import find
from tests.helpers.refusals import refused

# Sixty rows of each: texts in any script, labels of any kind.
N = 60
TEXTS = [f'a sentence of some words, number {i}' for i in range(N)]
OTHERS = [f'and what follows it, {i} times' for i in range(N)]
MOODS = [('good', 'bad')[i % 2] for i in range(N)]
MEASURED = [f'{i % 7 / 2:.1f}' for i in range(N)]
# Sentences of four words.
WHICH = [i // 4 for i in range(4 * N)]
FIRSTS = ['' if i % 4 else f'Sentence: {i}' for i in range(4 * N)]
WORDS = [f'word{i}' for i in range(4 * N)]
TAGS = ['O', 'B-LOC', 'I-LOC', 'O'] * N
PLACES = {'text': 0, 'label': 1}


def table(*columns, header='', separator='\t'):
    rows = [separator.join(map(str, row)) for row in zip(*columns, strict=True)]
    return '\n'.join([header.replace(' ', separator), *rows] if header else rows) + '\n'


def lines(**columns):
    rows = zip(*columns.values(), strict=True)
    return ''.join(json.dumps(dict(zip(columns, row, strict=True))) + '\n' for row in rows)


CLEAR = {
    'named': (
        table(range(N), TEXTS, MOODS, header='id text label'),
        {'kind': 'classification', 'columns': {'text': 'text', 'label': 'label'}},
    ),
    'without names': (
        table(TEXTS, MOODS),
        {'kind': 'classification', 'columns': PLACES, 'header': False},
    ),
    'unknown names': (
        table(MOODS, TEXTS, header='Stimmung Satz'),
        {'kind': 'classification', 'columns': {'text': 'Satz', 'label': 'Stimmung'}},
    ),
    'counted pair': (
        table(MOODS, range(N), TEXTS, OTHERS, header='Quality #1ID #1String #2String'),
        {'columns': {'text': '#1String', 'text_b': '#2String', 'label': 'Quality'}},
    ),
    'pair without names': (
        table(TEXTS, OTHERS, MOODS),
        {'columns': {'text': 0, 'text_b': 1, 'label': 2}, 'header': False},
    ),
    'measure': (
        table(TEXTS, OTHERS, MEASURED, header='text1 text2 score'),
        {'kind': 'regression', 'labels': None},
    ),
    'numbers of classes': (
        table(TEXTS, [i % 3 for i in range(N)], header='text label'),
        {'kind': 'classification', 'labels': ['0', '1', '2']},
    ),
    'tagged jsonl': (
        lines(tokens=[['New', 'York']] * N, ner_tags=[['B-LOC', 'I-LOC'], ['O', 'O']] * (N // 2)),
        {'kind': 'tagging', 'columns': {'tokens': 'tokens', 'tags': 'ner_tags'}},
    ),
    'tagged words.csv': (
        table(
            WHICH, WORDS, ['N', 'V'] * 120, TAGS, header='Sentence_ID Word POS Tag', separator=','
        ),
        {
            'kind': 'tagging',
            'columns': {'sentence': 'Sentence_ID', 'tags': 'Tag', 'tokens': 'Word'},
            'labels': ['O', 'B-LOC', 'I-LOC'],
            'format': None,
        },
    ),
    'words of which the first has the number': (
        table(FIRSTS, WORDS, TAGS, header='Sentence Word Tag'),
        {
            'columns': {'sentence': 'Sentence', 'tags': 'Tag', 'tokens': 'Word'},
            'format': 'tsv',
        },
    ),
    'words.csv with semicolons and unknown names': (
        '\ufeff' + table(WHICH, WORDS, TAGS, header='Satz Wort Marke', separator=';'),
        {'kind': 'tagging', 'columns': {'sentence': 'Satz', 'tags': 'Marke', 'tokens': 'Wort'}},
    ),
    'words without names': (
        table(WHICH, WORDS, TAGS),
        {'columns': {'sentence': 0, 'tags': 2, 'tokens': 1}, 'header': False},
    ),
    'words and tags with blanks between': (
        table(TEXTS, ['O B-LOC O O O O O'] * N, header='tokens tags'),
        {'kind': 'tagging', 'columns': {'tokens': 'tokens', 'tags': 'tags'}, 'format': 'tsv'},
    ),
    'column file': (
        'He O\nleft O\n\nNew B-LOC\nYork I-LOC\n\n' * 9,
        {'kind': 'tagging', 'labels': ['O', 'B-LOC', 'I-LOC'], 'columns': None},
    ),
}


def written(tmp_path, name, text):
    end = 'jsonl' if 'jsonl' in name else 'csv' if 'csv' in name else 'tsv'
    (tmp_path / f'mine.{end}').write_text(text)
    (tmp_path / f'dev.{end}').write_text(text)
    return str(tmp_path / f'mine.{end}'), str(tmp_path / f'dev.{end}')


@pytest.mark.parametrize('name', CLEAR)
def test_what_is_clear_is_found(tmp_path, name):
    text, expected = CLEAR[name]
    train, dev = written(tmp_path, name, text)
    found = find(train, dev)
    assert {key: found.description.get(key) for key in expected} == expected
    assert found.description['files'] == {'train': train, 'dev': dev}
    assert found.name == 'mine'
    assert json.loads(found.text) == found.description
    assert len(found.task.examples('dev')) in (N, 18)


UNCLEAR = {
    'stars': (
        table(TEXTS, [i % 5 + 1 for i in range(N)], header='review stars'),
        "'stars' has 5 whole numbers, 1 to 5: give --kind=classification where",
        {'kind': 'regression'},
    ),
    'two labels': (
        table(TEXTS, MOODS, MOODS[::-1], header='text colour taste'),
        "columns 'colour', 'taste' may each be the label: say which, as in --columns=text=NAME,lab",
        {'columns': 'label=taste'},
    ),
    'two texts': (
        table(TEXTS, OTHERS, MOODS, header='title abstract label'),
        "'title', 'abstract' are both texts: give --columns=text=title,text_b=abstract for a pair",
        {'columns': 'text=abstract'},
    ),
    'header or not': (
        table([f'word{i}' for i in range(3)], [f'{i}th' for i in range(3)]),
        r'does the first row name the columns \(word0, 0th\)\? Give --header=true or',
        {},
    ),
    'no label': (
        table(TEXTS, OTHERS, header='text title'),
        "columns 'text', 'title' do not look like labels: say which",
        {},
    ),
    'one column': (
        table(TEXTS, MOODS, separator=';'),
        'one column as it is read, and a text and its label are two: save it with tabs as .tsv',
        {},
    ),
    'one label': (
        table(TEXTS, ['good'] * N, header='text label'), "it has the label 'good' alone", {}
    ),
    'cases': (
        table(TEXTS, ['pos', 'Pos', 'neg'] * (N // 3), header='text label'),
        "mine.tsv:3: label 'Pos', and 'pos' at .*spell them alike",
        {},
    ),
    'numbers of sentences that come again': (
        table([i // 4 % 9 for i in range(4 * N)], WORDS, TAGS, header='sentence word tag'),
        "'sentence', 'tag' may each be the label: .*, or --columns=sentence=NAME,tokens=NAME,",
        {'columns': 'sentence=sentence,tokens=word,tags=tag'},
    ),
    'nothing': ('', 'mine.tsv: no examples', {}),
    'names alone': ('text\tlabel\n', 'mine.tsv: no examples below the names of its columns', {}),
    'few rows': (
        table(TEXTS[:8], MOODS[:8], header='text label'),
        'of its rows would be its dev split: too few; name a file with --dev',
        {'dev': 'dev.tsv'},
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', UNCLEAR)
def test_what_is_unclear_is_a_line_with_the_option_that_settles_it(tmp_path, name, monkeypatch):
    text, message, settled = UNCLEAR[name]
    train, _ = written(tmp_path, name, text)
    monkeypatch.chdir(tmp_path)
    with refused(message):
        find(train)
    if settled:
        assert find(train, **{'dev': train, **settled}).description['kind']


def test_without_a_dev_file_rows_are_held_out(tmp_path):
    rows = [f'sentence number {i}' for i in range(300)]
    train, _ = written(tmp_path, 'tsv', table(rows, (MOODS * 5)[:300], header='text label'))
    found = find(train)
    assert found.description['dev_share'] == 0.1
    assert found.task.selection_split == 'dev'
    train_rows, dev = (found.task.examples(split) for split in ('train', 'dev'))
    assert len(train_rows) + len(dev) == 300
    assert 15 < len(dev) < 50


WORDS_ALONE = table(WORDS, TAGS, header='word tag', separator=',')
TOWNS = [('in', f'town{i}') for i in range(200)]
TAGGED = {
    'words.csv': 'sentence,word,tag\n'
    + ''.join(f'{i},{a},O\n{i},{b},B-LOC\n' for i, (a, b) in enumerate(TOWNS)),
    'lists.jsonl': lines(tokens=TOWNS, tags=[['O', 'B-LOC']] * len(TOWNS)),
    'columns.tsv': ''.join(f'{a} O\n{b} B-LOC\n\n' for a, b in TOWNS),
}


@pytest.mark.parametrize('name', TAGGED)
def test_of_tagged_words_whole_sentences_are_held_out(tmp_path, name):
    (tmp_path / name).write_text(TAGGED[name])
    task = find(str(tmp_path / name)).task
    train, dev = ([e.words for e in task.examples(split)] for split in ('train', 'dev'))
    assert sorted(train + dev) == sorted(TOWNS)
    assert 10 < len(dev) < 35
    assert [example.id for example in task.examples('dev')][:2] == ['0', '1']


@pytest.mark.parametrize(
    ('table', 'options', 'message'),
    [
        ('mine.tsv', {'kind': 'span'}, '--kind=span: of a table it is one of'),
        ('mine.tsv', {'columns': 'label=x'}, "no column 'x' for 'label' in .*; it has id"),
        ('none.tsv', {}, '--task=.*none.tsv: no such file'),
        ('words.csv', {'kind': 'tagging'}, 'the same for all words of a sentence'),
    ],
)
def test_an_option_that_does_not_fit_the_table(tmp_path, table, options, message):
    train, _ = written(tmp_path, 'tsv', CLEAR['named'][0])
    (tmp_path / 'words.csv').write_text(WORDS_ALONE)
    with refused(message):
        find(train.replace('mine.tsv', table), **options)


@pytest.mark.parametrize(
    ('name', 'label', 'message'),
    [
        ('named', 'great', "dev.tsv:2: unknown label 'great'; task mine has bad, goo"),
        ('named', 'GOOD', "unknown label 'GOOD'; .*: spell it as 'good'"),
        ('without names', 'good', "dev.tsv:1: unknown label 'label'"),
    ],
)
def test_labels_of_dev_that_are_not_those_of_train(tmp_path, name, label, message):
    train, dev = written(tmp_path, 'tsv', CLEAR[name][0])
    (tmp_path / 'dev.tsv').write_text(table(TEXTS, [label] * N, header='text label'))
    with refused(message):
        find(train, dev).task.examples('dev')


def test_parquet_and_data_sets_of_the_hub(tmp_path):
    datasets = pytest.importorskip('datasets')
    features = datasets.Features(
        text=datasets.Value('string'), label=datasets.ClassLabel(names=['neg', 'pos'])
    )
    rows = {'text': TEXTS, 'label': [i % 2 for i in range(N)]}
    (tmp_path / 'set').mkdir()
    data = datasets.Dataset.from_dict(rows, features)
    for split in ('train', 'test'):
        data.to_parquet(str(tmp_path / f'set/{split}.parquet'))
    found = find(str(tmp_path / 'set/train.parquet'), str(tmp_path / 'set/test.parquet'))
    assert (found.name, found.description['labels']) == ('set', ['0', '1'])

    # A data set says what its numbers mean.
    found = find(f'hf:{tmp_path}/set:train', f'hf:{tmp_path}/set:test')
    assert found.description['labels'] == {'0': 'neg', '1': 'pos'}
    assert found.task.labels == ('neg', 'pos')
    assert [example.label for example in found.task.examples('dev')[:3]] == [0, 1, 0]
