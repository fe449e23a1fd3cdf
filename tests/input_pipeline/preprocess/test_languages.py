"""Languages: how inputs name them, and how often each is gone through."""

from __future__ import annotations

import pytest

from bert_jax.input_pipeline.preprocess.language_mixture import (
    language_passes,
    mixture,
    split_inputs,
)
from tests.helpers.refusals import refused


def test_inputs_name_their_languages(tmp_path, monkeypatch):
    one = {'': ('text/*.txt',)}
    assert split_inputs('input', 'text/*.txt') == one == split_inputs('input', ('text/*.txt',))
    assert split_inputs('input', ('b.txt', 'c.txt')) == {'': ('b.txt', 'c.txt')}
    given = ('ko=b=1/*.txt,c.txt', 'en=a.txt', 'zh-Hans=tfds:x/train', 'ko=d.txt')
    assert split_inputs('input', given) == {
        'en': ('a.txt',),
        'ko': ('b=1/*.txt,c.txt', 'd.txt'),
        'zh-Hans': ('tfds:x/train',),
    }
    assert split_inputs('input', '/data/x=1/a.txt') == {'': ('/data/x=1/a.txt',)}
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'en=a.txt').touch()  # a file of that name is that file
    assert split_inputs('input', 'en=a.txt') == {'': ('en=a.txt',)}


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (('en=b.txt', 'c.txt'), '--input=c.txt: names no language, and others do'),
        (('',), '--input=: is empty'),
        (('en=b.txt', 'ko='), '--input=ko=: is empty'),
        (('a.txt', ' , '), '--input= , : is empty'),
    ],
)
def test_inputs_that_name_none_are_refused(given, message):
    with refused(message):
        split_inputs('input', given)


def test_without_an_exponent_it_is_that_of_multilingual_bert():
    """S = 0.7 (google-research/bert multilingual.md)."""
    taken = mixture({'en': 900.0, 'ko': 100.0}, None, ())
    assert 900 * taken['en'] / (100 * taken['ko']) == pytest.approx(9**0.7)


@pytest.mark.parametrize('exponent', [0.0, 0.3, 0.7, 1.0])
def test_shares_of_tokens_are_raised_to_the_exponent(exponent):
    """multilingual.md: P(L) of the text becomes P(L) ** S, and the sum of these is 1 again."""
    tokens = {'en': 21_000_000, 'de': 8_000_000, 'is': 30_000, 'la': 0}
    passes = language_passes(tokens, exponent, 10)
    seen = {language: passes[language] * tokens[language] for language in ('en', 'de', 'is')}
    assert sum(seen.values()) == pytest.approx(10 * sum(tokens.values()))
    for one, other in (('en', 'de'), ('is', 'en')):
        assert seen[one] / seen[other] == pytest.approx((tokens[one] / tokens[other]) ** exponent)
    assert 'la' not in passes and (exponent == 1) == (
        passes['en'] == pytest.approx(10) == passes['is']
    )
