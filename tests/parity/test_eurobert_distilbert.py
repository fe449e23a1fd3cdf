"""EuroBERT and DistilBERT against transformers: classes, gradients, packs, files, refusals."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bert_jax.configs.errors import UserError
from bert_jax.conversion import huggingface, serving
from bert_jax.conversion.trained_model import Model, list_left_out
from bert_jax.inference.serving_folder import list_token_ids
from bert_jax.model import layout
from bert_jax.train.task_heads import CLASSES
from tests.helpers import tiny_models
from tests.parity import reference
from tests.parity.reference import torch

EURO = {
    'vocab_size': 100,
    'hidden_size': 32,
    'intermediate_size': 24,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'max_position_embeddings': 320,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 250_000.0},
    'pad_token_id': 3,
    'bos_token_id': 1,
    'eos_token_id': 2,
    'mask_token_id': 4,
}
DISTIL = {
    'vocab_size': 100,
    'dim': 32,
    'n_layers': 3,
    'n_heads': 4,
    'hidden_dim': 48,
    'max_position_embeddings': 320,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(('EuroBertForMaskedLM', {'num_key_value_heads': heads}) for heads in (1, 2, 4)),
    *(
        ('EuroBertForSequenceClassification', {'classifier_pooling': how, 'num_labels': 3})
        for how in ('late', 'mean', 'bos')
    ),
    ('EuroBertForTokenClassification', {}),
    ('EuroBertModel', {}),
    ('DistilBertForMaskedLM', {'activation': 'relu'}),
    ('DistilBertForSequenceClassification', {'problem_type': 'multi_label_classification'}),
    ('DistilBertForTokenClassification', {}),
    ('DistilBertForQuestionAnswering', {}),
    ('DistilBertForMultipleChoice', {}),
    ('DistilBertModel', {'sinusoidal_pos_embds': True}),
]


def pair(architecture: str, folder: pathlib.Path, **settings: Any) -> tuple[torch.nn.Module, Model]:
    """A model of transformers with random weights, and the same read here."""
    shape = EURO if architecture.startswith('Euro') else DISTIL
    theirs = reference.random_model(architecture, **{**shape, **settings})
    theirs.save_pretrained(folder)
    return theirs, huggingface.read(folder).model


def rows(architecture: str, length: int) -> dict[str, np.ndarray]:
    batch = reference.inputs(100, 4, length)
    if 'Choice' in architecture:
        return {name: batch[name].reshape(2, 2, length) for name in ('input_ids', 'input_mask')} | {
            'segment_ids': batch['segment_ids'].reshape(2, 2, length)
        }
    if 'MaskedLM' in architecture:
        batch['masked_lm_positions'] = np.tile(np.arange(length, dtype=np.int32), (4, 1))
    return batch


@pytest.mark.parametrize(('architecture', 'settings'), CASES)
def test_outputs_and_files(tmp_path, architecture, settings):
    """In rows of 300 tokens with padding; what comes in goes out to the bit."""
    theirs, model = pair(architecture, tmp_path / 'theirs', **settings)
    batch = rows(architecture, 300)
    ours = jax.jit(serving.make_forward(model))(model.params, batch)
    with torch.no_grad():
        wanted = theirs(**reference.tensors(batch, segments=False))
    for name, array in ours.items():
        if name == 'pooler_output':  # there is none
            continue
        there = wanted[name].numpy().reshape(array.shape)
        real = batch['input_mask'] > 0 if array.shape[:2] == batch['input_mask'].shape else ...
        np.testing.assert_allclose(
            np.asarray(array)[real], there[real], atol=1e-5, rtol=1e-5, err_msg=name
        )

    ids = list_token_ids(tiny_models.tokenizer())
    huggingface.write(tmp_path / 'ours', model, ids)
    files = [
        safetensors.numpy.load_file(tmp_path / f / 'model.safetensors') for f in ('theirs', 'ours')
    ]
    assert files[0].keys() - {'vocab_projector.weight'} == files[1].keys()
    for name, array in files[1].items():
        np.testing.assert_array_equal(files[0][name], array)
    assert huggingface.read_shape(tmp_path / 'ours') == model.config
    again = type(theirs).from_pretrained(tmp_path / 'ours').eval()
    with torch.no_grad():
        found = again(**reference.tensors(batch, segments=False))
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


@pytest.mark.parametrize('is_scanned', [False, True])
@pytest.mark.parametrize(
    'architecture', ['EuroBertForMaskedLM', 'EuroBertForSequenceClassification']
    + ['DistilBertForMaskedLM', 'DistilBertForSequenceClassification'],
)  # fmt: skip
def test_gradients(tmp_path, architecture, is_scanned):
    theirs, model = pair(architecture, tmp_path)
    batch = rows(architecture, 20)
    head, mask = CLASSES[architecture], batch['input_mask'][..., None]
    module = head.model(
        model.config, jnp.float32, 2, scan=is_scanned, remat='full' if is_scanned else 'none'
    )
    out = theirs(**reference.tensors(batch, segments=False)).logits
    weights = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    if out.ndim == 3:
        weights *= mask

    def loss(params):
        logits = module.apply({'params': params}, batch)
        logits = logits[0][..., :100] if out.ndim == 3 else logits
        return (logits * weights).sum()

    params = layout.arrange_for_program(model.params, is_scanned)
    gradient = jax.device_get(layout.stack_blocks(jax.jit(jax.grad(loss))(params)))
    (out * torch.from_numpy(weights)).sum().backward()
    ours = huggingface.make_tensors(model._replace(params=gradient), head.parts)
    full = model.config.traits.transformers.full
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert {full(name, architecture) for name in ours} == wanted.keys()
    largest = max(np.abs(array).max() for array in wanted.values())
    for name, array in ours.items():
        there = wanted[full(name, architecture)]
        if 'embed_tokens' in name or 'word_emb' in name:  # torch gives the padding's row none
            pad = theirs.config.pad_token_id
            array, there = np.delete(array, pad, 0), np.delete(there, pad, 0)
        scale = max(np.abs(there).max(), 1e-3 * largest)  # that of a key's bias is 0
        np.testing.assert_allclose(array / scale, there / scale, atol=2e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize('family', ['EuroBert', 'DistilBert'])
def test_packed_rows(tmp_path, family):
    """Examples of a packed row are classified as each by itself in transformers."""
    theirs, model = pair(f'{family}ForSequenceClassification', tmp_path)
    lengths, rng = [30, 9, 17], np.random.default_rng(0)
    examples = [rng.integers(5, 100, n) for n in lengths]
    filled = [np.full(n, i) for i, n in enumerate(lengths, 1)]
    batch = {
        'input_ids': np.concatenate([*examples, np.full(4, 3)]),
        'pack_ids': np.concatenate([*filled, np.zeros(4)]),
        'position_ids': np.concatenate([*(np.arange(n) for n in lengths), np.zeros(4)]),
        'cls_positions': np.cumsum([0, *lengths])[:-1],
        'segment_ids': np.zeros(60),
    }
    batch = {name: array.astype(np.int32)[None] for name, array in batch.items()}
    module = CLASSES[f'{family}ForSequenceClassification'].model(model.config, jnp.float32, 2)
    logits = np.asarray(module.apply({'params': model.params}, batch))[0]
    for example, found in zip(examples, logits, strict=True):
        with torch.no_grad():
            wanted = theirs(input_ids=torch.from_numpy(example)[None]).logits[0].numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ('settings', 'said'),
    [
        (
            {'rope_parameters': {'rope_type': 'yarn', 'factor': 4.0}},
            "rope_type='yarn' is not built",
        ),
        ({'rope_scaling': {'type': 'linear', 'factor': 2.0}}, "rope_type='linear' is not built"),
        ({'head_dim': 16}, 'head_dim=16 is not built here'),
        ({'classifier_pooling': 'max'}, "classifier_pooling='max' must be one of bos, mean, late"),
        ({'mlp_bias': True}, 'mlp_bias=True is not built here'),
        ({'tie_word_embeddings': True}, 'tie_word_embeddings=True is not built here'),
        ({'num_key_value_heads': 3}, 'num_kv_heads=3'),
        ({'hidden_act': 'mish'}, "hidden_act='mish' is not built here"),
    ],
)
def test_settings_that_are_not_built(tmp_path, settings, said):
    pair('EuroBertForMaskedLM', tmp_path)
    file = tmp_path / 'config.json'
    changed = json.loads(file.read_text()) | settings
    if 'rope_scaling' in settings:
        changed['rope_parameters'] = None
    file.write_text(json.dumps(changed))
    with pytest.raises(UserError, match=said) as error:
        huggingface.read(tmp_path)
    assert '\n' not in str(error.value)


def test_a_class_that_transformers_lacks_is_written_as_a_program_alone(tmp_path):
    _, model = pair('EuroBertForTokenClassification', tmp_path)
    model = model.under('span')._replace(params=model.params | {'span': model.params['classifier']})
    with pytest.raises(UserError, match='EuroBertForQuestionAnswering is none of the classes'):
        huggingface.write(tmp_path / 'out', model)
    assert list_left_out(model, '', None) == ('classifier',)  # a program is written


def test_what_a_short_config_means(tmp_path):
    """Settings that are left out are transformers' own defaults."""
    for kind, name in (('eurobert', 'EuroBert'), ('distilbert', 'DistilBert')):
        (tmp_path / 'config.json').write_text(json.dumps({'model_type': kind}))
        config = huggingface.read_shape(tmp_path)
        theirs = getattr(reference.transformers, f'{name}Config')()
        assert config.vocab_size == theirs.vocab_size
        assert config.num_layers == theirs.num_hidden_layers
        assert config.max_position == theirs.max_position_embeddings
        if kind == 'eurobert':
            assert config.rope_theta == theirs.rope_parameters['rope_theta']
            assert (config.pooling, config.hidden_act) == ('late', 'silu')
