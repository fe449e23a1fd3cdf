"""Late interaction against sentence-transformers: folders both ways."""

from __future__ import annotations

import json

import numpy as np
import pytest

_REASON = 'sentence-transformers is not installed: bash launch/test.sh --parity'
theirs = pytest.importorskip('sentence_transformers', reason=_REASON)

from bert_jax.configs.model.late_interaction import LateInteractionConfig, LateInteractionSettings
from bert_jax.inference import Bert, export
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model.text_vectors import read_vectors
from tests.helpers import tiny_models

# Markers are entries, and can be spelled too.
MARKERS = '\n[unused0]\n[unused1]\n[\n]\nunused\n##0\n##1'
QUERIES = ['who is unable ?', 'a ' * 80, '']
DOCUMENTS = ['paris is the capital of france .', 'a good , bad film . ' * 20, '', '. ? ,']
PROMPTS = (('query', '[unused0] '), ('document', '[unused1] '))
FIXED = {'query_expansion': 'fixed', 'expansion_length': 12}
# Positions that padding has none of, windows, no norm.
CASES = {
    'bert': ({**FIXED, 'skip': 'punctuation', 'document_length': 20}, PROMPTS),
    'roberta': (FIXED, (('query', 'what '),)),
    'modernbert': ({'query_expansion': 'min', 'expansion_length': 9, 'attend': True}, PROMPTS),
    'distilbert': ({'normalize': False, 'query_length': 7}, ()),
}


@pytest.fixture
def tokenizer():
    plain = tiny_models.tokenizer()
    entries = plain.vocabulary.decode().rstrip() + MARKERS
    return Tokenizer.of_kind('wordpiece', entries.encode(), plain.normalizer)


def check_equal(folder) -> np.ndarray:
    """Compare the vectors of all texts, and their scores, in both programs; return these."""
    ours, opened = (
        Bert.load(folder, 'float32'),
        theirs.MultiVectorEncoder(str(folder), device='cpu'),
    )
    found = [ours.embed(QUERIES, prompt='query'), ours.embed(DOCUMENTS, prompt='document')]
    wanted = [opened.encode_query(QUERIES), opened.encode_document(DOCUMENTS)]
    for vectors, other in zip(sum(found, []), sum(wanted, []), strict=True):
        np.testing.assert_allclose(vectors, other, atol=1e-5)
    queries, documents = (read_vectors(values, ours.similarity) for values in found)
    scores = queries.compare_all(documents)
    np.testing.assert_allclose(scores, opened.similarity(*wanted), atol=2e-5, rtol=1e-5)
    return scores


@pytest.mark.parametrize('family', CASES)
def test_a_folder_opens_with_the_same_scores_and_is_read_again(family, tokenizer, tmp_path):
    settings, prompts = CASES[family]
    model = tiny_models.of_family(family, 'late_interaction', vocab_size=tokenizer.vocab_size)
    # Three numbers, as its layer has.
    settings = LateInteractionSettings(**{'width': 3, **settings})
    model = model._replace(sentence=LateInteractionConfig(settings, prompts=prompts))
    _, left_out = export.write(model, tokenizer, 'sentence_transformers', str(tmp_path / 'out'))
    scores = check_equal(tmp_path / 'out')
    assert left_out == () and np.ptp(scores, axis=1).min() > 1e-2  # documents differ
    # And back: what their release writes now is read as the same.
    theirs.MultiVectorEncoder(str(tmp_path / 'out')).save(str(tmp_path / 'theirs'))
    np.testing.assert_allclose(check_equal(tmp_path / 'theirs'), scores, atol=1e-5)


@pytest.mark.parametrize('stated', [{}, {'do_query_expansion': False, 'skiplist_words': ['paris']}])
def test_a_folder_of_pylate_has_the_same_scores(stated, tokenizer, tmp_path):
    """A folder of ours with what one of PyLate has: no other modules, and its own settings."""
    model = tiny_models.of_family('bert', 'late_interaction', vocab_size=tokenizer.vocab_size)
    model = model._replace(sentence=LateInteractionConfig(LateInteractionSettings(width=3)))
    export.write(model, tokenizer, 'sentence_transformers', str(tmp_path))
    modules = json.loads((tmp_path / 'modules.json').read_text())[:2]
    modules[1]['type'] = 'pylate.models.Dense.Dense'
    settings = {
        'model_type': 'ColBERT', 'query_prefix': '[unused0]', 'document_prefix': 'what ',
        'query_length': 10, 'document_length': 18, 'similarity_fn_name': 'MaxSim', **stated,
    }  # fmt: skip
    contents = {
        'modules.json': modules,
        'config_sentence_transformers.json': settings,
        'sentence_bert_config.json': {'max_seq_length': 17},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    check_equal(tmp_path)
