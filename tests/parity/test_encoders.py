"""Families beside BERT against transformers: classes, gradients, packed rows, files, refusals.

A shape is a line of `SHAPES`; each class that transformers has of it is compared.
"""

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
from bert_jax.model import layout, pooling
from bert_jax.train.task_heads import CLASSES
from tests.helpers import tiny_models
from tests.parity import reference
from tests.parity.reference import torch, transformers

SMALL = reference.sizes(intermediate_size=48, max_position_embeddings=322)
ROBERTA = SMALL | {'type_vocab_size': 1, 'layer_norm_eps': 1e-5}
V3 = SMALL | {
    'type_vocab_size': 0,
    'relative_attention': True,
    'position_biased_input': False,
    'pos_att_type': 'p2c|c2p',
    'position_buckets': 16,
    'share_att_key': True,
    'norm_rel_ebd': 'layer_norm',
}
V2 = {'conv_kernel_size': 3, 'conv_act': 'gelu', 'embedding_size': 24, 'share_att_key': False}
DISTIL = {'vocab_size': 100, 'dim': 32, 'n_layers': 3, 'n_heads': 4, 'hidden_dim': 48}
EURO = SMALL | {
    'num_key_value_heads': 2,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 250_000.0},
    'pad_token_id': 3,
    'bos_token_id': 1,
    'eos_token_id': 2,
    'mask_token_id': 4,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    'xlm_roberta': ('XLMRoberta', ROBERTA),
    'camembert': ('Camembert', ROBERTA),
    'mpnet': ('MPNet', SMALL),
    'electra': ('Electra', SMALL | {'embedding_size': 12}),
    'wide electra': (
        'Electra',
        SMALL | {'embedding_size': 32, 'num_hidden_layers': 1, 'hidden_act': 'relu'},
    ),
    'distilbert': ('DistilBert', DISTIL | {'max_position_embeddings': 320}),
    'v3': ('DebertaV2', V3),
    'v2': ('DebertaV2', V3 | V2 | {'type_vocab_size': 2, 'num_hidden_layers': 3}),
    'eurobert': ('EuroBert', EURO),
}
KINDS = ('Model', 'ForMaskedLM', 'ForPreTraining', 'ForSequenceClassification')
KINDS += ('ForTokenClassification', 'ForQuestionAnswering', 'ForMultipleChoice')
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ('v3', 'ForMaskedLM', {'pos_att_type': ['c2p'], 'position_buckets': -1}),
    ('v2', 'ForMaskedLM', {'pos_att_type': 'p2c', 'norm_rel_ebd': 'none', 'conv_kernel_size': 5}),
    ('eurobert', 'ForMaskedLM', {'num_key_value_heads': 1}),
    ('eurobert', 'ForMaskedLM', {'num_key_value_heads': 4}),
    ('eurobert', 'ForSequenceClassification', {'classifier_pooling': 'mean', 'num_labels': 3}),
    ('eurobert', 'ForSequenceClassification', {'classifier_pooling': 'bos'}),
    ('distilbert', 'ForMaskedLM', {'activation': 'relu', 'sinusoidal_pos_embds': True}),
    ('electra', 'ForSequenceClassification', {'num_labels': 1}),
]
# Whose classes read segments; MPNet's and others' have no such argument.
SEGMENTS = ('Electra', 'DebertaV2')


def pair(
    shape: str, kind: str, folder: pathlib.Path, **settings: Any
) -> tuple[torch.nn.Module, Model]:
    """A model of transformers with random weights, and the same read here."""
    prefix, sizes = SHAPES[shape]
    theirs = reference.random_model(prefix + kind, **sizes | settings)
    theirs.save_pretrained(folder)
    return theirs, huggingface.read(folder).model


def rows(model: Model, length: int) -> dict[str, np.ndarray]:
    batch = reference.inputs(100, 4, length)
    if model.config.traits.first_position:
        batch['input_ids'][batch['input_mask'] == 0] = 1
    if not model.config.type_vocab_size:
        batch['segment_ids'][:] = 0
    batch['segment_ids'] %= max(model.config.type_vocab_size, 1)
    if 'Choice' in model.architecture:
        names = ('input_ids', 'input_mask', 'segment_ids')
        return {name: batch[name].reshape(2, 2, length) for name in names}
    if 'MaskedLM' in model.architecture:
        batch['masked_lm_positions'] = np.tile(np.arange(length, dtype=np.int32), (4, 1))
    return batch


def ask(theirs: torch.nn.Module, batch: dict[str, np.ndarray], **more: bool) -> Any:
    reads = type(theirs).__name__.startswith(SEGMENTS)
    return theirs(**reference.tensors(batch, segments=reads), **more)


def list_classes() -> list[tuple[str, str, dict[str, Any]]]:
    cases = []
    for shape, (prefix, _) in SHAPES.items():
        cases += [(shape, kind, {}) for kind in KINDS if hasattr(transformers, prefix + kind)]
    return cases + OTHERS


@pytest.mark.parametrize(('shape', 'kind', 'settings'), list_classes())
def test_outputs_and_files(tmp_path, shape, kind, settings):
    """In rows of 300 tokens with padding; and what comes in goes out to the bit."""
    theirs, model = pair(shape, kind, tmp_path / 'theirs', **settings)
    batch = rows(model, 300)
    ours = jax.jit(serving.make_forward(model))(model.params, batch)
    with torch.no_grad():
        wanted = ask(theirs, batch)
    for name, array in ours.items():
        if name == 'pooler_output' and wanted.get(name) is None:
            continue
        there = wanted[name].numpy().reshape(array.shape)
        real = batch['input_mask'] > 0 if array.shape[:2] == batch['input_mask'].shape else ...
        np.testing.assert_allclose(np.asarray(array)[real], there[real], atol=2e-5, err_msg=name)

    ids = list_token_ids(tiny_models.tokenizer()) | {'pad_token_id': theirs.config.pad_token_id}
    huggingface.write(tmp_path / 'ours', model, ids)
    files = [tmp_path / name / 'model.safetensors' for name in ('theirs', 'ours')]
    before, after = (safetensors.numpy.load_file(file) for file in files)
    assert before.keys() - {'vocab_projector.weight'} == after.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(before[name], array)
    assert huggingface.read_shape(tmp_path / 'ours') == model.config
    again = type(theirs).from_pretrained(tmp_path / 'ours').eval()
    with torch.no_grad():
        found = ask(again, batch)
    assert all(torch.equal(found[k], v) for k, v in wanted.items() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize('shape', SHAPES)
def test_states_of_all_layers(tmp_path, shape):
    """Those of the bare encoder, which has no pooler in most families."""
    theirs, model = pair(shape, 'Model', tmp_path)
    batch, params = rows(model, 20), model.params['encoder']
    states = pooling.make_states(model.config, jnp.float32, attentions=False)(params, batch)
    with torch.no_grad():
        found = ask(theirs, batch, output_hidden_states=True)
    real = batch['input_mask'] > 0
    wanted = torch.stack(found.hidden_states).numpy()
    np.testing.assert_allclose(states['hidden_states'][:, real], wanted[:, real], atol=2e-5)
    vectors = pooling.make_features(model.config, [-1], 'mean', jnp.float32, jnp.float32)
    means = [states[mask].mean(0) for states, mask in zip(wanted[-1], real)]
    np.testing.assert_allclose(vectors(params, batch)['features'][:, 0], means, atol=2e-5)


@pytest.mark.parametrize('is_scanned', [False, True])
@pytest.mark.parametrize(
    ('shape', 'kind'),
    [(shape, 'ForMaskedLM') for shape in SHAPES]
    + [(s, 'ForSequenceClassification') for s in ('xlm_roberta', 'distilbert', 'eurobert', 'v3')],
)
def test_gradients(tmp_path, shape, kind, is_scanned):
    theirs, model = pair(shape, kind, tmp_path)
    batch, head = rows(model, 20), CLASSES[model.architecture]
    remat = 'full' if is_scanned else 'none'
    module = head.model(model.config, jnp.float32, 2, scan=is_scanned, remat=remat)
    out = ask(theirs, batch).logits
    weights = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    if out.ndim == 3:
        weights *= batch['input_mask'][..., None]

    def loss(params):
        logits = module.apply({'params': params}, batch)
        logits = logits[0][..., :100] if out.ndim == 3 else logits
        return (logits * weights).sum()

    # Some have a pooler that no output is of, and this class of theirs has none.
    unread = {'kernel': np.zeros((32, 32), np.float32), 'bias': np.zeros(32, np.float32)}
    params = model.params | {'encoder': {'pooler': unread} | model.params['encoder']}
    params = layout.arrange_for_program(params, is_scanned)
    gradient = jax.device_get(layout.stack_blocks(jax.jit(jax.grad(loss))(params)))
    (out * torch.from_numpy(weights)).sum().backward()
    ours = huggingface.make_tensors(model._replace(params=gradient), head.parts)
    names = model.config.traits.transformers
    wanted = {}
    for name, parameter in theirs.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            wanted[name] = parameter.grad.numpy()
    tied = {f'{names.decoder}.weight', f'{names.decoder}.bias'}
    found = {names.full(name, model.architecture) for name in ours}
    assert found <= wanted.keys() <= found | tied
    largest = max(np.abs(array).max() for array in wanted.values())
    for name, array in ours.items():
        there = wanted[names.full(name, model.architecture)]
        rows_of_words = len(there) == 100 and there.ndim == 2 and 'embed' in name
        if rows_of_words:  # torch gives the padding's row none
            pad = theirs.config.pad_token_id
            array, there = np.delete(array, pad, 0), np.delete(there, pad, 0)
        scale = max(np.abs(there).max(), 1e-3 * largest)  # that of a key's bias is 0
        np.testing.assert_allclose(array / scale, there / scale, atol=3e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize('shape', ['xlm_roberta', 'camembert', 'distilbert', 'eurobert'])
def test_examples_of_a_packed_row_are_each_as_by_itself(tmp_path, shape):
    """Where positions count from a row of the table, they do in each example."""
    theirs, model = pair(shape, 'ForSequenceClassification', tmp_path)
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
    module = CLASSES[model.architecture].model(model.config, jnp.float32, 2)
    logits = np.asarray(module.apply({'params': model.params}, batch))[0]
    for example, found in zip(examples, logits, strict=True):
        with torch.no_grad():
            wanted = theirs(input_ids=torch.from_numpy(example)[None]).logits[0].numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ('shape', 'settings', 'said'),
    [
        ('v3', {'pos_att_type': 'p2p'}, "pos_att_type='p2p' is not built here"),
        ('v3', {'pos_att_type': None}, 'pos_att_type=None is not built here'),
        ('v2', {'conv_act': 'swish'}, "conv_act='swish' is not built here"),
        ('v2', {'conv_groups': 2}, 'conv_groups=2 is not built here'),
        ('v2', {'conv_kernel_size': 4}, 'convolution=4: must be odd'),
        ('v3', {'num_attention_heads': 5}, 'num_heads=5: must be a divisor'),
        ('v3', {'relative_attention': False}, 'relative_attention=False is not built here'),
        ('v3', {'position_biased_input': True}, 'position_biased_input=True is not built'),
        ('v3', {'attention_head_size': 4}, 'attention_head_size=4 is not built here'),
        ('v3', {'max_relative_positions': 9}, 'relative_max=9: must be more than 9'),
        ('mpnet', {'relative_attention_num_buckets': 64}, 'relative_attention_num_buckets=64 is'),
        ('mpnet', {'pad_token_id': 0}, 'pad_token_id=0 is not built here'),
        ('eurobert', {'rope_parameters': {'rope_type': 'yarn', 'factor': 4.0}}, "rope_type='yarn'"),
        (
            'eurobert',
            {'rope_scaling': {'type': 'linear', 'factor': 2.0}, 'rope_parameters': None},
            "rope_type='linear' is not built",
        ),
        ('eurobert', {'head_dim': 16}, 'head_dim=16 is not built here'),
        ('eurobert', {'classifier_pooling': 'max'}, "classifier_pooling='max' must be one of"),
        ('eurobert', {'mlp_bias': True}, 'mlp_bias=True is not built here'),
        ('eurobert', {'tie_word_embeddings': True}, 'tie_word_embeddings=True is not built here'),
        ('eurobert', {'num_key_value_heads': 3}, 'num_kv_heads=3'),
        ('eurobert', {'hidden_act': 'mish'}, "hidden_act='mish' is not built here"),
    ],
)
def test_settings_that_are_not_built(tmp_path, shape, settings, said):
    pair(shape, 'ForMaskedLM', tmp_path)
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(UserError, match=said) as error:
        huggingface.read(tmp_path)
    assert '\n' not in str(error.value)


def test_a_class_that_transformers_lacks_is_written_as_a_program_alone(tmp_path):
    _, model = pair('eurobert', 'ForTokenClassification', tmp_path)
    model = model.under('span')._replace(params=model.params | {'span': model.params['classifier']})
    with pytest.raises(UserError, match='EuroBertForQuestionAnswering is none of the classes'):
        huggingface.write(tmp_path / 'out', model)
    assert list_left_out(model, '', None) == ('classifier',)  # a program is written


def test_what_a_short_config_means(tmp_path):
    """Settings that are left out are transformers' own defaults."""
    for kind, name in (('eurobert', 'EuroBert'), ('distilbert', 'DistilBert')):
        (tmp_path / 'config.json').write_text(json.dumps({'model_type': kind}))
        config = huggingface.read_shape(tmp_path)
        theirs = getattr(transformers, f'{name}Config')()
        assert config.vocab_size == theirs.vocab_size
        assert config.num_layers == theirs.num_hidden_layers
        assert config.max_position == theirs.max_position_embeddings
        if kind == 'eurobert':
            assert config.rope_theta == theirs.rope_parameters['rope_theta']
            assert (config.pooling, config.hidden_act) == ('late', 'silu')
