"""bert-fill-mask against transformers' fill-mask pipeline, on an exported model."""

from __future__ import annotations

import pytest

from bert_jax.conversion import huggingface
from bert_jax.inference.mask_filler import MaskFiller
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.runs.sources.source import read_source

_REASON = 'PyTorch and transformers are not installed: bash launch/test.sh --parity'
torch = pytest.importorskip('torch', reason=_REASON)
transformers = pytest.importorskip('transformers', reason=_REASON)

from tests.parity import reference

# Warnings of torch and transformers are not ours to mend.
pytestmark = pytest.mark.filterwarnings('default')
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
    sizes = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4}
    theirs = reference.random_model(
        'BertForMaskedLM',
        vocab_size=tokenizer.vocab_size,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        **sizes,
    )
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
