"""Directories of ALBERT's tokenizer against the rules of google-research/albert, written here from
its tokenization.py (preprocess_text, encode_pieces), on SentencePiece itself.

One thing is transformers' way and not Google's: what NFKD has taken apart and is no accent, Hangul,
is not put together again. The released vocabularies have none.
"""

from __future__ import annotations

import io
import json
import pathlib
import unicodedata

import pytest
import sentencepiece

from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

WORDS = 'winter summer autumn spring nobody everybody morning evening'.split()
TEXT = [
    'The capital of France is Paris, and that of Finland is Helsinki.',
    'In 1990, 1,000,000 people (or more) lived there; in 2000, fewer did.',
    '"Who said so?" - "Nobody did, as far as we know."',
    'Zürich und Köln sind Städte, naïve cafés are elsewhere.',
    'written 中国語 and 日本語, мир and mir',
]
# So that `0,` becomes a piece, and enough others do.
NUMBERS = [f'since {year}0, when {word} came' for year in range(150, 200) for word in WORDS]
NASTY = [
    "``Quotes'' of ''LaTeX`` ",
    '  a\t b\n\n c  ',
    'Ünïcödé ﬁ ﬂ Å e\u0301 ½ ① ﷺ',
    '1990, 3, 1,2,3, x9, 9',
    '\u200b\ufeff\u00a0x\u3000y \u2581 \u2581a',
    '😀👨\u200d👩\u200d👧 İstanbul ΣΑΣ ß ᄒ\u1161\u11ab',
    'नमस्ते हिन्दी नص عربي',
    'z' * 300,
    '',
    ' ',
]


def train(folder: pathlib.Path, symbols: str = '(,),",-,.,–,£,€') -> pathlib.Path:
    """A folder with a SentencePiece model, trained by the options of ALBERT's README."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower() for text in (*TEXT, *NUMBERS)] * 5),
        model_writer=model,
        model_type='unigram',
        vocab_size=100,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols='[CLS],[SEP],[MASK]',
        user_defined_symbols=symbols,
        character_coverage=0.99995,
        minloglevel=2,
    )
    folder.mkdir(exist_ok=True)
    (folder / 'spiece.model').write_bytes(model.getvalue())
    return folder


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    return train(tmp_path_factory.mktemp('albert') / 'folder')


def google(model: sentencepiece.SentencePieceProcessor, text: str, lower=True, accents=False):
    """Ids as google-research/albert gives them."""
    text = ' '.join(text.strip().split()).replace('``', '"').replace("''", '"')
    if not accents:
        text = unicodedata.normalize('NFKD', text)
        text = ''.join(char for char in text if not unicodedata.combining(char))
    pieces: list[str] = []
    for piece in model.encode_as_pieces(text.lower() if lower else text):
        if len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit():
            parts = model.encode_as_pieces(piece[:-1].replace('▁', ''))
            if piece[0] != '▁' and parts[0][0] == '▁':
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            pieces += [*parts, ',']
        else:
            pieces.append(piece)
    return [model.piece_to_id(piece) for piece in pieces]


def processor(folder: pathlib.Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(str(folder / 'spiece.model'))


def test_ids_are_googles(folder):
    """A piece such as `0,` is there and not used; special tokens are not searched for in text."""
    ours, theirs = Tokenizer.load(folder), processor(folder)
    assert any(piece[-2:] == '0,' for piece in ours.entries)
    for text in (*TEXT, *NASTY):
        assert ours.encode(text) == google(theirs, text), text
    ids = ours.encode('<pad> <unk> [CLS] [SEP] [MASK]')
    assert set(ids) & set(ours.special_ids) <= {ours.unk_id}
    assert all(ours.starts_word[list(ours.special_ids)])


@pytest.mark.parametrize('settings', [{'do_lower_case': False}, {'keep_accents': True}])
def test_casing_is_what_the_class_is_told_and_is_saved(folder, tmp_path, settings):
    (tmp_path / 'spiece.model').write_bytes((folder / 'spiece.model').read_bytes())
    (tmp_path / 'tokenizer_config.json').write_text(
        json.dumps({'tokenizer_class': 'AlbertTokenizer', **settings})
    )
    ours, theirs = Tokenizer.load(tmp_path), processor(folder)
    how = {'lower': 'do_lower_case' not in settings, 'accents': 'keep_accents' in settings}
    ours.save(tmp_path / 'again')
    again = Tokenizer.load(tmp_path / 'again')
    assert again.fingerprint == ours.fingerprint
    for text in (*TEXT, *NASTY[:5]):
        assert ours.encode(text) == again.encode(text) == google(theirs, text, **how), text
