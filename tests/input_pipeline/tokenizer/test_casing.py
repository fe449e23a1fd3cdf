"""The casing of a vocabulary: which text is lower-cased by default, and what that does to words."""

from __future__ import annotations

from collections import Counter

import pytest

from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions, train
from bert_jax.input_pipeline.vocabulary_options import refuse_other_case
from bert_jax.runs import vocabulary_training as preparation
from tests.helpers.refusals import refused

TEXTS = {
    'en': 'The history of the city and of the river that goes through all of it, and the stories of'
    ' the people who came every evening to the Café of the Town and to its garden.',
    'vi': 'Ngày mai bạn có đi đến trường không, hay là ở nhà với mẹ của bạn?',
    'tr': 'Yarın okula gidiyor musun, yoksa evde kalıp kitabını mı okuyacaksın? SINIR, İzmir.',
    # Half of it has other letters, and would lose them.
    'en and vi': 'The end of the day and of it. Ngày mai bạn có đi đến trường không?',
}


@pytest.mark.parametrize(
    'language, model',
    [('en', 'wordpiece'), ('en', 'words'), ('vi', 'unigram'), ('en and vi', 'wordpiece')],
)
def test_english_alone_is_lower_cased_by_default(language, model):
    size = {'words': 30}.get(model, 120)
    made = lambda lower, **more: train(
        [TEXTS[language]] * 20,
        VocabularyOptions(size, model, lower, character_coverage=1.0, **more),
    )
    tokenizer, report = made(None)
    assert tokenizer.lower_case is tokenizer.strip_accents is (language == 'en')
    assert report.notes[0].startswith(
        'language: English, by its words' if language == 'en' else 'language: not English alone'
    )
    # As if it had been asked for, to the byte; and what is asked for wins.
    assert tokenizer.fingerprint == made(language == 'en')[0].fingerprint
    other, report = made(language != 'en')
    assert other.lower_case is not tokenizer.lower_case
    assert not [note for note in report.notes if 'language:' in note]
    assert made(None, strip_accents=True)[0].strip_accents


def test_turkish_is_not_lower_cased_by_the_rules_of_english(tmp_path):
    language = 'tr-TR'
    file = tmp_path / 'text.txt'
    file.write_text(TEXTS['tr'] * 9)
    text = lambda pattern: preparation.Text((pattern,), None, (), preparation.TextOptions())
    lower = VocabularyOptions(60, lower_case=True)
    for given in ((text(str(file)), tmp_path / 'v', language), (text(f'{language}={file}'), '')):
        with refused(f'--lower_case: {language} has I of ı and İ of i'):
            preparation.train(lower, *given)
    assert not (tmp_path / 'v').exists()
    refuse_other_case(VocabularyOptions(60, lower_case=False), [language])
    # Not named, it is told by its letters.
    [warning] = [w for w in train([TEXTS['tr']] * 9, lower)[1].warnings if 'ı' in w]
    assert 'Turkish and Azeri' in warning and '--nolower_case' in warning


@pytest.mark.parametrize(
    'words, share, example',
    [
        # Of ten words the three that are not the most frequent of theirs.
        ({'ma': 5, 'má': 2, 'mà': 1, 'đi': 2}, 0.3, 'má = ma'),  # tones
        ({'के': 4, 'क': 1, 'कु': 1, 'घर': 4}, 0.2, 'क = के'),  # vowel signs
    ],
    ids=['vi', 'hi'],
)
def test_the_words_that_lost_accents_make_equal_are_counted(words, share, example):
    normalizer = Normalizer(lower_case=True, strip_accents=True)
    notes, [warning] = vocabulary.find_losses(words, normalizer)
    assert not notes and f'makes {share:.2%} of the running words equal' in warning
    assert example in warning and 'train with --nostrip_accents' in warning
    kept = vocabulary.find_losses(words, Normalizer(lower_case=True, strip_accents=False))
    assert kept == ([], [])
    # From the text itself: the same share.
    text = [word for word, count in words.items() for _ in range(count)]
    _, report = train([' '.join(text)] * 3, VocabularyOptions(60, lower_case=True))
    assert warning in report.warnings


def test_capitals_at_the_beginning_of_sentences_are_no_warning():
    words = Counter({'The': 3, 'the': 6, 'US': 1, 'us': 2, 'x': 8})
    notes, warnings = vocabulary.find_losses(words, Normalizer(lower_case=True, strip_accents=True))
    assert warnings == [] and notes == [
        'lower-casing makes 20.00% of the running words equal to more frequent other ones'
        ' (The = the, US = us)'
    ]


@pytest.mark.parametrize(
    'model, size, joined, parted',
    [
        # What docs/language.md says of zero-width joiner and non-joiner.
        ('wordpiece', 80, 'कष', 'میخواهم'),
        ('unigram', 60, 'क\u200dष', 'می خواهم'),
        ('byte_bpe', 400, 'क\u200dष', 'می\u200cخواهم'),
    ],
)
def test_what_becomes_of_joiners(model, size, joined, parted):
    text = ['می\u200cخواهم نمی\u200cشود', 'क\u200dष कष क\u200dष', 'میخواهم نمیشود'] * 20
    tokenizer, _ = train(text, VocabularyOptions(size, model, character_coverage=1.0))
    for given, expected in (('क\u200dष', joined), ('می\u200cخواهم', parted)):
        ids = tokenizer.encode(given)
        assert tokenizer.unk_id not in ids
        pieces = [piece.removeprefix('##') for piece in tokenizer.spelled(ids)]
        assert ''.join(pieces).replace('▁', ' ').strip() == expected
