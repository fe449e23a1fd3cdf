"""Losses of sentence encoders and their gradients, against those of sentence-transformers."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

torch = pytest.importorskip('torch')
losses = pytest.importorskip('sentence_transformers.losses')

from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.train.losses.multiple_negatives import make_vector_objective

B, D = 6, 16


def vectors(texts: int) -> np.ndarray:
    return np.random.default_rng(texts).normal(size=(B, texts, D)).astype(np.float32)


def ours(config: EmbeddingConfig, values: np.ndarray, labels: np.ndarray):
    """The loss of given vectors, and its gradient."""
    model = SimpleNamespace(apply=lambda variables, batch, rng: variables['params'])
    objective = make_vector_objective(model, config)
    batch = {'input_ids': values, 'labels': labels, 'example_weights': np.ones(B, np.float32)}
    batch['teacher_vectors'] = labels[..., None]

    def loss(params):
        total, _ = objective.sums(params, batch, None)['loss']
        return total / objective.weights(batch)['loss']

    return jax.value_and_grad(loss)(values)


class Given(torch.nn.Module):
    """A model whose vectors are given: features are the vectors of a column."""

    def forward(self, features):
        return {'sentence_embedding': features['vectors']}

    def get_embedding_dimension(self):
        return D

    def __len__(self):
        return 1


def theirs(make, values: np.ndarray, labels: np.ndarray):
    given = torch.tensor(values, requires_grad=True)
    columns = [{'vectors': given[:, column]} for column in range(given.shape[1])]
    loss = make(Given())(columns, torch.tensor(labels))
    loss.backward()
    return float(loss), given.grad.numpy()


def matryoshka(inner, dims, weights):
    return lambda model: losses.MatryoshkaLoss(model, inner(model), dims, weights)


# Equal labels are not compared by cosent; there are some.
LABELS = np.array([0.0, 0.4, 1.0, 0.4, 0.7, 0.0], np.float32)
RANKING = losses.MultipleNegativesRankingLoss
CASES = {
    'pairs': ({}, 2, RANKING),
    'triplets': ({}, 3, RANKING),
    'several negatives': ({'scale': 7.0}, 5, lambda model: RANKING(model, scale=7.0)),
    'cosent': ({'loss': 'cosent'}, 2, losses.CoSENTLoss),
    'cosine': ({'loss': 'cosine'}, 2, losses.CosineSimilarityLoss),
    'vectors of a teacher': ({'loss': 'mse', 'teacher': 'some'}, 3, losses.MSELoss),
    'one vector of a teacher': ({'loss': 'mse', 'teacher': 'some'}, 1, losses.MSELoss),
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
    'matryoshka of cosine': (
        {'loss': 'cosine', 'matryoshka': '16,4'},
        2,
        matryoshka(losses.CosineSimilarityLoss, [16, 4], None),
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients(case):
    settings, texts, make = CASES[case]
    labels = vectors(texts)[::-1].copy() if settings.get('loss') == 'mse' else LABELS
    value, gradient = ours(EmbeddingConfig(**settings), vectors(texts), labels)
    wanted, wanted_gradient = theirs(make, vectors(texts), labels)
    assert wanted > 0.1 and float(value) == pytest.approx(wanted, rel=2e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-5, atol=2e-6)
    assert np.abs(wanted_gradient).max() > 1e-3
