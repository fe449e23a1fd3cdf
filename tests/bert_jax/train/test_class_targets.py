"""Weights of classes and label smoothing, against their formulas in numpy."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special
from sklearn.utils.class_weight import compute_class_weight

from bert_jax.input_pipeline.tasks.classification import class_weights
from bert_jax.train.losses import task_losses

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((8, 3)).astype(np.float32)
LABELS = np.array([0, 0, 1, 0, 2, 1, 0, 0], np.int32)
REAL = np.array([1, 1, 1, 1, 1, 1, 1, 0], np.float32)
WEIGHTS = (0.5, 2.0, 0.25)


class FixedLogits:
    """A model whose logits are its parameters."""

    config = types.SimpleNamespace(tuning=types.SimpleNamespace(consistent=False))
    outputs = 3

    def apply(self, variables, batch, dropout_rng=None):
        return variables['params']


def by_hand(logits, labels, weights, smoothing):
    """Return the mean loss as torch's cross_entropy defines it, in float64."""
    log_p = special.log_softmax(logits.astype(np.float64), axis=-1)
    w = np.array(weights or (1.0, 1.0, 1.0))
    own = -w[labels] * log_p[np.arange(len(labels)), labels]
    even = -(w * log_p).sum(axis=-1) / 3
    return ((1 - smoothing) * own + smoothing * even).sum() / w[labels].sum()


@pytest.mark.parametrize(('weights', 'smoothing'), [((), 0.2), (WEIGHTS, 0.2)])
def test_the_loss_is_the_formulas_and_filling_rows_count_nothing(weights, smoothing):
    targets = task_losses.ClassTargets(weights, smoothing)
    objective = task_losses.make_classification_objective(FixedLogits(), targets)
    batch = {'labels': jnp.array(LABELS), 'example_weights': jnp.array(REAL)}
    loss, weight = jax.jit(objective.sums)(jnp.array(LOGITS), batch, None)['loss']
    expected = by_hand(LOGITS[:7], LABELS[:7], weights, smoothing)
    np.testing.assert_allclose(loss / weight, expected, rtol=1e-6)
    np.testing.assert_allclose(objective.weights(batch)['loss'], weight, rtol=1e-6)
    filling = {**batch, 'example_weights': jnp.zeros(8)}
    assert objective.weights(filling)['loss'] == 1

    # The least loss of a constant answer, by a search that knows no formula.
    constant = lambda logits: by_hand(np.tile(logits, (8, 1)), LABELS, weights, smoothing)
    found = optimize.minimize(constant, np.zeros(3)).fun
    assert objective.constant({'labels': LABELS}, 4) == pytest.approx(found, abs=1e-6)


def test_weights_by_their_setting():
    labels = ('a', 'b=c', 'd')
    balanced = compute_class_weight('balanced', classes=np.arange(3), y=LABELS)
    assert class_weights('balanced', labels, LABELS.tolist()) == pytest.approx(tuple(balanced))
    assert class_weights('', labels, ()) == ()
    assert class_weights('b=c=3,a=.5', labels, ()) == (0.5, 3.0, 1.0)
