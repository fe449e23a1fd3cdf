"""Masks filled in: what is understood as one, and what is refused in one line."""

from __future__ import annotations

import pytest

from bert_jax.conversion.trained_model import Model
from bert_jax.inference import export
from bert_jax.inference.bert import MaskFiller
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.directory import SPECIAL_TOKENS
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.sources.source import Source, read_source
from tests.helpers import tiny_models
from tests.helpers.refusals import refused


def source(architecture: str, tokenizer: Tokenizer | None = None) -> Source:
    model: Model = tiny_models.model(architecture)
    return Source(model, tokenizer or tiny_models.tokenizer(), 'a/folder', 0)


def test_the_usual_spelling_is_understood_by_a_model_whose_mask_token_is_another():
    names = [*SPECIAL_TOKENS.values()][:4] + ['<mask>']
    vocabulary = ('\n'.join([*names, *tiny_models.WORDS]) + '\n').encode()
    own = Tokenizer.of_kind('wordpiece', vocabulary, Normalizer(True, True), names)
    fill = MaskFiller(source('BertForMaskedLM', own), 2)
    usual = MaskFiller(source('BertForMaskedLM'), 2)
    assert fill('a [MASK] film')['masks'] == fill('a <mask> film')['masks']
    shares = lambda answer: [word['probability'] for word in answer['masks'][0]]
    assert shares(fill('a [MASK] film')) == shares(usual('a [MASK] film'))


@pytest.mark.parametrize(
    ('architecture', 'text', 'message'),
    [
        ('BertForMaskedLM', 'paris', r"'paris': no \[MASK\] in it"),
        ('BertForMaskedLM', '[MASK] ' * 21, '21 mask tokens: at most 20'),
        ('BertForMaskedLM', '[MASK]' + ' film' * 62, r"\.\.\.': 63 word pieces, .* reads 62"),
        ('BertModel', '[MASK]', 'a/folder: BertModel has no head for masked words'),
    ],
)
def test_what_cannot_be_answered_is_refused(architecture, text, message):
    with refused(message):
        MaskFiller(source(architecture), 5)(text)


@pytest.mark.parametrize('rows', [0, 3, 64])
def test_an_export_has_rows_that_are_never_predicted(tmp_path, rows):
    """Those that a vocabulary of ModernBERT's layout does not use; the model may have some."""
    options = VocabularyOptions(70, 'wordpiece', lower_case=True, layout='modernbert')
    tokenizer = vocabulary.train([' '.join(tiny_models.WORDS)] * 9, options)[0]
    assert tokenizer.vocab_size < 128 == tokenizer.vocab_size + tokenizer.unused
    size = tokenizer.vocab_size + rows
    model = tiny_models.of_family('modernbert', 'masked_words', vocab_size=size, max_position=64)
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'a'))

    there = read_source(str(tmp_path / 'a'))
    assert there.model.vocab_size == max(128, size)
    bias, kept = there.params['mlm']['bias'], model.params['mlm']['bias']
    assert (bias[: tokenizer.vocab_size] == kept[: tokenizer.vocab_size]).all()
    assert (bias[tokenizer.vocab_size : max(128, size)] == -1e4).all()
    fill = [MaskFiller(s, 3) for s in (there, Source(model, tokenizer, '', 0))]
    words = [f('paris is[MASK].')['masks'][0] for f in fill]
    assert [word['token'] for word in words[0]] == [word['token'] for word in words[1]]
    if not rows:
        assert [w['probability'] for w in words[0]] == pytest.approx(
            [w['probability'] for w in words[1]], abs=1e-6
        )
