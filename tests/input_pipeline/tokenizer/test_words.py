"""Tokenizers of whole words: which ids and characters words have, and how their list is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.input_pipeline.tokenizer import wordpiece
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions, train
from tests.helpers.vocabularies import SPECIAL

CASED = Normalizer(lower_case=False, strip_accents=False, nfc=True)


def made(listed=('the', 'cat', ','), known=('Straße', '한국어')) -> Tokenizer:
    return Tokenizer.of_kind('words', wordpiece.format_words([*SPECIAL, *listed], known), CASED)


def code_points(word: str) -> list[int]:
    return [*map(ord, word[:16]), *[0] * (16 - len(word[:16]))]


def test_every_word_has_an_id_and_its_characters():
    """Those of the file their line, others the next free number, each time the same."""
    tokenizer = made()
    assert (tokenizer.vocab_size, tokenizer.known) == (8, 10)
    ids = tokenizer.encode('the Straße, naïve cat 漢字 naïve')
    assert ids == [5, 8, 7, 10, 6, 11, 12, 10]
    assert tokenizer.tokens(ids)[3:] == ['naïve', 'cat', '漢', '字', 'naïve']
    spelled = tokenizer.characters(np.array([ids, [0, 4, *ids[:6]]]))
    assert spelled.dtype == np.int32 and spelled.shape == (2, 8, 16)
    entries = ['the', 'Straße', ',', 'naïve', 'cat', '漢', '字', 'naïve']
    assert spelled[0].tolist() == [code_points(word) for word in entries]
    assert spelled[1, :2].tolist() == [code_points('[PAD]'), code_points('[MASK]')]
    # Words that come up after the first were spelled; the first sixteen characters are the word.
    later = tokenizer.encode('zebra internationalization internationalizationist')
    words = ['zebra', *['internationaliza'] * 2]
    assert tokenizer.characters(np.array(later)).tolist() == [code_points(word) for word in words]


def test_closed_ids_are_those_of_the_file():
    """For files that other processes read: what they could not spell is [UNK]."""
    tokenizer = made().close()
    assert tokenizer.encode('the Straße naïve') == [5, 8, 1]
    listed = tokenizer.listed(np.array([5, 8, 1, 7]))
    assert listed.tolist() == [True, False, False, True]


def test_a_folder_keeps_the_list_and_the_rest_apart(tmp_path):
    tokenizer = made()
    tokenizer.encode('unseen words are in no file')
    tokenizer.save(tmp_path / 'words')
    assert sorted(path.name for path in (tmp_path / 'words').iterdir()) == [
        'tokenizer_config.json', 'words.txt'
    ]  # fmt: skip
    read = Tokenizer.load(tmp_path / 'words')
    assert (read.kind, read.vocab_size, read.known) == ('words', 8, 10)
    assert read.fingerprint == tokenizer.fingerprint
    assert read.tokens(range(10)) == [*SPECIAL, 'the', 'cat', ',', 'Straße', '한국어']


def test_the_list_holds_the_most_frequent_words():
    """Ties by spelling; the rest is known up to a number, and what is beyond counted as unknown."""
    text = ['red red red red, blue blue blue green green', 'Red b a c', 'red,']
    options = VocabularyOptions(vocab_size=8, model='words', lower_case=False, known_words=6)
    tokenizer, report = train(text, options)
    assert tokenizer.tokens(range(tokenizer.known)) == [
        *SPECIAL, 'red', 'blue', ',', 'green', 'Red', 'a'
    ]  # fmt: skip
    # Of 16 words 10 are listed, 4 known besides, b and c are not.
    assert (tokenizer.vocab_size, report.more, report.words) == (8, 3, 14)
    assert report.listed == pytest.approx(10 / 16) and report.unknown == pytest.approx(2 / 16)
    assert '62.50% of the pieces are in the list, 3 more are known' in str(report)
