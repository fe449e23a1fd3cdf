"""ELECTRA against transformers: every class, read and written, and the losses with gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.conversion import huggingface, serving
from bert_jax.model import layout
from bert_jax.train.losses.replaced_tokens import sum_detection
from bert_jax.train.task_heads import CLASSES
from tests.parity import reference
from tests.parity.reference import torch

SHAPE = {
    'vocab_size': 100,
    'hidden_size': 32,
    'embedding_size': 12,
    'intermediate_size': 50,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'max_position_embeddings': 40,
}
WIDE = {'embedding_size': 32, 'num_hidden_layers': 1, 'hidden_act': 'relu'}


def rows(architecture: str) -> dict[str, np.ndarray]:
    batch = reference.inputs(100, 4, 24)
    if 'Choice' in architecture:
        names = ('input_ids', 'input_mask', 'segment_ids')
        return {name: batch[name].reshape(2, 2, 24) for name in names}
    if 'MaskedLM' in architecture:
        batch['masked_lm_positions'] = np.tile(np.arange(24, dtype=np.int32), (4, 1))
    return batch


@pytest.mark.parametrize(
    'architecture,changes',
    [
        ('ElectraModel', {}),
        ('ElectraModel', WIDE),
        ('ElectraForPreTraining', {}),
        ('ElectraForPreTraining', WIDE),
        ('ElectraForMaskedLM', {}),
        ('ElectraForMaskedLM', WIDE),
        ('ElectraForSequenceClassification', WIDE),
        ('ElectraForSequenceClassification', {'num_labels': 1}),
        ('ElectraForTokenClassification', {}),
        ('ElectraForQuestionAnswering', {}),
        ('ElectraForMultipleChoice', {}),
    ],
)
def test_outputs(tmp_path, architecture, changes):
    """In rows with padding; and what we write again is the same file, array for array."""
    theirs = reference.random_model(architecture, **{**SHAPE, **changes})
    theirs.save_pretrained(tmp_path / 'theirs')
    model = huggingface.read(tmp_path / 'theirs').model
    huggingface.write(tmp_path / 'ours', model)
    again = type(theirs).from_pretrained(tmp_path / 'ours').eval()
    both = theirs.state_dict(), again.state_dict()
    assert both[0].keys() == both[1].keys()
    for name, array in both[0].items():
        assert torch.equal(array, both[1][name]), name
    batch = rows(architecture)
    with torch.no_grad():
        wanted = again(**reference.tensors(batch))
    ours = jax.jit(serving.make_forward(model))(model.params, batch)
    for name, array in ours.items():
        if name == 'pooler_output':  # the first state: they have none
            continue
        real = batch['input_mask'] > 0 if array.shape[:2] == (4, 24) else ...
        there = wanted[name].numpy().reshape(array.shape)
        np.testing.assert_allclose(np.asarray(array)[real], there[real], atol=1e-5, err_msg=name)


def test_detection_and_its_gradients(tmp_path):
    """Their loss is the mean over real tokens, as ours is."""
    theirs = reference.random_model('ElectraForPreTraining', **SHAPE)
    theirs.save_pretrained(tmp_path)
    model, batch = huggingface.read(tmp_path).model, rows('')
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
