"""Tasks cut from text: labels are not given away, test rows are from held-out text alone."""

from __future__ import annotations

import collections
import dataclasses
import json
import random
import re

import pytest

from configs.errors import UserError
from input_pipeline.tasks import load_task
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer.wordpiece import Normalizer
from launch.demo import pieces, tasks, word_order
from launch.demo.text_split import Document


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('Use np.array or jax.numpy.sum with a jaxpr.', 'Use array or sum with a .'),
        ('A KerasTensor, TFRecord; plt.plot of is_tf', 'A , ; plot of'),
        ('In TensorFlow and NumPy-like scikit-learn code', 'In and like learn code'),
        ('see tf.keras.layers.Dense.', 'see layers.Dense.'),
        (
            'The platform and the input of an FFT are x-axis values.',
            'The platform and the input of an FFT are x-axis values.',
        ),
    ],
)
def test_names_are_removed(text, expected):
    assert (
        tasks.NameRemover(['jax', 'numpy', 'tensorflow', 'keras', 'matplotlib', 'sklearn'])(text)
        == expected
    )


@pytest.fixture
def docstrings():
    """Three packages of 60 documents and one of 8, one in four held out.

    Their sentences name their own package in every way.
    """
    found = []
    for label in ('numpy', 'jax', 'keras', 'tensorflow'):
        for i in range(60 if label != 'tensorflow' else 8):
            sentences = (
                f'Number {i} of {label} does things to np.array and tf.Tensor.',
                f'Call {label.capitalize()}Thing {i} twice.',
                f'First import {label} as it is.',
            )
            found.append(Document(label, f'{label}/m{i}.py', 'f', sentences, held_out=i % 4 == 0))
    return found


def test_library_task(tmp_path, docstrings):
    task_file = tasks.library_task(docstrings, tmp_path, min_train=20, min_held_out=5)
    task = json.loads(task_file.read_text())
    assert task['kind'] == 'classification' and task['labels'] == ['jax', 'keras', 'numpy']
    outside = {f'{d.group}:{d.name}' for d in docstrings if d.held_out}
    for split in ('train', 'dev'):
        rows = [
            json.loads(line) for line in (tmp_path / task['files'][split]).read_text().splitlines()
        ]
        assert len(set(collections.Counter(row['label'] for row in rows).values())) == 1
        assert {row['source'] in outside for row in rows} == {split == 'dev'}
        for row in rows:
            assert not any(
                name in row['text'].lower()
                for name in ('numpy', 'jax', 'keras', 'np', 'tf', 'import')
            ), row
            assert 'does things to array and Tensor.' in row['text']
        assert len({row['label'] for row in rows[:12]}) > 1  # shuffled, not sorted by label
    with pytest.raises(UserError, match='1 of the installed packages'):
        tasks.library_task([d for d in docstrings if d.label == 'jax'], tmp_path, 20, 5)


def test_task_files_load_as_tasks(tmp_path, docstrings, articles, tokenizer):
    """The JSON files are what launch.finetune reads."""
    task = load_task(str(tasks.library_task(docstrings, tmp_path / 'library', 20, 5)))
    assert (task.kind, len(task.examples('train')), len(task.examples('dev'))) == (
        'classification',
        3 * 45,
        3 * 15,
    )
    path = word_order.word_order_task(articles, tokenizer, 30, str(tmp_path / 'order'))
    task = load_task(str(path))
    assert (task.kind, len(task.examples('dev'))) == ('classification', 240)


@pytest.fixture
def tokenizer():
    """Of single letters: a word has as many pieces as letters, a mark is one more."""
    letters = 'abcdefghijklmnopqrstuvwxyz'
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', ',', '一', '二', '三', '四', '五']
    entries = [*words, *letters, *(f'##{letter}' for letter in letters)]
    return Tokenizer('wordpiece', '\n'.join(entries).encode(), Normalizer(True, True))


@pytest.fixture
def articles():
    """120 documents of many words; one in four is held out, and each sentence names its document
    by its first word.
    """
    source = random.Random(3)
    words = [a + b for a in 'bcdfgh' for b in 'aeiou']
    return [
        Document(
            '',
            f'doc{i}',
            '',
            tuple(
                f'{chr(97 + i // 26)}{chr(97 + i % 26)} {" ".join(source.sample(words, 9))} end.'
                for _ in range(8)
            ),
            held_out=i % 4 == 0,
        )
        for i in range(120)
    ]


def test_word_order_task(tmp_path, articles, tokenizer):
    """Nothing but the order of the words tells the label, and sides are kept apart."""
    path = word_order.word_order_task(articles, tokenizer, 30, str(tmp_path))
    task = json.loads(path.read_text())
    assert task['labels'] == ['ordered', 'disordered']
    written = {sentence for article in articles for sentence in article.sentences}
    words_of = {frozenset(sentence.split()): sentence.split() for sentence in written}
    for split, count in (('train', 90 * 8), ('dev', 30 * 8)):
        lines = (tmp_path / task['files'][split]).read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert len(rows) == count
        labels = collections.Counter(row['label'] for row in rows)
        assert labels['ordered'] == labels['disordered']
        for row in rows:
            # The same words in the same numbers; the first and the last stay.
            now = row['text'].split()
            before = words_of[frozenset(now)]
            assert (now == before) == (row['label'] == 'ordered') == (row['text'] in written)
            assert (now[0], now[-1]) == (before[0], before[-1])
            assert all(abs(now.index(word) - before.index(word)) <= 1 for word in before)
            assert len(tokenizer.encode(row['text'])) <= 30
            number = 26 * (ord(now[0][0]) - 97) + ord(now[0][1]) - 97
            assert (number % 4 == 0) == (split == 'dev')
    with pytest.raises(UserError, match='0 passages for the dev split, 20 are needed'):
        word_order.word_order_task(articles[1:4], tokenizer, 30, str(tmp_path))


def test_long_documents_do_not_make_up_the_task(tmp_path, articles, tokenizer, monkeypatch):
    long = dataclasses.replace(
        articles[1], sentences=tuple(s for article in articles[::4] for s in article.sentences)
    )
    monkeypatch.setattr(tasks, 'MAX_TRAIN', 100)
    path = word_order.word_order_task([*articles, long], tokenizer, 30, str(tmp_path))
    rows = [
        json.loads(line) for line in (path.parent / tasks.FILES['train']).read_text().splitlines()
    ]
    of_document = collections.Counter(row['source'].split()[0] for row in rows)
    assert len(rows) == 100 and len(of_document) == 90 and max(of_document.values()) <= 4


@pytest.mark.parametrize(
    ('sentence', 'expected'),
    [
        ('Aa bb cc, dd dd ee ff.', [('bb', 'cc'), ('dd', 'ee')]),
        ('Aa (bb) cc dd.', []),
        ('Aa bb.', []),
        ('一二三四五', [('二', '三'), ('三', '四')]),
    ],
)
def test_neighbours(sentence, expected):
    """Not across marks, not at the ends, not of a word with itself."""
    found = [(sentence[slice(*a)], sentence[slice(*b)]) for a, b in word_order.neighbours(sentence)]
    assert found == expected


def test_disordered():
    passage = ['Aa bb cc dd ee ff, gg hh ii jj kk.', 'Xx yy.']
    found = word_order.disordered(passage, 'name')
    assert found == word_order.disordered(passage, 'name')
    assert any(found != word_order.disordered(passage, other) for other in 'abcdefgh')
    assert sorted(found[0].split()) != found[0].split() and found[1] == 'Xx yy.'
    assert sorted(re.findall('[a-z]+', found[0].lower())) == re.findall(
        '[a-z]+', passage[0].lower()
    )
    assert re.sub('[A-Za-z]', '', found[0]) == re.sub('[A-Za-z]', '', passage[0])


def test_parts(tokenizer):
    """Of about equal length and cut between words, but where one is too long by itself."""
    parts = lambda text: pieces.parts(text, tokenizer, 6)
    assert parts('ab cd ef') == ['ab cd ef']
    assert parts('ab cd ef gh') == ['ab cd', 'ef gh']
    assert parts('a bcdef gh, ij') == ['a bcdef', 'gh, ij']
    assert parts('abcdefgh') == ['abcd', 'efgh']
    assert parts('') == parts(' ') == ['']


def test_lines(tmp_path, tokenizer):
    """Borders of documents stay what they are."""
    (tmp_path / 'text').mkdir()
    for name in ('train.txt', 'held_out.txt'):
        (tmp_path / 'text' / name).write_text('ab cd ef gh\nab\n\ncd\n\n')
    pieces.write_lines(tmp_path / 'text', tmp_path / 'lines', tokenizer, 6)
    for name in ('train.txt', 'held_out.txt'):
        assert (tmp_path / 'lines' / name).read_text() == 'ab cd\nef gh\nab\n\ncd\n\n'
