"""ELECTRA's detection against transformers: its loss, and the gradients of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.conversion import huggingface
from bert_jax.model import layout
from bert_jax.train.losses.replaced_tokens import sum_detection
from bert_jax.train.task_heads import CLASSES
from tests.parity import reference
from tests.parity.reference import torch
from tests.parity.test_encoders import pair, rows


def test_detection_and_its_gradients(tmp_path):
    """Their loss is the mean over real tokens, as ours is."""
    theirs, model = pair('electra', 'ForPreTraining', tmp_path)
    batch = rows(model, 24)
    labels = np.random.default_rng(0).random((4, 24)) < 0.3
    head = CLASSES['ElectraForPreTraining']
    module = head.model(model.config, jnp.float32, 2)
    batch['example_weights'] = np.ones(4, np.float32)

    def loss(params):
        total, weight = sum_detection(module.apply({'params': params}, batch), labels, batch)[
            'rtd_loss'
        ]
        return total / weight

    params = layout.separate_blocks(model.params)
    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    there = theirs(**reference.tensors(batch), labels=torch.from_numpy(labels.astype(np.int64)))
    there.loss.backward()
    np.testing.assert_allclose(value, there.loss.item(), rtol=1e-5)
    stacked = jax.device_get(layout.stack_blocks(gradient))
    ours = huggingface.make_tensors(model._replace(params=stacked), head.parts)
    full = model.config.traits.transformers.full
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert {full(name, model.architecture) for name in ours} == wanted.keys()
    for name, array in ours.items():
        slope = wanted[full(name, model.architecture)]
        if 'word_embeddings' in name:  # torch gives the padding's row none
            array[0] = slope[0] = 0
        np.testing.assert_allclose(array, slope, atol=1e-5, err_msg=name)
