"""bert-fill-mask against transformers' fill-mask pipeline, on an exported model."""

from __future__ import annotations

import pytest

from bert_jax.conversion import huggingface
from bert_jax.inference.bert import MaskFiller
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.runs.sources.source import read_source
from tests.parity import reference
from tests.parity.reference import transformers

TEXTS = [
    'a sheep walks over the [MASK].',
    '[MASK] sheep, [MASK] over the green hill!',
    'the [MASK]',
]


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe'])
def test_words_and_probabilities_of_every_mask(tmp_path, kind):
    corpus = ['a sheep walks over the green hill, and the dog sees it.', 'the hills are green!'] * 9
    options = vocabulary.VocabularyOptions(60, kind, lower_case=True, character_coverage=1.0)
    tokenizer = vocabulary.train(corpus, options)[0]
    # A model of transformers' making, read and exported by us.
    sizes = reference.sizes(vocab_size=tokenizer.vocab_size, initializer_range=0.5)
    theirs = reference.random_model('BertForMaskedLM', **sizes)
    theirs.save_pretrained(tmp_path / 'theirs')
    tokenizer.save(tmp_path / 'ours')
    huggingface.write(tmp_path / 'ours', huggingface.read(tmp_path / 'theirs').model)

    fill = MaskFiller(read_source(str(tmp_path / 'ours')), 7)
    pipeline = transformers.pipeline('fill-mask', model=str(tmp_path / 'ours'), top_k=7)
    names = pipeline.tokenizer.convert_ids_to_tokens
    for text in TEXTS:
        found, wanted = fill(text)['masks'], pipeline(text)
        wanted = wanted if isinstance(wanted[0], list) else [wanted]
        assert len(found) == len(wanted) == text.count('[MASK]')
        for ours, other in zip(found, wanted, strict=True):
            assert [word['token'] for word in ours] == [names(word['token']) for word in other]
            assert [word['probability'] for word in ours] == pytest.approx(
                [word['score'] for word in other], abs=2e-5, rel=0
            )
