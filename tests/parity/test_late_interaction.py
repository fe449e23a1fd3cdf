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
transformers = pytest.importorskip('transformers')

from safetensors.numpy import load_file, save_file

from bert_jax.configs.model.late_interaction import LateInteractionConfig, LateInteractionSettings
from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.inference import Bert, export
from bert_jax.model.late_interaction import TokenVectors
from bert_jax.model.text_vectors import read_vectors
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.task_heads import HEADS
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


def write_base(tokenizer, folder) -> tuple[np.ndarray, object]:
    """Write a random encoder and its tokenizer as transformers does; return a layer for it."""
    model = tiny_models.of_family('bert', 'encoder', vocab_size=tokenizer.vocab_size)
    export.write(model, tokenizer, 'huggingface', str(folder))
    rng = np.random.default_rng(2)
    return rng.normal(size=(5, model.config.hidden_size)).astype(np.float32)


@pytest.mark.parametrize('stated', [{}, {'do_query_expansion': False, 'skiplist_words': ['paris']}])
def test_a_folder_of_pylate_has_the_same_scores(stated, tokenizer, tmp_path):
    layer, folder = write_base(tokenizer, tmp_path / 'it'), tmp_path / 'it'
    dense = folder / '1_Dense'
    dense.mkdir()
    save_file({'linear.weight': layer}, dense / 'model.safetensors')
    identity = 'torch.nn.modules.linear.Identity'
    settings = {'in_features': layer.shape[1], 'out_features': 5, 'bias': False}
    (dense / 'config.json').write_text(json.dumps(settings | {'activation_function': identity}))
    modules = [
        {'idx': 0, 'name': '0', 'path': '', 'type': 'sentence_transformers.models.Transformer'},
        {'idx': 1, 'name': '1', 'path': '1_Dense', 'type': 'pylate.models.Dense.Dense'},
    ]
    (folder / 'modules.json').write_text(json.dumps(modules))
    settings = {
        'model_type': 'ColBERT', 'query_prefix': '[unused0]', 'document_prefix': 'what ',
        'query_length': 10, 'document_length': 18, 'attend_to_expansion_tokens': False,
        'similarity_fn_name': 'MaxSim', 'prompts': {},
    }  # fmt: skip
    (folder / 'config_sentence_transformers.json').write_text(json.dumps(settings | stated))
    rows = {'max_seq_length': 17, 'do_lower_case': False}
    (folder / 'sentence_bert_config.json').write_text(json.dumps(rows))
    check_equal(
        Bert.load(str(folder), 'float32'), theirs.MultiVectorEncoder(str(folder), device='cpu')
    )


def test_a_folder_of_stanford_has_the_same_scores(tokenizer, tmp_path):
    layer, folder = write_base(tokenizer, tmp_path / 'it'), tmp_path / 'it'
    arrays = {
        f'bert.{name}': array for name, array in load_file(folder / 'model.safetensors').items()
    }
    save_file({**arrays, 'linear.weight': layer}, folder / 'model.safetensors', {'format': 'pt'})
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | {'architectures': ['HF_ColBERT']}))
    metadata = {'query_maxlen': 11, 'doc_maxlen': 19, 'dim': 5, 'similarity': 'cosine'}
    (folder / 'artifact.metadata').write_text(json.dumps(metadata))
    check_equal(
        Bert.load(str(folder), 'float32'), theirs.MultiVectorEncoder(str(folder), device='cpu')
    )


B, T, D = 5, 7, 6


class Given(torch.nn.Module):
    """A model whose vectors are given: features are those of a column."""

    def forward(self, features, task=None):
        return features

    def get_embedding_dimension(self):
        return D


def draw_batch(texts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors [B, C, T, D], which of them are scored, and a teacher's scores."""
    rng = np.random.default_rng(texts)
    vectors = rng.normal(size=(B, texts, T, D)).astype(np.float32)
    scored = rng.integers(0, 2, (B, texts, T))
    scored[..., 1] = 1
    return vectors, scored, rng.normal(size=(B, texts - 1)).astype(np.float32)


LOSSES = {
    'pairs': ({}, 2, 'MultiVectorMultipleNegativesRankingLoss', {}),
    'negatives': ({'scale': 0.3}, 4, 'MultiVectorMultipleNegativesRankingLoss', {'scale': 0.3}),
    'margins': ({'loss': 'margin_mse'}, 4, 'MultiVectorMarginMSELoss', {}),
    'distilled': (
        {'loss': 'distill_kl', 'temperature': 0.25},
        4,
        'MultiVectorDistillKLDivLoss',
        {'temperature': 0.25},
    ),
    'distilled as ever': ({'loss': 'distill_kl'}, 3, 'MultiVectorDistillKLDivLoss', {}),
}


@pytest.mark.parametrize('case', LOSSES)
def test_losses_and_gradients(case):
    settings, texts, name, their_settings = LOSSES[case]
    vectors, scored, scores = draw_batch(texts)
    apply = lambda variables, batch, rng: variables['params']
    objective = HEADS['late_interaction'].make_objective(
        SimpleNamespace(apply=apply, kernel='xla'),
        LossSettings(embedding=EmbeddingConfig(**settings)),
    )
    batch = {'input_ids': scored, 'example_weights': np.ones(B, np.float32)}
    batch['teacher_scores'] = scores[..., None]

    def loss(vectors):
        total, _ = objective.sums(TokenVectors(vectors, scored), batch, None)['loss']
        return total / objective.weights(batch)['loss']

    value, gradient = jax.value_and_grad(loss)(vectors)
    given = torch.tensor(vectors, requires_grad=True)
    columns = []
    for column in range(texts):
        mask = torch.tensor(scored[:, column])
        columns.append({'token_embeddings': given[:, column], 'attention_mask': mask})
    module = import_module('sentence_transformers.multi_vector_encoder.losses')
    wanted = getattr(module, name)(Given(), **their_settings)(columns, torch.tensor(scores))
    wanted.backward()
    assert float(value) == pytest.approx(wanted.item(), rel=2e-6)
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(gradient).max() > 1e-3
