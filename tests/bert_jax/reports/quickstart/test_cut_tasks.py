"""Tasks cut from text: labels are not given away, test rows are from held-out text alone."""

from __future__ import annotations

import collections
import random

import pytest

from bert_jax.input_pipeline.tasks import load_task
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.reports.quickstart import pieces, tasks
from bert_jax.reports.quickstart.text_split import Document
from tests.helpers.files import read_json, read_jsonl
from tests.helpers.refusals import refused


def test_names_are_removed():
    remove = tasks.NameRemover(['jax', 'numpy', 'tensorflow', 'keras', 'matplotlib', 'sklearn'])
    plain = 'The platform and the input of an FFT are x-axis values.'
    for text, expected in (
        ('Use np.array or jax.numpy.sum with a jaxpr.', 'Use array or sum with a .'),
        ('A KerasTensor, TFRecord; plt.plot of is_tf', 'A , ; plot of'),
        ('In TensorFlow and NumPy-like scikit-learn code', 'In and like learn code'),
        ('see tf.keras.layers.Dense or a-np.b', 'see layers.Dense or a.b'),
        (plain, plain),
    ):
        assert remove(text) == expected


def rows_of(folder, split):
    return read_jsonl(folder / read_json(folder / 'task.json')['files'][split])


def test_library_task(tmp_path):
    """Three packages of 60 documents and one of 8, whose sentences name them in every way."""
    documents = [
        Document(
            label,
            f'{label}/m{i}.py',
            'f',
            (
                f'Number {i} of {label} does things to np.array and tf.Tensor.',
                f'Call {label.capitalize()}Thing {i} twice.',
                f'First import {label} as it is.',
            ),
            held_out=i % 4 == 0,
        )
        for label in ('numpy', 'jax', 'keras', 'tensorflow')
        for i in range(60 if label != 'tensorflow' else 8)
    ]
    tasks.library_task(documents, tmp_path, min_train=20, min_held_out=5)
    task = load_task(f'{tmp_path}/task.json')
    assert (task.kind, list(task.labels)) == ('classification', ['jax', 'keras', 'numpy'])
    outside = {f'{d.group} {d.name}' for d in documents if d.held_out}
    for split, count in (('train', 45), ('dev', 15)):
        rows = rows_of(tmp_path, split)
        labels = collections.Counter(row['label'] for row in rows)
        assert labels == dict.fromkeys(task.labels, count)
        assert {row['source'] in outside for row in rows} == {split == 'dev'}
        for text in (row['text'] for row in rows):
            names = ('numpy', 'jax', 'keras', 'np', 'tf', 'import')
            assert not any(name in text.lower() for name in names), text
            assert 'does things to array and Tensor.' in text
        assert len({row['label'] for row in rows[:12]}) > 1  # shuffled, not sorted by label
    with refused('1 of the installed packages'):
        tasks.library_task([d for d in documents if d.label == 'jax'], tmp_path, 20, 5)


@pytest.fixture(scope='module')
def tokenizer():
    """Of single letters: a word has as many pieces as letters, a mark is one more."""
    letters = 'abcdefghijklmnopqrstuvwxyz'
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'.,一二三四五']
    entries = [*words, *letters, *(f'##{letter}' for letter in letters)]
    return Tokenizer.of_kind('wordpiece', '\n'.join(entries).encode(), Normalizer(True, True))


def test_mixing_task(tmp_path, tokenizer):
    """Every second word of a mixed pair is the other's: exchanged back, two passages are there.

    A part is a passage of twelve words of two letters, one part in four is held out. The third
    word of each is of five letters, and so of five pieces.
    """
    source = random.Random(3)
    words = [a + b for a in 'bcdfgh' for b in 'aeiou']
    passage = lambda: ' '.join([*source.sample(words, 2), 'aeiou', *source.sample(words, 8)])
    articles = [
        Document('', f'doc{i} {part}', '', (passage(),), held_out=part % 4 == 0)
        for i in range(12)
        for part in range(60)
    ]
    tasks.mixing_task(articles, tokenizer, 26, tmp_path)
    assert list(load_task(f'{tmp_path}/task.json').labels) == ['whole', 'mixed']
    passages = {article.sentences[0]: article for article in articles}
    # All passages are used but for what makes no four: 540 to learn from and 180 held out.
    for split, count in (('train', 270), ('dev', 90)):
        rows = rows_of(tmp_path, split)
        labels = [row['label'] for row in rows]
        assert collections.Counter(labels) == {'whole': count, 'mixed': count}
        assert labels[:6] == [*['whole'] * 2, *['mixed'] * 2, *['whole'] * 2]
        assert all(13 <= len(tokenizer.encode(row['text'])) <= 26 for row in rows)
        for pair in zip(rows[::2], rows[1::2]):
            texts = [row['text'] for row in pair]
            if pair[0]['label'] == 'mixed':
                assert not passages.keys() & set(texts)
                # Units of both: words, and the five letters of the third word one by one.
                units = [[*t.split()[:2], *'aeiou', *t.split()[3:]] for t in texts]
                for i in range(1, 14, 2):
                    units[0][i], units[1][i] = units[1][i], units[0][i]
                texts = [' '.join([*u[:2], ''.join(u[2:7]), *u[7:]]) for u in units]
            for text, row in zip(texts, pair):
                assert passages[text].held_out == (split == 'dev')
                assert row['source'] == f'{passages[text].group} 0'

    with refused('has 12 passages to learn from and 4 to be scored on'):
        tasks.mixing_task(articles[:17], tokenizer, 26, tmp_path)


def test_what_does_not_fit_mixed_is_left_out_whole_too(tmp_path, tokenizer):
    """Else length would tell: of these two one would have 22 pieces and the other 10."""
    texts = (' '.join(['bcd', 'a'] * 4), ' '.join(['a', 'bcd'] * 4))
    documents = [
        Document('d', f'd{i}', '', (texts[i * i % 3 % 2],), held_out=i % 4 == 0) for i in range(400)
    ]
    tasks.mixing_task(documents, tokenizer, 20, tmp_path)
    rows = [row['text'] for row in rows_of(tmp_path, 'train')]
    assert len(rows) > 40 and set(rows) == set(texts) and rows[::2] == rows[1::2]


def test_words_passages_and_parts(tokenizer):
    # Words with the space after each; one of more pieces than that in its pieces.
    cut = lambda text: pieces.words(text, tokenizer, 3)
    assert cut('ab cde fghi  jk.') == ['ab ', 'cde ', 'f', 'g', 'h', 'i  ', 'jk.']
    assert ''.join(cut('一二三四五 ab')) == '一二三四五 ab'
    # As many sentences as fit; a long one is cut, a short rest left out.
    passages = lambda *sentences: list(pieces.passages(sentences, tokenizer, 6))
    assert passages('ab', 'cd', 'ef', 'gh') == ['ab cd ef']
    assert passages('ab', 'cd', 'efghi', 'jk') == ['ab cd', 'efghi']
    assert passages('ab cd ef gh ij kl') == ['ab cd ef', 'gh ij kl']
    # Of about equal length and cut between words, but where one is too long by itself.
    parts = lambda text: pieces.parts(text, tokenizer, 6)
    assert parts('ab cd ef gh') == ['ab cd', 'ef gh']
    assert parts('a bcdef gh, ij') == ['a bcdef', 'gh, ij']
    assert parts('abcdefgh') == ['abcd', 'efgh']
    assert cut('') == passages() == [] and parts(' ') == ['']


def test_lines(tmp_path, tokenizer):
    """Borders of documents stay what they are."""
    for name in ('train.txt', 'held_out.txt'):
        (tmp_path / name).write_text('ab cd ef gh\nab\n\ncd\n\n')
    pieces.write_lines(tmp_path, tmp_path / 'lines', tokenizer, 6)
    for name in ('train.txt', 'held_out.txt'):
        assert (tmp_path / 'lines' / name).read_text() == 'ab cd\nef gh\nab\n\ncd\n\n'
