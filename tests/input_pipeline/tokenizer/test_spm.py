"""SentencePiece: what it is trained on, and one normalisation for all that reads text."""

from __future__ import annotations

import pytest
import tokenizers

from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.vocabulary import VocabularyOptions, train

TEXT = [
    'the quick brown fox jumps over lazy dogs 0123456789 .,;:!?()[]{}"',
    'ΑΒΓΔΣ αβγδσς ガギグゲゴパピプ カキクハヒ 猫犬 한국어 é è ü ñ naïve Straße İstanbul ´ ¨ ~ ^',
] * 5


@pytest.mark.parametrize('model, lower_case', [('unigram', True), ('bpe', False)])
def test_a_long_stretch_without_spaces_is_as_lines_of_it(model, lower_case):
    thai = 'ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอนหรือวรรณยุกต์เช่นเดียวกับภาษาจีน、ｶﾞｷﾞを学ぶ。'
    for text in ('猫犬' * 1500, (thai * 50)[:3000]):
        options, prints = VocabularyOptions(140, model, lower_case), []
        for lines in ([text], [text[i : i + 100] for i in range(0, 3000, 100)]):
            tokenizer, report = train(['abc'] * 50 + lines, options)
            assert report.unknown == 0 and report.characters_covered > 0.9
            assert tokenizer.unk_id not in tokenizer.encode(text)
            prints.append(tokenizer.fingerprint)
        assert prints[0] == prints[1]


def same_everywhere(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Ids in records, with places, and of the library by the exported file."""
    engine = tokenizers.Tokenizer.from_str(tokenizer.tokenizer_json())
    exported = engine.encode_batch(texts, add_special_tokens=False)
    for text, ids, theirs in zip(texts, tokenizer.encode_batch(texts), exported, strict=True):
        assert tokenizer.encode_with_offsets(text).ids.tolist() == ids.tolist(), ascii(text)
        assert theirs.ids == ids.tolist(), ascii(text)


@pytest.mark.parametrize(
    'model, casing',
    [
        ('unigram', {'lower_case': True}),
        ('bpe', {'lower_case': False}),
        ('bpe', {'strip_accents': False}),
    ],
)
def test_odd_characters_have_the_same_ids_everywhere(model, casing):
    tokenizer, _ = train(TEXT, VocabularyOptions(400, model, character_coverage=1.0, **casing))
    odd = [*'\x0b\x0c\x1c\x1d\x1e\x1f\x85\x01\xa0\u3000\u200b\u200d\ufe0f\u2028', *'Σς\u0301\uff9e']
    words = "ΑΒΣ ΑΣ.Α Σ ΣΣ. ΑΣ'Β ｶﾞｷﾞﾊﾟ ﾊ\u309a \u089a İ 각ᆨ 👍🏽🇩🇪".split()
    around = [text for c in odd for text in (c, f'a{c}b', f'a {c} b', f'{c}Σ', f'ｶ{c}')]
    same_everywhere(tokenizer, [*around, *words, ' '.join(words)])

    # Deleted, as by WordPiece, and not a space.
    for char in '\x0c\x85':
        assert tokenizer.encode(f'qu{char}ick') == tokenizer.encode('quick')
        found = tokenizer.encode_with_offsets(f'{char}lazy{char} d{char}ogs')
        assert (found.starts[0], found.ends[-1]) == (1, 12)
    small = 'αβς' if tokenizer.lower_case else 'ΑΒΣ'
    assert tokenizer.encode('ΑΒΣ') == tokenizer.encode(small)
    if not tokenizer.strip_accents:
        assert tokenizer.encode('ｶﾞﾊﾟ') == tokenizer.encode('ガパ')
