"""What we write opens in sentence-transformers, with the same vectors and scores; and back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.inference import Bert, Predictor, export
from bert_jax.runs.sources.source import Source
from tests.helpers import tiny_models

_REASON = 'sentence-transformers is not installed: bash launch/test.sh --parity'
theirs = pytest.importorskip('sentence_transformers', reason=_REASON)

pytestmark = pytest.mark.filterwarnings('default')
TEXTS = ['paris', 'paris is the capital of france', 'who is unable ? ' * 20]
PROMPTS = (('query', 'what is '), ('document', ''))
CASES = [
    SentenceConfig('cls', True, None, PROMPTS, 12),
    SentenceConfig('mean', False, 5, PROMPTS, None, 'dot'),
    SentenceConfig('max', True, 7),
    SentenceConfig('mean_sqrt_len'),
    SentenceConfig('weighted_mean', True),
    SentenceConfig('last'),
]


@pytest.mark.parametrize('sentence', CASES, ids=lambda sentence: sentence.pooling)
def test_a_directory_opens_with_the_same_vectors(sentence, tmp_path):
    out = tmp_path / 'out'
    model = tiny_models.model('BertModel')._replace(sentence=sentence)
    export.write(model, tiny_models.tokenizer(), 'sentence_transformers', str(out))
    opened, ours = theirs.SentenceTransformer(str(out), device='cpu'), Bert.load(str(out))
    assert opened.max_seq_length == (sentence.max_seq_length or 64)
    assert opened.similarity_fn_name == sentence.similarity
    for name in (None, *dict(sentence.prompts)):
        found = opened.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(ours.embed(TEXTS, prompt=name), found, atol=1e-5)

    # And back: what their release writes now is read as the same.
    opened.save(str(tmp_path / 'theirs'))
    again = Bert.load(str(tmp_path / 'theirs'))
    plain = lambda bert: dataclasses.replace(bert.source.bert.sentence, prompts=())
    assert plain(again) == plain(ours)
    assert again.source.bert.sentence.prompt('query') == sentence.prompt('query')
    np.testing.assert_allclose(again.embed(TEXTS), ours.embed(TEXTS), atol=1e-6)


@pytest.mark.parametrize('labels', [(), tiny_models.LABELS])
def test_a_pair_model_is_a_cross_encoder_with_the_same_scores(labels, tmp_path):
    model = tiny_models.model('BertForSequenceClassification', labels=labels)
    model = model._replace(problem_type=None if labels else 'regression')
    tokenizer, pairs = tiny_models.tokenizer(), [(TEXTS[0], TEXTS[1]), ('a bad film', 'good')]
    export.write(model, tokenizer, 'huggingface', str(tmp_path / 'out'))
    scorer = theirs.CrossEncoder(str(tmp_path / 'out'), device='cpu')
    answers = Predictor(Source(model, tokenizer, '', 0), 64, {})(pairs)
    if labels:
        found = scorer.predict(pairs, apply_softmax=True)
        wanted = [list(answer['probabilities'].values()) for answer in answers]
    else:
        found, wanted = scorer.predict(pairs), [answer['value'] for answer in answers]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
