"""Late interaction against sentence-transformers: folders both ways, losses, gradients."""

from __future__ import annotations

import json
from importlib import import_module
from types import SimpleNamespace

import jax
import numpy as np
import pytest

_REASON = 'sentence-transformers is not installed: bash launch/test.sh --parity'
theirs = pytest.importorskip('sentence_transformers', reason=_REASON)
torch = pytest.importorskip('torch')

from bert_jax.configs.model.late_interaction import LateInteractionConfig, LateInteractionSettings
from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.inference import Bert, export
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.model.late_interaction import TokenVectors
from bert_jax.model.text_vectors import read_vectors
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.task_heads import HEADS
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


B, T, D = 5, 7, 6


class Given(torch.nn.Module):
    """A model whose vectors are given: features are those of a column."""

    def forward(self, features, task=None):
        return features


LOSSES = {
    'pairs': ({}, 2, 'MultipleNegativesRankingLoss', {}),
    'negatives': ({'scale': 0.3}, 4, 'MultipleNegativesRankingLoss', {'scale': 0.3}),
    'margins': ({'loss': 'margin_mse'}, 4, 'MarginMSELoss', {}),
    'distilled': ({'loss': 'distill_kl'}, 3, 'DistillKLDivLoss', {}),
}


@pytest.mark.parametrize('case', LOSSES)
def test_losses_and_gradients(case):
    settings, texts, name, their_settings = LOSSES[case]
    rng = np.random.default_rng(texts)
    vectors = rng.normal(size=(B, texts, T, D)).astype(np.float32)
    scored, scores = rng.integers(0, 2, (B, texts, T)), rng.normal(size=(B, texts - 1))
    scored[..., 1] = 1
    objective = HEADS['late_interaction'].make_objective(
        SimpleNamespace(apply=lambda variables, batch, rng: variables['params'], kernel='xla'),
        LossSettings(embedding=EmbeddingConfig(**settings)),
    )
    batch = {'input_ids': scored, 'example_weights': np.ones(B, np.float32)}
    batch['teacher_scores'] = scores[..., None].astype(np.float32)

    def loss(vectors):
        total, _ = objective.sums(TokenVectors(vectors, scored), batch, None)['loss']
        return total / objective.weights(batch)['loss']

    value, gradient = jax.value_and_grad(loss)(vectors)
    given, masks = torch.tensor(vectors, requires_grad=True), torch.tensor(scored)
    columns = []
    for column in range(texts):
        named = {'token_embeddings': given[:, column], 'attention_mask': masks[:, column]}
        columns.append(named)
    module = import_module('sentence_transformers.multi_vector_encoder.losses')
    their_loss = getattr(module, f'MultiVector{name}')(Given(), **their_settings)
    wanted = their_loss(columns, torch.tensor(scores, dtype=torch.float32))
    wanted.backward()
    assert float(value) == pytest.approx(wanted.item(), rel=2e-6)
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(gradient).max() > 1e-3
