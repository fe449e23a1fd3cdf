"""ModernBERT against transformers: every class, windows, padding, packing, gradients, settings."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import batches, torch_models
from bert_jax.configs.errors import UserError
from bert_jax.configs.presets import modernbert
from bert_jax.configs.schema import PretrainConfig
from bert_jax.conversion import huggingface, serving
from bert_jax.conversion.trained_model import Model
from bert_jax.model import layout
from bert_jax.train.task_heads import CLASSES
from tests.parity import reference
from tests.parity.reference import torch

SHAPE = {
    'vocab_size': 100,
    'hidden_size': 32,
    'intermediate_size': 24,
    'num_hidden_layers': 4,
    'num_attention_heads': 4,
    'max_position_embeddings': 160,
    'local_attention': 16,
    'pad_token_id': 3,
    'bos_token_id': 1,
    'eos_token_id': 2,
    'cls_token_id': 1,
    'sep_token_id': 2,
}
_GLOBAL, _LOCAL = 'full_attention', 'sliding_attention'
_ROPE = {'rope_type': 'default', 'rope_theta': 160_000.0}
SHAPES: dict[str, dict[str, Any]] = {
    'ettin': {'num_hidden_layers': 7, 'classifier_pooling': 'mean', 'local_attention': 6},
    'window of 64': {'local_attention': 128, 'classifier_pooling': 'mean'},
    'tiny': {'num_hidden_layers': 1},
    'all global': {'num_hidden_layers': 3, 'layer_types': [_GLOBAL] * 3},
    'every second': {'num_hidden_layers': 3, 'layer_types': [_GLOBAL, _LOCAL, _GLOBAL]},
    'mmBERT': {'rope_parameters': {_GLOBAL: _ROPE, _LOCAL: _ROPE}},
}


def pair(architecture: str, folder: pathlib.Path, **settings: Any) -> tuple[torch.nn.Module, Model]:
    """A model of transformers with random weights, and the same read here."""
    theirs = reference.random_model(architecture, **{**SHAPE, **settings})
    theirs.save_pretrained(folder)
    return theirs, huggingface.read(folder).model


def rows(length: int = 40, architecture: str = '') -> dict[str, np.ndarray]:
    batch = reference.inputs(100, 4, length)
    if 'Choice' in architecture:
        names = ('input_ids', 'input_mask', 'segment_ids')
        return {name: batch[name].reshape(2, 2, length) for name in names}
    if 'MaskedLM' in architecture:
        batch['masked_lm_positions'] = np.tile(np.arange(length, dtype=np.int32), (4, 1))
    return batch


def theirs_of(model: torch.nn.Module, batch: dict[str, np.ndarray]) -> Any:
    with torch.no_grad():
        return model(**reference.tensors(batch, segments=False))


@pytest.mark.parametrize(
    'shape,architecture,length',
    [
        *((shape, 'ModernBertForMaskedLM', 40) for shape in SHAPES),
        ('window of 64', 'ModernBertForMaskedLM', 150),
        ('ettin', 'ModernBertForSequenceClassification', 40),
        ('ettin', 'ModernBertForTokenClassification', 40),
        ('tiny', 'ModernBertForQuestionAnswering', 40),
        ('ettin', 'ModernBertForMultipleChoice', 40),
        ('tiny', 'ModernBertModel', 40),
    ],
)
def test_outputs(tmp_path, shape, architecture, length):
    """In rows with padding, longer than the window; and once more when we have written it."""
    theirs, model = pair(architecture, tmp_path / 'theirs', **SHAPES[shape])
    ids = {name: number for name, number in SHAPE.items() if name.endswith('token_id')}
    huggingface.write(tmp_path / 'ours', model, ids)
    again = type(theirs).from_pretrained(tmp_path / 'ours').eval()
    batch = rows(length, architecture)
    ours = jax.jit(serving.make_forward(model))(model.params, batch)
    for their_model in (theirs, again):
        wanted = theirs_of(their_model, batch)
        for name, array in ours.items():
            if name == 'pooler_output':  # there is none
                continue
            real = batch['input_mask'] > 0 if array.shape[:2] == batch['input_mask'].shape else ...
            there = wanted[name].numpy()
            there = there.reshape(array.shape)
            np.testing.assert_allclose(
                np.asarray(array)[real], there[real], atol=2e-5, rtol=0, err_msg=name
            )


@pytest.mark.parametrize('distance', [64, 65])
def test_a_window_of_64_tokens(tmp_path, distance):
    """A token that far away changes a local block's state, or does not: here and there alike."""
    settings = {'num_hidden_layers': 2, 'local_attention': 128}
    theirs, model = pair('ModernBertModel', tmp_path, **settings)
    # The first block is global: with no output it leaves all tokens apart.
    layers = model.params['encoder']['layers']
    layers['attention_output']['kernel'][0] = 0
    theirs.layers[0].attn.Wo.weight.data[:] = 0
    batch = rows(140)
    batch['input_mask'][:] = 1
    other = {**batch, 'input_ids': batch['input_ids'].copy()}
    other['input_ids'][:, 70] += 1
    call = jax.jit(serving.make_forward(model))
    ours = [np.asarray(call(model.params, b)['last_hidden_state']) for b in (batch, other)]
    there = [theirs_of(theirs, b).last_hidden_state.numpy() for b in (batch, other)]
    for states in (ours, there):
        moved = np.abs(states[0] - states[1])[:, 70 + distance].max()
        assert (moved > 1e-6) == (distance == 64)


@pytest.mark.parametrize('is_scanned', [False, True])
def test_gradients(tmp_path, is_scanned):
    theirs, model = pair('ModernBertForMaskedLM', tmp_path, **SHAPES['ettin'])
    batch = rows(40, 'ForMaskedLM')
    weights = np.random.default_rng(0).normal(size=(4, 40, 100)).astype(np.float32)
    weights *= batch['input_mask'][..., None]
    head = CLASSES['ModernBertForMaskedLM']
    module = head.model(model.config, jnp.float32, 2, scan=is_scanned)

    def loss(params):
        logits = module.apply({'params': params}, batch)[0][..., :100]
        return (logits * weights).sum()

    params = layout.arrange_for_program(model.params, is_scanned)
    gradient = jax.device_get(layout.stack_blocks(jax.jit(jax.grad(loss))(params)))
    out = theirs(**reference.tensors(batch, segments=False))
    (out.logits * torch.from_numpy(weights)).sum().backward()
    ours = huggingface.make_tensors(model._replace(params=gradient), head.parts)
    full = model.config.traits.transformers.full
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert {full(name, model.architecture) for name in ours} == wanted.keys()
    for name, array in ours.items():
        there = wanted[full(name, model.architecture)]
        if 'tok_embeddings' in name:  # torch gives the padding's row none
            array, there = np.delete(array, 3, 0), np.delete(there, 3, 0)
        scale = np.abs(there).max()
        np.testing.assert_allclose(array / scale, there / scale, atol=2e-5, rtol=0, err_msg=name)


def test_packed_rows(tmp_path):
    """Examples of a packed row are as each by itself in transformers."""
    theirs, model = pair('ModernBertForMaskedLM', tmp_path)
    lengths, rng = [30, 9, 17], np.random.default_rng(0)
    ids = [rng.integers(5, 100, n) for n in lengths]
    packs = np.concatenate([np.full(n, i) for i, n in enumerate(lengths, 1)] + [np.zeros(4)])
    positions = np.concatenate([*(np.arange(n) for n in lengths), np.zeros(4)])
    starts = np.cumsum([0, *lengths])[:-1]
    batch = {
        'input_ids': np.concatenate([*ids, np.full(4, 3)]),
        'pack_ids': packs,
        'position_ids': positions,
        'cls_positions': starts,
        'segment_ids': np.zeros(60),
        'masked_lm_positions': np.arange(60),
    }
    batch = {name: array.astype(np.int32)[None] for name, array in batch.items()}
    head = CLASSES['ModernBertForMaskedLM']
    module = head.model(model.config, jnp.float32, 2)
    logits = np.asarray(module.apply({'params': model.params}, batch)[0])[0, :, :100]
    for start, example in zip(starts, ids, strict=True):
        alone = {'input_ids': example[None], 'input_mask': np.ones((1, len(example)), np.int32)}
        wanted = theirs_of(theirs, alone).logits[0].numpy()
        np.testing.assert_allclose(logits[start : start + len(example)], wanted, atol=2e-5, rtol=0)


def test_settings_by_their_old_names(tmp_path):
    """Files of the Hub have these names; they mean what the new ones mean."""
    _, model = pair('ModernBertForMaskedLM', tmp_path, **SHAPES['window of 64'])
    file = tmp_path / 'config.json'
    settings = json.loads(file.read_text())
    for name in ('layer_types', 'rope_parameters'):
        del settings[name]
    settings |= {'global_attn_every_n_layers': 3, 'global_rope_theta': 160000.0}
    settings |= {'local_rope_theta': 10000.0, 'position_embedding_type': 'sans_pos'}
    file.write_text(json.dumps(settings))
    assert huggingface.read_shape(tmp_path) == model.config
    assert model.config.rope_theta == 160_000 and model.config.local_window == 64
    file.write_text(json.dumps(settings | {'local_rope_theta': None}))
    assert huggingface.read_shape(tmp_path).local_rope_theta is None  # that of global layers


@pytest.mark.parametrize(
    'settings,said',
    [
        ({'rope_scaling': {'type': 'yarn', 'factor': 4.0}}, "rope_type='yarn' is not built here"),
        ({'layer_types': ['sliding_attention'] * 4}, 'layer_types='),
        ({'layer_types': None, 'global_attn_every_n_layers': 0}, 'global_attn_every_n_layers=0'),
        ({'rope_parameters': _ROPE}, 'rope_parameters='),
        ({'norm_bias': True}, 'norm_bias=True is not built here'),
        ({'classifier_activation': 'relu'}, "classifier_activation='relu' is not built here"),
        ({'local_attention': 0}, 'local_attention=0: half of it'),
        ({'model_type': 'bert'}, 'the classes of that type begin with Bert'),
    ],
)
def test_settings_that_are_not_built(tmp_path, settings, said):
    pair('ModernBertForMaskedLM', tmp_path)
    file = tmp_path / 'config.json'
    changed = json.loads(file.read_text()) | settings
    if 'rope_scaling' in settings:
        changed['rope_parameters'] = None
    file.write_text(json.dumps(changed))
    with pytest.raises(UserError, match=said) as error:
        huggingface.read(tmp_path)
    assert '\n' not in str(error.value)


def test_the_benchmark_gives_both_the_same_work(tmp_path):
    """The loss of the benchmark's batch is the same by ours and in transformers' forms."""
    shape = modernbert.make_shape(
        4, 128, 96, vocab_size=100, max_position=512, local_window=5, rope_theta=160_000.0
    )
    torch.manual_seed(0)
    theirs = torch_models.make_model(shape).eval()
    theirs.save_pretrained(tmp_path)
    batch = batches.draw_batch(PretrainConfig(model=shape), 60, 18, 2, 3)
    arrays = {name: torch.as_tensor(value).long() for name, value in batch.items()}
    with torch.no_grad():
        losses = [torch_models.make_modern_loss(theirs, arrays, form)() for form in (True, False)]

    model = huggingface.read(tmp_path).model
    module = CLASSES['ModernBertForMaskedLM'].model(model.config, jnp.float32, 2)
    logits = np.asarray(module.apply({'params': model.params}, batch)[0])[..., :100]
    chosen = np.take_along_axis(logits, batch['masked_lm_ids'][..., None], -1)[..., 0]
    ours = np.mean(np.log(np.exp(logits).sum(-1)) - chosen)
    np.testing.assert_allclose([float(loss) for loss in losses], ours, atol=2e-5)
