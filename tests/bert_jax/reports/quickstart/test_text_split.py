"""What is held out shares no sentence, nor nearly one, with what is learned from.

A group lies on one side.
"""

from __future__ import annotations

import difflib
import json
import pathlib
import random
import re

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.reports.quickstart import text_split
from bert_jax.reports.quickstart.near_duplicates import NearDuplicates, shingles


def sentence(source: random.Random, words: int = 20) -> str:
    return ' '.join(
        f'{source.choice(("red", "green", "small", "large", "old", "new"))}{source.randrange(99)}'
        for _ in range(words)
    )


@pytest.fixture
def documents():
    source = random.Random(0)
    return [
        text_split.Document(
            'a', f'module{i // 3}', f'f{i}', tuple(sentence(source) for _ in range(4))
        )
        for i in range(120)
    ]


def test_split_by_group(tmp_path, documents):
    counts = text_split.split(documents, tmp_path)
    read = list(text_split.read(tmp_path))
    assert [(d.group, d.name, d.sentences) for d in read] == [
        (d.group, d.name, d.sentences) for d in documents
    ]
    sides = {outside: {d.group for d in read if d.held_out is outside} for outside in (True, False)}
    assert not sides[True] & sides[False]
    assert 2 <= len(sides[True]) <= 18  # 0.22 of 40 groups
    text = {
        outside: (tmp_path / name).read_text()
        for outside, name in ((False, 'train.txt'), (True, 'held_out.txt'))
    }
    for outside in (True, False):
        assert text[outside] == ''.join(
            '\n'.join(d.sentences) + '\n\n' for d in read if d.held_out is outside
        )
    assert counts['train']['bytes'] == len(text[False]) and counts['held_out']['sentences'] == text[
        True
    ].count('.\n') + sum(bool(line) for line in text[True].split('\n'))
    assert json.loads((tmp_path / 'counts.json').read_text()) == counts


def test_near_copies_do_not_straddle(tmp_path, documents):
    """Of a document and a copy with some words changed, in modules on both sides, one is kept.

    What is nearly the same is told by difflib's measure.
    """
    original = documents[0].sentences
    edited = [
        tuple(s.replace(s.split()[3 + i % 3], f'word{i}') for s in original) for i in range(20)
    ]
    copies = [
        text_split.Document('b', f'copy{i}', 'f', sentences) for i, sentences in enumerate(edited)
    ]
    assert len({text_split.is_group_held_out(d.group) for d in copies}) == 2
    partial = text_split.Document(
        'b', 'partial', 'f', (*documents[1].sentences[:1], *sentence_list(5))
    )
    counts = text_split.split([*documents, *copies, partial], tmp_path)
    assert counts['dropped'] == {'near_copy_documents': 20, 'near_copy_sentences': 1}
    train, test = (
        (tmp_path / name).read_text().split('\n') for name in ('train.txt', 'held_out.txt')
    )
    assert (
        sum(difflib.SequenceMatcher(None, original[0], s).ratio() > 0.8 for s in train + test if s)
        == 1
    )


def sentence_list(n: int) -> list[str]:
    source = random.Random(1)
    return [sentence(source) for _ in range(n)]


def test_too_few_documents(tmp_path, documents):
    with pytest.raises(UserError, match='0 documents to learn from and 0 to hold out'):
        text_split.split([], tmp_path)
    with pytest.raises(UserError, match='each needs 4'):
        text_split.split(documents[:3], tmp_path)
    assert not list(tmp_path.glob('*.txt'))


def test_scripts_without_spaces():
    copies = NearDuplicates()
    first = [
        'これは日本語の文章であり、空白がありません。',
        '別の文もここにあります、とても短いです。',
    ]
    assert copies.unseen(first) == first
    assert copies.unseen([first[0].replace('文章', '文書'), first[1]]) == []
    korean = ['이것은 한국어 문장이며 띄어쓰기가 있습니다.', '다른 문장도 여기에 조금 더 있습니다.']
    assert copies.unseen(korean) == korean


LETTERS = {
    'hiragana': '\u3042-\u3093',
    'katakana': '\u30a2-\u30f3',
    'half-width katakana': '\uff71-\uff9d',
    'bopomofo': '\u3105-\u3129',
    'Han': '\u4e00-\u9fff',
    'Han, extension A': '\u3400-\u4dbf',
    'Han, compatibility': '\uf900-\ufa6d',
    'Han, extension B': '\U00020000-\U0002a6df',
    'Han, extension G': '\U00030000-\U0003134a',
    'Yi': '\ua000-\ua48c',
    'Thai': '\u0e01-\u0e3a',
    'Lao': '\u0e94-\u0ebd',
    'Khmer': '\u1780-\u17d3',
    'Myanmar': '\u1000-\u103e',
    'Hangul': '\uac00-\ud7a3',
    'Devanagari': '\u0905-\u094d',
    'Tamil': '\u0b85-\u0bcd',
    'Arabic with vowels': '\u0620-\u0652',
    'Latin with combining accents': 'a-z\u0300-\u030c',
}
SPACED = list(LETTERS)[-5:]


def in_script(name: str, words: list[int]) -> str:
    """A sentence whose words are told apart by their numbers: of 2 ideographs, or of 4 letters."""
    spans = re.findall('(.)-(.)', LETTERS[name])
    letters = [chr(c) for first, last in spans for c in range(ord(first), ord(last) + 1)]
    length = 2 if name in list(LETTERS)[:10] else 4
    spell = lambda word: ''.join(random.Random(f'{name} {word}').choices(letters, k=length))
    spelled = [spell(word) for word in words]
    return (' ' if name in SPACED else '').join(spelled) + '\u3002'


@pytest.mark.parametrize('name', LETTERS)
def test_a_sentence_is_a_near_copy_by_its_words_in_every_script(name):
    """One word of twenty changed makes a copy; the words of all text in another order do not."""
    source, copies = random.Random(1), NearDuplicates()
    words = [source.sample(range(60), 20) for _ in range(200)]
    for i in range(0, 200, 4):
        document = [in_script(name, one) for one in words[i : i + 4]]
        assert copies.unseen(document) == document
    new = [in_script(name, source.sample(range(60), 20)) for _ in range(3)]
    edited = in_script(name, [*words[7][:10], 999, *words[7][11:]])
    assert copies.unseen([*new, edited]) == new
    copied = [in_script(name, [*words[i][:5], 888, *words[i][6:]]) for i in range(4)]
    assert copies.unseen(copied) == []


def test_a_word_keeps_its_marks_and_ends_where_another_script_begins():
    """Vowel signs and accents are letters of their words, a syllable of Korean is no word."""
    hindi = '\u0939\u093f\u0928\u094d\u0926\u0940 '  # three letters, three signs
    assert len(shingles(hindi * 3 + 'a b c d')) == len(shingles('x x x a b c d'))
    assert not shingles('e\u0301t a b c') & shingles('e\u0302t a b c')
    assert shingles('2024\u5e74 a b c') == shingles('2024 \u5e74 a b c')
    korean = '\ub098\ub294 \uc624\ub298 \ud559\uad50\uc5d0 \uac14\ub2e4'
    assert len(shingles(korean)) == 1


def test_korean_keeps_its_sentences(test_data):
    """Once a quarter of them were taken for near-duplicates; nearly all of those occur once."""
    with open(test_data / 'corpora/wiki_ko.txt', encoding='utf-8') as file:
        text = file.read(2_000_000)
    copies, sentences = NearDuplicates(), 0
    for document in text.split('\n\n'):
        found = [s for line in document.split('\n') for s in line.split('. ') if s]
        sentences += len(found)
        copies.unseen(found)
    assert copies.removed.sentences < 0.03 * sentences


def test_ranges_of_characters_are_written_as_escapes():
    """Characters that look alike are told apart by their numbers alone."""
    root = pathlib.Path(__file__).parents[4]
    for package in ('benchmarks', 'bert_jax', 'configs', 'input_pipeline', 'launch'):
        for path in (root / package).glob('**/*.py'):
            spans = re.findall('[^\x00-\x7f]-[^\x00-\x7f]', path.read_text(encoding='utf-8'))
            assert not spans, path
