"""WordPiece against rules written out from google-research/bert and against Hugging Face's engine.

Also offsets, and tokenizer directories.
"""

from __future__ import annotations

import json
import os
import random
import unicodedata

import numpy as np
import pytest
import tokenizers

from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from tests.helpers import tokenizer_folders
from tests.helpers.refusals import refused
from tests.helpers.vocabularies import SPECIAL

WORDS = 'un ##aff ##able hello , ! [ ] mask 中 国 e ##te ete οδος x ##x i s 한국 ##어'.split()


def make(tokens=(*SPECIAL, *WORDS), lower_case=True, **settings):
    settings = {'strip_accents': lower_case, **settings}
    return Tokenizer.of_kind(
        'wordpiece', '\n'.join(tokens).encode(), Normalizer(lower_case, **settings)
    )


def put(path, tokens=(*SPECIAL, *WORDS), config=None):
    path.mkdir()
    (path / 'vocab.txt').write_text('\n'.join(tokens) + '\n', encoding='utf-8')
    if config is not None:
        (path / 'tokenizer_config.json').write_text(json.dumps(config))
    return path


def google_pieces(text, vocab, lower):
    """The reference, character by character, from its description.

    Cleaning, ideographs, case, accents, signs, greedy match.
    """
    cleaned = ''
    for c in text:
        category = unicodedata.category(c)
        if c in '\t\n\r ' or category == 'Zs':
            cleaned += ' '
        elif ord(c) in (0, 0xFFFD) or category in ('Cc', 'Cf'):
            continue
        elif '\u4e00' <= c <= '\u9fff' or '\uf900' <= c <= '\ufaff' or c == '\U00020001':
            cleaned += f' {c} '
        else:
            cleaned += c
    found = []
    for token in cleaned.split():
        if lower:
            token = ''.join(
                c
                for c in unicodedata.normalize('NFD', token.lower())
                if unicodedata.category(c) != 'Mn'
            )
        basic, new = [], True
        for c in token:
            code = ord(c)
            ascii_sign = (
                33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
            )
            if ascii_sign or unicodedata.category(c)[0] == 'P':
                basic.append(c)
                new = True
            else:
                if new:
                    basic.append('')
                new = False
                basic[-1] += c
        for word in basic:
            pieces, start = [], 0
            while start < len(word):
                end = len(word)
                while end > start and ('##' if start else '') + word[start:end] not in vocab:
                    end -= 1
                if end == start:
                    break
                pieces.append(('##' if start else '') + word[start:end])
                start = end
            found += pieces if start == len(word) and len(word) <= 200 else ['[UNK]']
    return found


HAND = {
    'Hello, UNaffable! [MASK]': 'hello , un ##aff ##able ! [ mask ]',
    'hel\u200blo hel\x0clo \ufffdhello\x00': 'hello hello hello',
    'ΟΔΟΣ İ \ue000x 中国x': 'οδος i [UNK] 中 国 x',
    'x' * 200: 'x' + ' ##x' * 199,
    'x' * 201 + ' xyx': '[UNK] [UNK]',
}


@pytest.mark.parametrize('text', HAND)
def test_google_rules(text):
    tokenizer = make()
    assert tokenizer.tokens(tokenizer.encode(text)) == HAND[text].split()
    assert google_pieces(text, {*SPECIAL, *WORDS}, True) == HAND[text].split()


def test_random_strings_agree_with_the_rules_written_out():
    rng = random.Random(0)
    alphabet = (
        'aebxX'
        " ,'-\t\u2028\x85\x1c中國\ufa0c\u200bÉİΣσAßﬁ\u0301"
        '한\u1100\u1161\ue000🤣\U0001e944\U00020001\xa0\xad՛'
    )
    tokens = [*SPECIAL, *"aebx,'-中國éiσςßﬁ🤣", *'##a ##b ##x ##ς ##σ ab ##bx ##ab'.split()]
    for lower_case in (True, False):
        tokenizer = make(tokens, lower_case)
        for _ in range(1500):
            text = ''.join(rng.choices(alphabet, k=rng.randint(0, 12)))
            assert tokenizer.tokens(tokenizer.encode(text)) == google_pieces(
                text, set(tokens), lower_case
            ), repr(text)


def test_offsets_point_into_the_original_text():
    tokenizer = make()
    text = '  Hello,\u200b unAFF\u0301able! ét\x00é 中国 zzz İ'
    encoding = tokenizer.encode_with_offsets(text)
    assert encoding.ids.tolist() == tokenizer.encode(text)
    assert [text[a:b] for a, b in zip(encoding.starts, encoding.ends)] == [
        'Hello', ',', 'un', 'AFF\u0301', 'able', '!', 'ét\x00é', '中', '国', 'zzz', 'İ'
    ]  # fmt: skip
    assert encoding.word_starts.tolist() == [True] * 3 + [False] * 2 + [True] * 6
    assert tokenizer.encode_with_offsets('').ids.shape == (0,)


class TestDirectory:
    def test_round_trip(self, tmp_path):
        first = make(lower_case=False, nfc=True)
        first.save(tmp_path / 'new' / 'dir')
        second = Tokenizer.load(tmp_path / 'new' / 'dir')
        assert second.fingerprint == first.fingerprint and second.normalizer == first.normalizer
        assert np.array_equal(second.starts_word, [t[:2] != '##' for t in (*SPECIAL, *WORDS)])
        first.save(tmp_path / 'new' / 'dir')  # again: nothing to do
        assert sorted(os.listdir(tmp_path / 'new')) == ['dir']

    def test_another_tokenizer_or_other_files_are_never_overwritten(self, tmp_path):
        make().save(tmp_path / 'a')
        (tmp_path / 'b').mkdir()
        (tmp_path / 'b' / 'letter.txt').write_text('mine')
        for name in 'ab':
            with refused('something else'):
                make(lower_case=False).save(tmp_path / name)
        assert Tokenizer.load(tmp_path / 'a').lower_case and os.listdir(tmp_path / 'b') == [
            'letter.txt'
        ]

    @pytest.mark.parametrize(
        'tokens, config, expected',
        [
            (['The', 'the'], None, (False, False)),
            (['the'], None, (True, True)),
            (['thé'], None, (True, False)),
            (['the'], {'do_lower_case': False}, (False, False)),
            (['the'], {'do_lower_case': True, 'strip_accents': False}, (True, False)),
        ],
    )
    def test_casing_stated_or_seen(self, tmp_path, tokens, config, expected):
        tokenizer = Tokenizer.load(put(tmp_path / 'a', [*SPECIAL, *tokens], config))
        assert (tokenizer.lower_case, tokenizer.strip_accents) == expected


class TestForeignSettings:
    """What another program's directory says is obeyed, or refused by name; never passed over."""

    @pytest.mark.parametrize('name', tokenizer_folders.FOREIGN)
    def test_ids_are_those_of_the_tokenizers_library(self, tmp_path, name):
        folder = tokenizer_folders.write(tmp_path / 'a', **tokenizer_folders.FOREIGN[name])
        engine = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
        ours = Tokenizer.load(folder)
        rules = {'cased', 'lower-cased with accents', 'ideographs joined', 'composed'}
        # BERT's own stay on the fast path.
        assert ours.kind == ('wordpiece' if name in rules else 'compiled')
        ours.save(tmp_path / 'saved')
        again = Tokenizer.load(tmp_path / 'saved')
        assert again.fingerprint == ours.fingerprint
        for text in tokenizer_folders.TEXTS:
            wanted = engine.encode(text, add_special_tokens=False)
            assert ours.encode(text) == again.encode(text) == wanted.ids, text
            encoding = ours.encode_with_offsets(text)
            assert encoding.ids.tolist() == wanted.ids
            if ours.kind == 'compiled':
                assert list(zip(encoding.starts, encoding.ends, strict=True)) == wanted.offsets

    def test_added_tokens_of_an_older_folder_are_whole(self, tmp_path):
        folder = put(tmp_path / 'a', config={'do_lower_case': True})
        size = len(SPECIAL) + len(WORDS)
        (folder / 'added_tokens.json').write_text(json.dumps({'hello x': size, 'qqq': size + 1}))
        tokenizer = Tokenizer.load(folder)
        assert tokenizer.vocab_size == size + 2
        found = tokenizer.tokens(tokenizer.encode('hello, Hello x qqq!'))
        assert found == ['hello', ',', 'hello x', 'qqq', '!']
