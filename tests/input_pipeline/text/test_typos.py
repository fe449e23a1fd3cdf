"""Typing errors: which words have one, and what each kind makes of a word, in any script."""

from __future__ import annotations

import itertools
import unicodedata

import pytest

from bert_jax.input_pipeline.text import typos
from bert_jax.input_pipeline.text.typos import Typos, one_typo

TEXTS = {
    'english': 'The quick brown Fox jumps over the lazy dog , near 3 rivers .',
    'korean': '한국어 텍스트 에서 오타 를 만들어 보았습니다',
    'hindi': 'नमस्ते दुनिया यह एक परीक्षण है',
}


def made(kind: str, word: str, count: int = 400) -> set[str]:
    return {Typos(1.0, seed, (kind,)).word(word, 'example', 0, 0) for seed in range(count)}


def test_each_kind_makes_what_it_says():
    """All that one typo can make of a short word, by hand."""
    assert made('deletion', 'cat') == {'at', 'ct', 'ca'}
    assert made('swap', 'cat') == {'act', 'cta'}
    assert made('leet', 'test') == {'7est', 't3st', 'te5t', 'tes7'}
    assert made('homoglyph', 'ko') == {'k\u043e', 'k\u03bf'}
    # q: w on the right, a below. p: o on the left, l below.
    assert made('keyboard', 'qp') == {'wp', 'ap', 'qo', 'ql'}
    assert made('insertion', 'q') == {'qq', 'qw', 'qa'}


@pytest.mark.parametrize('language', TEXTS)
def test_any_script_has_typos(language):
    """Every word is changed by one typo, spaces stay, and no mark stands without its base."""
    assert Typos(1.0, 0, ('deletion', 'swap')).text('\ta  I ...', 'x') == '\ta  I ...'

    text = TEXTS[language]
    for seed in range(20):
        noisy = Typos(1.0, seed).text(text, 'x', 0)
        words, others = text.split(' '), noisy.split(' ')
        assert len(words) == len(others)
        for word, other in zip(words, others, strict=True):
            assert (word != other) == any(map(str.isalnum, word))
            assert other and not unicodedata.category(other[0]).startswith('M')
            # One typo: at most two characters differ, as those that a swap exchanges.
            assert abs(len(typos.split_characters(word)) - len(typos.split_characters(other))) <= 1


def test_the_share_is_of_the_words_and_more_of_them_hold_the_same_typos():
    text = ' '.join(f'word{a}{b}' for a, b in itertools.product('abcdefghijklmnopqrst', repeat=2))
    words = text.split()
    noisy = {share: Typos(share, 3).text(text, 'x').split() for share in (0, 0.1, 0.3, 1)}
    changed = {share: [a != b for a, b in zip(words, noisy[share])] for share in noisy}
    assert sum(changed[0]) == 0 and sum(changed[1]) == 400
    # 40 and 120 of 400 words: four standard deviations are 24 and 37.
    assert 16 < sum(changed[0.1]) < 64 and 83 < sum(changed[0.3]) < 157
    for less, more in ((0.1, 0.3), (0.3, 1)):
        for place in range(400):
            assert not changed[less][place] or noisy[less][place] == noisy[more][place]


def test_a_typo_depends_on_seed_name_and_word_alone():
    text = TEXTS['english']
    names = (1, 'a', 0), (2, 'a', 0), (1, 'b', 0), (1, 'a', 1)
    assert len({Typos(0.5, seed).text(text, *name) for seed, *name in names}) == 4
    # words that come later change nothing before them
    assert Typos(0.5, 1).text(text + ' end', 'a', 0).startswith(Typos(0.5, 1).text(text, 'a', 0))
    # fixed for good: results that name a seed can be repeated
    assert Typos(1.0, 0).text('the capital of France', 'x', 0) == 'thew capit4l fo Franc3'


def test_a_single_typo_is_of_a_kind_that_can_change_the_word():
    """Every kind comes up, and a word that none can change stays."""
    made = {one_typo('cat', ['deletion', 'swap'], seed) for seed in range(60)}
    assert made == {'at', 'ct', 'ca', 'act', 'cta'}
    assert {one_typo('한국', ['leet', 'deletion'], seed) for seed in range(20)} == {'한', '국'}
    assert one_typo('한국', ['leet'], 0) == '한국'
