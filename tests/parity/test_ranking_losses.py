"""Losses of rerankers and their gradients, against those of sentence-transformers.

Lists have two to four documents; a row is [CLS] query [SEP] document [SEP], each of one piece.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

torch = pytest.importorskip('torch')
losses = pytest.importorskip('sentence_transformers.cross_encoder.losses')

from sentence_transformers import CrossEncoder

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.train.losses import ranking

B, C = 6, 4
LENGTHS = np.array([4, 2, 3, 4, 3, 2])
PRESENT = np.arange(C)[None] < LENGTHS[:, None]
RANDOM = np.random.default_rng(3)
LOGITS = RANDOM.normal(size=(B, B * C), scale=2).astype(np.float32)  # query, document
GRADES = RANDOM.integers(0, 4, (B, C)).astype(np.float32)
GRADES[:, :2] = [3, 1]  # each list has an order
TEACHER = RANDOM.normal(size=(B, C)).astype(np.float32)


class Given(CrossEncoder):
    """A cross-encoder whose logits are given: a pair is the numbers of its texts."""

    num_labels, device = 1, 'cpu'

    def __init__(self, logits):
        torch.nn.Module.__init__(self)
        self.logits = logits

    def preprocess(self, pairs, **_):
        return {'pairs': torch.tensor(pairs)}

    def forward(self, inputs):
        query, document = inputs['pairs'].T
        return {'scores': self.logits[query, document][:, None]}


def make_batch(grades=GRADES, present=PRESENT):
    """Document c of list b is number b C + c; what is absent is [CLS] alone."""
    ids = np.tile(np.array([1, 0, 2, 0, 2], np.int32), (B, C, 1))
    ids[..., 1], ids[..., 3] = 10 + np.arange(B)[:, None], 100 + np.arange(B * C).reshape(B, C)
    return {
        'input_ids': ids,
        'input_mask': (present[..., None] | (np.arange(5) < 1)).astype(np.int32),
        'segment_ids': np.zeros_like(ids),
        'labels': np.where(present, grades, 0)[..., None],
        'teacher_scores': np.where(present, TEACHER, 0)[..., None],
        'example_weights': np.ones(B, np.float32),
    }


def ours(batch, **settings):
    """The loss of the given logits, and its gradient."""

    def apply(variables, batch, rng):
        query, document = batch['input_ids'][..., 1] - 10, batch['input_ids'][..., 3] - 100
        return variables['params'][query, document][..., None]

    objective = ranking.make_ranking_objective(
        SimpleNamespace(apply=apply), RankingConfig(**settings)
    )

    def loss(params):
        total, _ = objective.sums(params, batch, None)['loss']
        return total / objective.weights(batch)['loss']

    return jax.value_and_grad(loss)(LOGITS)


def assert_equal(found, loss, given):
    loss.backward()
    wanted, gradient = float(loss), given.grad.numpy()
    assert wanted > 0.1 and float(found[0]) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(gradient).max() > 1e-3


def tensor():
    return torch.tensor(LOGITS, requires_grad=True)


def test_binary_cross_entropy():
    given, weight = tensor(), torch.tensor(3.0)
    query, place = np.nonzero(PRESENT)
    inputs = [query.tolist(), (query * C + place).tolist()]
    loss = losses.BinaryCrossEntropyLoss(Given(given), pos_weight=weight)
    grades = GRADES / 3
    wanted = loss(inputs, torch.tensor(grades[PRESENT]))
    found = ours(make_batch(grades), loss='binary_cross_entropy', pos_weight=3.0)
    assert_equal(found, wanted, given)


@pytest.mark.parametrize(
    'settings, make',
    [
        ({'loss': 'list_cross_entropy'}, losses.ListNetLoss),
        ({'loss': 'lambda'}, losses.LambdaLoss),
        ({'loss': 'lambda', 'k': 2}, lambda model: losses.LambdaLoss(model, k=2)),
        ({'loss': 'ranknet'}, losses.RankNetLoss),
    ],
)
def test_lists(settings, make):
    given = tensor()
    documents = [[b * C + c for c in range(count)] for b, count in enumerate(LENGTHS)]
    labels = [torch.tensor(row[:count]) for row, count in zip(GRADES, LENGTHS, strict=True)]
    wanted = make(Given(given))([list(range(B)), documents], labels)
    assert_equal(ours(make_batch(), **settings), wanted, given)


def test_margin_mse():
    given, total = tensor(), 0.0
    for b, count in enumerate(LENGTHS):
        loss = losses.MarginMSELoss(Given(given), reduction='sum')
        columns = [[b], *([b * C + c] for c in range(count))]
        total = total + loss(columns, [torch.tensor(TEACHER[b, :count])])
    found = ours(make_batch(), loss='margin_mse')
    assert_equal(found, total / (LENGTHS - 1).sum(), given)


@pytest.mark.parametrize('count', [4, 99])
def test_multiple_negatives(count, monkeypatch):
    """Of all documents that are not the example's own, or of those that are drawn here."""
    batch = make_batch(present=np.ones_like(PRESENT))
    batch = ranking.add_negatives(batch, [1], count)
    drawn = batch['input_ids'][:, C:, 3] - 100
    assert drawn.shape == (B, min(count, (B - 1) * C))
    # There documents are numbered column by column.
    numbers = torch.tensor(drawn % C * B + drawn // C)
    monkeypatch.setattr(torch, 'multinomial', lambda mask, number: numbers)
    given = tensor()
    columns = [(np.arange(B) * C + c).tolist() for c in range(C)]
    loss = losses.MultipleNegativesRankingLoss(Given(given), num_negatives=count)
    wanted = loss([list(range(B)), *columns], None)
    found = ours(batch, loss='multiple_negatives', num_negatives=count)
    assert_equal(found, wanted, given)
