"""Vocabularies trained on text: what they hold, and that they are repeatable.

Hugging Face's engine agrees with them.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest

from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions, train
from tests.helpers import commands
from tests.helpers.processes import mistake
from tests.helpers.vocabularies import SPECIAL

MODELS = ('wordpiece', 'unigram', 'bpe')
RUN = {'cwd': pathlib.Path(__file__).parents[3], 'capture_output': True, 'text': True}
KOREAN = [
    '한국어 사전을 학습합니다.',
    '한국의 언어를 배우고 사전을 만듭니다.',
    '언어 학습은 재미있습니다.',
] * 5


def english(lines=300):
    rng = random.Random(1)
    stems = ['learn', 'teach', 'walk', 'train', 'token', 'form', 'Café', 'naïve', 'word', 'state']
    ends = ['', 'ing', 'ed', 's', 'er', 'ers', 'able']
    return [
        ' '.join(rng.choice(stems) + rng.choice(ends) for _ in range(12)) + ', "so" it went (1990).'
        for _ in range(lines)
    ]


@pytest.mark.parametrize('model', MODELS)
class TestEveryModel:
    def test_special_ids_size_and_no_unknown_words(self, model):
        tokenizer, report = train(english(), VocabularyOptions(150, model, character_coverage=1.0))
        assert tokenizer.entries[:5] == SPECIAL and tokenizer.special_ids == (0, 1, 2, 3, 4)
        assert tokenizer.vocab_size == report.vocab_size <= 150
        assert report.warnings == () or (model == 'unigram' and 'too small' in report.warnings[0])
        assert report.unknown == 0 and report.characters_covered == 1
        for text in english():  # what it was trained on is not unknown to it
            assert 1 not in tokenizer.encode(text)

    def test_report_is_what_encoding_the_text_again_gives(self, model):
        text = [*english(), 'rare Ω characters ж here']
        options = VocabularyOptions(100, model, lower_case=True, character_coverage=0.999)
        tokenizer, report = train(text, options)
        ids = [i for line in tokenizer.encode_batch(text) for i in line.tolist()]
        assert report.words == sum(len(line.split()) for line in text)
        assert report.fertility == pytest.approx(len(ids) / report.words)
        assert report.unknown == pytest.approx(ids.count(1) / len(ids)) and report.unknown > 0
        assert 0.99 < report.characters_covered < 1

    def test_depends_on_the_text_alone(self, model):
        options = VocabularyOptions(150, model)
        prints = {
            train(text, options)[0].fingerprint
            for text in (english(), english()[::-1], [' '.join(english())])
        }
        if model == 'wordpiece':  # another process hashes otherwise
            code = (
                'from tests.input_pipeline.tokenizer.test_vocabulary import *\n'
                'print(train(english(), VocabularyOptions(150))[0].fingerprint)'
            )
            env = {**os.environ, 'PYTHONHASHSEED': '1', 'RAYON_NUM_THREADS': '1'}
            done = subprocess.run([sys.executable, '-c', code], **RUN, env=env, check=True)
            prints.add(done.stdout.strip())
        assert len(prints) == 1

    def test_hangul(self, model):
        tokenizer, report = train(
            KOREAN, VocabularyOptions(120, model, lower_case=False, character_coverage=1.0)
        )
        assert not [w for w in report.warnings if 'Hangul' in w]
        text = KOREAN[0]
        ids = tokenizer.encode(text)
        assert tokenizer.encode(unicodedata.normalize('NFD', text)) == ids and 1 not in ids
        assert tokenizer.decode(tokenizer.encode('한국어')).replace(' ', '') == '한국어'
        options = VocabularyOptions(300, model, lower_case=True, character_coverage=1.0)
        stripping, report = train(KOREAN, options)
        if model == 'wordpiece':  # as Google's rules have it
            assert 'takes its syllables apart' in ' '.join(report.warnings)
        else:
            assert stripping.decode(stripping.encode('한국어')).replace(' ', '') == '한국어'


CHARACTERS = ''.join(chr(0x4E00 + 7 * i) for i in range(121))


@pytest.mark.parametrize('model', MODELS)
@pytest.mark.parametrize('size, share', [(7, 1.0), (300, 0.95)])
def test_a_vocabulary_too_small_for_its_characters(model, size, share):
    text = [CHARACTERS, CHARACTERS[:50], CHARACTERS[:5] * 9]
    tokenizer, report = train(text, VocabularyOptions(size, model, character_coverage=share))
    entries = set(tokenizer.entries)
    assert tokenizer.vocab_size <= size and CHARACTERS[0] in entries
    # No places are left empty where characters are left out for want of places.
    if share == 1.0:
        assert tokenizer.vocab_size == size
    else:
        kept = sum(
            count
            for char, count in zip(CHARACTERS, [11] * 5 + [2] * 45 + [1] * 71, strict=True)
            if char in entries
        )
        assert share <= report.characters_covered == kept / 216 < share + 11 / 216


def test_a_vocabulary_of_several_languages(tmp_path):
    """The mixture decides whose words have entries of their own, and each is reported on."""
    (tmp_path / 'de.txt').write_text('alpha beta gamma delta\n' * 400)
    (tmp_path / 'ko.txt').write_text('여우 사자 호랑이\n' * 20)
    inputs = [f'--input={code}={tmp_path}/{code}.txt' for code in ('ko', 'de')]

    def run(name, *flags):
        output = f'--output={tmp_path}/{name}'
        flags = (*inputs, '--nolower_case', '--vocab_size=64', output, *flags)
        return commands.run('train_vocab', *flags)

    sizes = {code: (tmp_path / f'{code}.txt').stat().st_size for code in ('de', 'ko')}
    total = sum(sizes.values())
    raised = {code: (size / total) ** 0.7 for code, size in sizes.items()}
    done = run('default')
    for code, size in sizes.items():
        # (P ** S / sum of these) / P: how often its text counts beside the whole
        often = raised[code] / sum(raised.values()) / (size / total)
        words = 1600 if code == 'de' else 60
        assert f'{code}: {words} words, counted {often:.2f} times: ' in done.stdout, done.stderr

    # One entry may be left: it is a merge of the language that is counted more often.
    for repeats, word in (('de=1,ko=1', 'alpha'), ('de=0.01,ko=2', '호랑이')):
        assert not run(repeats, f'--language_repeats={repeats}').returncode
        assert word in Tokenizer.load(tmp_path / repeats).entries

    (tmp_path / 'none.txt').write_text('\n\n')
    for flags, said in (
        (['--language_repeats=fr=2'], "no input is named 'fr': the languages are de, ko"),
        ([f'--input=fr={tmp_path}/none.txt'], '--input=fr=...: no words in the text of fr'),
    ):
        failed = run('no', *flags)
        assert said in mistake(failed) and not (tmp_path / 'no').exists()
