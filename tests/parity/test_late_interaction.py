"""Models of late interaction against sentence-transformers': folders both ways, losses, gradients."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

_REASON = 'sentence-transformers is not installed: bash launch/test.sh --parity'
theirs = pytest.importorskip('sentence_transformers', reason=_REASON)
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from safetensors.numpy import load_file, save_file

from bert_jax.configs.model.late_interaction import LateInteractionConfig, LateInteractionSettings
from bert_jax.inference import Bert, export
from bert_jax.model.text_vectors import read_vectors
from tests.helpers import tiny_models

WORDS = [*tiny_models.WORDS, '[unused0]', '[unused1]', '[', ']', 'unused', '##0', '##1']
QUERIES = ['who is unable ?', 'paris', 'a ' * 80, '']
DOCUMENTS = ['paris is the capital of france .', 'a good , bad film . ' * 20, '', '. ? ,']
PROMPTS = (('query', '[unused0] '), ('document', '[unused1] '))
FIXED = {'query_expansion': 'fixed', 'expansion_length': 12}
# Settings of the kept rows, for families whose positions, norms and tokenizers differ.
CASES = {
    'bert': ({**FIXED, 'skip': 'punctuation', 'document_length': 20}, PROMPTS),
    'roberta': ({**FIXED, 'width': 6}, (('query', 'what '),)),
    'modernbert': ({'query_expansion': 'min', 'expansion_length': 9, 'attend': True}, PROMPTS),
    'distilbert': ({'normalize': False, 'query_length': 7}, ()),
}


@pytest.fixture
def tokenizer():
    from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer

    entries = [*tiny_models.SPECIAL_TOKENS.values(), *WORDS]
    return Tokenizer.of_kind(
        'wordpiece', '\n'.join(entries).encode(), tiny_models.Normalizer(True, True)
    )


def make_model(family: str, vocabulary: int):
    settings, prompts = CASES[family]
    settings = LateInteractionSettings(**{'width': 3, **settings})
    model = tiny_models.of_family(family, 'late_interaction', vocab_size=vocabulary)
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(model.config.hidden_size, settings.width)).astype(np.float32)
    sentence = LateInteractionConfig(settings, True, prompts, None)
    return model._replace(
        params={**model.params, 'projection': {'kernel': kernel}}, sentence=sentence
    )


def check_equal(ours: Bert, opened) -> np.ndarray:
    """Compare the vectors of all texts, and their scores; return these."""
    sides = {
        'query': (QUERIES, opened.encode_query),
        'document': (DOCUMENTS, opened.encode_document),
    }
    found = {}
    for name, (texts, encode) in sides.items():
        found[name] = ours.embed(texts, prompt=name)
        for vectors, wanted in zip(found[name], encode(texts, convert_to_numpy=True), strict=True):
            np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    queries, documents = (read_vectors(values, 'maxsim') for values in found.values())
    scores = np.asarray(queries.compare_all(documents))
    wanted = opened.similarity(*(encode(texts) for texts, encode in sides.values()))
    np.testing.assert_allclose(scores, wanted, atol=2e-5, rtol=1e-5)
    return scores


@pytest.mark.parametrize('family', CASES)
def test_a_folder_opens_with_the_same_scores_and_is_read_again(family, tokenizer, tmp_path):
    model, out = make_model(family, tokenizer.vocab_size), str(tmp_path / 'out')
    _, left_out = export.write(model, tokenizer, 'sentence_transformers', out)
    assert left_out == ()
    ours, opened = Bert.load(out, 'float32'), theirs.MultiVectorEncoder(out, device='cpu')
    scores = check_equal(ours, opened)
    assert np.ptp(scores, axis=1).min() > 1e-2  # documents differ

    # And back: what their release writes now is read as the same.
    opened.save(str(tmp_path / 'theirs'))
    np.testing.assert_allclose(
        check_equal(Bert.load(str(tmp_path / 'theirs'), 'float32'), opened), scores, atol=1e-5
    )
