"""Losses of sentence encoders and their gradients, against those of sentence-transformers."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

torch = pytest.importorskip('torch')
losses = pytest.importorskip('sentence_transformers.losses')

sparse = pytest.importorskip('sentence_transformers.sparse_encoder.losses')
tokens = pytest.importorskip('sentence_transformers.multi_vector_encoder.losses')
from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
    SpladeRegularizerWeightSchedulerCallback,
)
from sentence_transformers.util import pairwise_dot_score

from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.model.late_interaction import TokenVectors
from bert_jax.train.losses.multiple_negatives import make_vector_objective
from bert_jax.train.losses.objective import add_losses
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.search_heads import LateInteraction, SparseEmbedding

B, D = 6, 16


def vectors(texts: int) -> np.ndarray:
    return np.random.default_rng(texts).normal(size=(B, texts, D)).astype(np.float32)


MODEL = SimpleNamespace(apply=lambda variables, batch, rng: variables['params'])


def ours(objective, values: np.ndarray, labels: np.ndarray, step: int, steps: int):
    """The loss of given vectors at a step of a run, and its gradient."""
    batch = {'input_ids': values, 'labels': labels, 'example_weights': np.ones(B, np.float32)}
    batch['teacher_vectors'] = batch['teacher_scores'] = labels[..., None]

    def loss(params):
        return add_losses(objective.sums(params, batch, None), objective.weigh(batch, step, steps))

    return jax.value_and_grad(loss)(values)


class Given(torch.nn.Module):
    """A model whose vectors are given: features are those of a column."""

    def forward(self, features, task=None):
        return features

    def get_embedding_dimension(self):
        return D

    def __len__(self):
        return 1


def theirs(make, values: np.ndarray, labels: np.ndarray, masks: np.ndarray | None):
    given, columns = torch.tensor(values, requires_grad=True), []
    for column in range(values.shape[1]):
        columns.append({'sentence_embedding': given[:, column]})
        if masks is not None:
            mask = torch.tensor(masks[:, column])
            columns[-1] = {'token_embeddings': given[:, column], 'attention_mask': mask}
    loss = make(Given())(columns, torch.tensor(labels))
    loss.backward()
    return float(loss), given.grad.numpy()


def check_equal(objective, make, values, labels, masks=None, step=8, steps=9) -> None:
    value, gradient = ours(objective, values, labels, step, steps)
    wanted, wanted_gradient = theirs(make, values, labels, masks)
    assert wanted > 0.1 and float(value) == pytest.approx(wanted, rel=2e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-5, atol=2e-6)
    assert np.abs(wanted_gradient).max() > 1e-3


def matryoshka(inner, dims, weights):
    return lambda model: losses.MatryoshkaLoss(model, inner(model), dims, weights)


# Equal labels are not compared by cosent; there are some.
LABELS = np.array([0.0, 0.4, 1.0, 0.4, 0.7, 0.0], np.float32)
RANKING = losses.MultipleNegativesRankingLoss
CASES = {
    'pairs': ({}, 2, RANKING),
    'several negatives': ({'scale': 7.0}, 5, lambda model: RANKING(model, scale=7.0)),
    'cosent': ({'loss': 'cosent'}, 2, losses.CoSENTLoss),
    'cosine': ({'loss': 'cosine'}, 2, losses.CosineSimilarityLoss),
    'vectors of a teacher': ({'loss': 'mse', 'teacher': 'some'}, 3, losses.MSELoss),
    'margins of a teacher': ({'loss': 'margin_mse'}, 5, losses.MarginMSELoss),
    'scores of a teacher': (
        {'loss': 'distill_kl', 'temperature': 3.0},
        4,
        lambda model: losses.DistillKLDivLoss(model, temperature=3.0),
    ),
    'scores at temperature one': ({'loss': 'distill_kl'}, 4, losses.DistillKLDivLoss),
    'matryoshka of triplets': (
        {'matryoshka': '16,8,3', 'matryoshka_weights': '1,0.5,2'},
        3,
        matryoshka(RANKING, [16, 8, 3], [1, 0.5, 2]),
    ),
    'matryoshka of cosent': (
        {'loss': 'cosent', 'matryoshka': '8,4'},
        2,
        matryoshka(losses.CoSENTLoss, [8, 4], None),
    ),
}


SCORES = lambda texts: 4 * vectors(texts)[:, 1:, 0]
LABELS_OF = {
    'mse': lambda texts: vectors(texts)[::-1].copy(),
    'margin_mse': SCORES,
    'distill_kl': SCORES,
}


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients(case):
    settings, texts, make = CASES[case]
    labels = LABELS_OF.get(settings.get('loss'), lambda texts: LABELS)(texts)
    objective = make_vector_objective(MODEL, EmbeddingConfig(**settings))
    check_equal(objective, make, vectors(texts), labels)


SPARSE = {
    'multiple_negatives': (2, sparse.SparseMultipleNegativesRankingLoss, LABELS),
    'margin_mse': (4, sparse.SparseMarginMSELoss, SCORES(4)),
    'distill_kl': (4, sparse.SparseDistillKLDivLoss, SCORES(4)),
    'cosent': (2, lambda model: sparse.SparseCoSENTLoss(model, 1.0, pairwise_dot_score), LABELS),
}


@pytest.mark.parametrize('name', SPARSE)
def test_losses_of_sparse_vectors(name):
    """With the FLOPS, whose weights grow over the first third of a run, and without them."""
    texts, make, labels = SPARSE[name]
    values = np.maximum(vectors(texts), 0)
    settings = LossSettings(embedding=EmbeddingConfig(loss=name))
    objective = SparseEmbedding().make_objective(MODEL, settings)

    def splade(given, step):
        made = sparse.SpladeLoss(given, make(given), 0.08, 0.1)
        ramp = SpladeRegularizerWeightSchedulerCallback(made)
        ramp.on_train_begin(None, SimpleNamespace(max_steps=20), None)
        ramp.on_step_begin(None, SimpleNamespace(global_step=step), None)
        return lambda columns, target: sum(made(columns, target).values())

    for step in (0, 4, 5, 6, 19):
        make_now = lambda given: splade(given, step)
        check_equal(objective, make_now, values, labels, step=step, steps=20)


TOKENS = {
    'multiple_negatives': (4, tokens.MultiVectorMultipleNegativesRankingLoss),
    'margin_mse': (4, tokens.MultiVectorMarginMSELoss),
    'distill_kl': (3, tokens.MultiVectorDistillKLDivLoss),
}


@pytest.mark.parametrize('name', TOKENS)
def test_losses_of_late_interaction(name):
    texts, make = TOKENS[name]
    rng = np.random.default_rng(texts)
    values = rng.normal(size=(B, texts, 7, D)).astype(np.float32)
    masks = rng.integers(0, 2, (B, texts, 7))
    masks[..., 1] = 1
    model = SimpleNamespace(
        apply=lambda variables, batch, rng: TokenVectors(variables['params'], masks), kernel='xla'
    )
    settings = LossSettings(embedding=EmbeddingConfig(loss=name))
    objective = LateInteraction().make_objective(model, settings)
    check_equal(objective, make, values, SCORES(texts), masks)
