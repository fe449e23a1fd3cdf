"""Tasks cut from text: labels are not given away, test rows are from held-out text alone."""

from __future__ import annotations

import collections
import hashlib
import json
import random

import pytest

from configs.errors import UserError
from input_pipeline.tasks import load_task
from input_pipeline.tokenizer import Tokenizer
from input_pipeline.tokenizer.wordpiece import Normalizer
from launch.demo import pieces, tasks
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
    outside = {f'{d.group} {d.name}' for d in docstrings if d.held_out}
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
    task = load_task(str(tasks.document_task(articles, tokenizer, 26, tmp_path / 'documents')))
    assert (task.kind, len(task.examples('dev'))) == ('classification', 120)


@pytest.fixture
def tokenizer():
    """Of single letters: a word has as many pieces as letters, a mark is one more."""
    letters = 'abcdefghijklmnopqrstuvwxyz'
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', ',', '一', '二', '三', '四', '五']
    entries = [*words, *letters, *(f'##{letter}' for letter in letters)]
    return Tokenizer('wordpiece', '\n'.join(entries).encode(), Normalizer(True, True))


@pytest.fixture
def articles():
    """Documents in parts of one passage, one part in four held out.

    doc0 to doc11 have 40 parts and more, doc12 has too few. A passage names its document by its
    first word.
    """
    source = random.Random(3)
    words = [a + b for a in 'bcdfgh' for b in 'aeiou']
    return [
        Document(
            f'doc{i}',
            f'doc{i} {part}',
            '',
            (f'{chr(97 + i)} {" ".join(source.sample(words, 9))}.', 'short.'),
            held_out=part % 4 == 0,
        )
        for i in range(13)
        for part in range(40 + 4 * i if i < 12 else 12)
    ]


def test_document_task(tmp_path, articles, tokenizer):
    """The ten documents of most passages, balanced; no part of one lies on both sides."""
    path = tasks.document_task(articles, tokenizer, 26, str(tmp_path))
    task = json.loads(path.read_text())
    assert task['labels'] == sorted(f'doc{i}' for i in range(2, 12))
    outside = {article.group for article in articles if article.held_out}
    for split, size in (('train', 36), ('dev', 12)):  # of doc2, the smallest: 48 parts
        lines = (tmp_path / task['files'][split]).read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        labels = collections.Counter(row['label'] for row in rows)
        assert labels == dict.fromkeys(task['labels'], size)
        assert len({row['label'] for row in rows[:12]}) > 2  # shuffled
        for row in rows:
            assert row['label'] == f'doc{ord(row["text"][0]) - 97}'
            assert (row['source'].rsplit(' ', 1)[0] in outside) == (split == 'dev')
            assert 13 <= len(tokenizer.encode(row['text'])) <= 26
    with pytest.raises(UserError, match='1 of the documents have 20 passages or more: too few'):
        tasks.document_task([a for a in articles if a.label == 'doc0'], tokenizer, 26, tmp_path)


def test_of_documents_that_have_enough_a_hash_chooses(tmp_path, articles, tokenizer, monkeypatch):
    """All twelve have 30 passages to learn from and 10 held out: the largest are not preferred."""
    monkeypatch.setattr(tasks, 'ENOUGH_TRAIN', 30)
    monkeypatch.setattr(tasks, 'ENOUGH_HELD_OUT', 10)
    task = json.loads(tasks.document_task(articles, tokenizer, 26, str(tmp_path)).read_text())
    by_hash = sorted(
        (f'doc{i}' for i in range(12)), key=lambda name: hashlib.sha256(name.encode()).digest()
    )
    assert task['labels'] == sorted(by_hash[:10]) != sorted(f'doc{i}' for i in range(2, 12))

    # One side does not make up for the other: of 12 held out doc0 has 10, and doc1 has 11.
    monkeypatch.setattr(tasks, 'ENOUGH_HELD_OUT', 12)
    task = json.loads(tasks.document_task(articles, tokenizer, 26, str(tmp_path)).read_text())
    assert task['labels'] == sorted(f'doc{i}' for i in range(2, 12))


def test_passages(tokenizer):
    """As many sentences as fit; a long one is cut, a short rest left out."""
    passages = lambda *sentences: list(pieces.passages(sentences, tokenizer, 6))
    assert passages('ab', 'cd', 'ef', 'gh') == ['ab cd ef']
    assert passages('ab', 'cd', 'efghi', 'jk') == ['ab cd', 'efghi']
    assert passages('ab cd ef gh ij kl') == ['ab cd ef', 'gh ij kl']
    assert passages() == []


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
