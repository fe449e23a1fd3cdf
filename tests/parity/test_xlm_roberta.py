"""XLM-R and CamemBERT against transformers: gradients of rows with padding, and packed rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.conversion import huggingface
from bert_jax.train.task_heads import CLASSES
from tests.parity import reference
from tests.parity.reference import torch

SHAPE = reference.sizes(type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3)
CLASSIFIERS = ['XLMRobertaForSequenceClassification', 'CamembertForSequenceClassification']


@pytest.mark.parametrize('architecture', [*CLASSIFIERS, 'XLMRobertaForMaskedLM'])
def test_gradients(tmp_path, architecture):
    theirs = reference.random_model(architecture, **SHAPE)
    theirs.save_pretrained(tmp_path / 'weights')
    model = huggingface.read(tmp_path / 'weights').model
    batch = reference.inputs(100, 5, 20)
    mask = batch['input_mask']
    batch['input_ids'] = np.where(mask, batch['input_ids'], 1)
    batch['segment_ids'][:] = 0
    batch['masked_lm_positions'] = np.tile(np.arange(20, dtype=np.int32), (5, 1))
    out = theirs(**reference.tensors(batch, segments=False)).logits
    weights = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    if out.ndim == 3:
        weights *= mask[..., None]
    module = CLASSES[architecture].model(model.config, jnp.float32, 3)

    def loss(params):
        logits = module.apply({'params': params}, batch)
        return ((logits[0][..., :100] if out.ndim == 3 else logits) * weights).sum()

    # Pre-training has a pooler that no output is of, and this class of theirs has none.
    unread = {'kernel': np.zeros((32, 32), np.float32), 'bias': np.zeros(32, np.float32)}
    encoder = {'pooler': unread} | model.params['encoder']
    value, found = jax.jit(jax.value_and_grad(loss))(model.params | {'encoder': encoder})
    if 'pooler' not in model.params['encoder']:
        del found['encoder']['pooler']
    wanted_value = (out * torch.from_numpy(weights)).sum()
    wanted_value.backward()
    assert abs(float(value) - wanted_value.item()) < 1e-4
    # Saved as if they were weights, so that reading them brings them into our tree.
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    theirs.save_pretrained(tmp_path / 'slopes')
    wanted = huggingface.read(tmp_path / 'slopes').model.params
    largest = max(np.abs(array).max() for array in jax.tree.leaves(wanted))

    def compare(path, ours, there):
        scale = max(np.abs(there).max(), 1e-3 * largest)  # that of a key's bias is 0
        np.testing.assert_allclose(ours / scale, there / scale, atol=2e-5, rtol=0, err_msg=path)

    jax.tree.map_with_path(compare, found, wanted)
    assert largest > 1


@pytest.mark.parametrize('architecture', CLASSIFIERS)
def test_examples_of_a_packed_row_are_each_as_by_itself(tmp_path, architecture):
    """Their positions begin behind the rows of no text, too."""
    theirs = reference.random_model(architecture, **SHAPE)
    theirs.save_pretrained(tmp_path)
    model = huggingface.read(tmp_path).model
    lengths, rng = [30, 9, 17], np.random.default_rng(0)
    examples = [rng.integers(5, 100, n) for n in lengths]
    batch = {
        'input_ids': np.concatenate([*examples, np.full(4, 1)]),
        'pack_ids': np.repeat([1, 2, 3, 0], [*lengths, 4]),
        'position_ids': np.concatenate([*map(np.arange, lengths), np.zeros(4)]),
        'cls_positions': np.cumsum([0, *lengths])[:-1],
        'segment_ids': np.zeros(60),
    }
    batch = {name: array.astype(np.int32)[None] for name, array in batch.items()}
    module = CLASSES[architecture].model(model.config, jnp.float32, 3)
    logits = np.asarray(module.apply({'params': model.params}, batch))[0]
    for example, found in zip(examples, logits, strict=True):
        with torch.no_grad():
            wanted = theirs(input_ids=torch.from_numpy(example)[None]).logits[0].numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)
