"""Weights of classes, label smoothing and sets of labels: losses are torch's."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.train.losses import task_losses
from tests.bert_jax.train.test_class_targets import LABELS, LOGITS, WEIGHTS, FixedLogits

torch = pytest.importorskip('torch')


@pytest.mark.parametrize(('weights', 'smoothing'), [(WEIGHTS, 0.0), ((), 0.2), (WEIGHTS, 0.2)])
def test_classes(weights, smoothing):
    objective = task_losses.make_classification_objective(
        FixedLogits(), task_losses.ClassTargets(weights, smoothing)
    )
    batch = {'labels': jnp.array(LABELS), 'example_weights': jnp.ones(8)}
    loss, weight = objective.sums(jnp.array(LOGITS), batch, None)['loss']
    theirs = torch.nn.CrossEntropyLoss(
        weight=torch.tensor(weights) if weights else None, label_smoothing=smoothing
    )(torch.tensor(LOGITS), torch.tensor(LABELS, dtype=torch.long))
    np.testing.assert_allclose(loss / weight, theirs.item(), rtol=1e-6)


def test_sets_of_labels():
    held = (LOGITS > 0.3).astype(np.float32)[::-1].copy()
    batch = {'labels': jnp.array(held)[..., None], 'example_weights': jnp.ones(8)}
    objective = task_losses.make_multi_label_objective(FixedLogits())
    loss, weight = objective.sums(jnp.array(LOGITS * 9), batch, None)['loss']
    theirs = torch.nn.BCEWithLogitsLoss()(torch.tensor(LOGITS * 9), torch.tensor(held))
    np.testing.assert_allclose(loss / weight, theirs.item(), rtol=1e-5)
