"""MPNet and DeBERTa-v2 and -v3 against transformers: every class, distances, gradients, files."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import huggingface, serving, trained_model
from bert_jax.model import layout
from bert_jax.model.blocks.positions import find_bias_buckets, find_distance_rows
from bert_jax.train.task_heads import CLASSES
from tests.parity import reference
from tests.parity.reference import torch, transformers

SMALL = {'vocab_size': 100, 'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4}
SMALL |= {'intermediate_size': 48, 'max_position_embeddings': 322}
V3 = SMALL | {
    'type_vocab_size': 0,
    'relative_attention': True,
    'position_biased_input': False,
    'pos_att_type': 'p2c|c2p',
    'position_buckets': 16,
    'share_att_key': True,
    'norm_rel_ebd': 'layer_norm',
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    'mpnet': ('MPNet', SMALL),
    'v3': ('DebertaV2', V3),
    'v2': (
        'DebertaV2',
        V3 | {'conv_kernel_size': 3, 'conv_act': 'gelu', 'embedding_size': 24}
        | {'share_att_key': False, 'type_vocab_size': 2, 'num_hidden_layers': 3},
    ),
    'c2p': (
        'DebertaV2',
        V3 | {'pos_att_type': ['c2p'], 'position_buckets': -1, 'max_relative_positions': 40},
    ),
    'p2c': (
        'DebertaV2',
        V3 | {'pos_att_type': 'p2c', 'share_att_key': False, 'norm_rel_ebd': 'none'}
        | {'conv_kernel_size': 5, 'num_hidden_layers': 1},
    ),
}  # fmt: skip
KINDS = ('Model', 'ForMaskedLM', 'ForSequenceClassification', 'ForTokenClassification')
KINDS += ('ForQuestionAnswering', 'ForMultipleChoice')


def pair(shape, kind, folder, **settings):
    """A model of transformers with random weights, and the same read here."""
    prefix, sizes = SHAPES[shape]
    theirs = reference.random_model(prefix + kind, **sizes | settings)
    theirs.save_pretrained(folder)
    return theirs, huggingface.read(folder).model


def rows(shape, length=300, kind=''):
    batch = reference.inputs(100, 4, length)
    if shape == 'mpnet':
        batch['input_ids'][batch['input_mask'] == 0] = 1
    if kind == 'ForMultipleChoice':
        names = ('input_ids', 'input_mask', 'segment_ids')
        return {name: batch[name].reshape(2, 2, length) for name in names}
    if kind == 'ForMaskedLM':
        batch['masked_lm_positions'] = np.tile(np.arange(length, dtype=np.int32), (4, 1))
    return batch


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', SHAPES)
def test_outputs(tmp_path, shape, kind):
    """In rows of 300 tokens with padding; and once more when we have written the model."""
    if shape in ('c2p', 'p2c') and kind != 'ForMaskedLM':
        pytest.skip('the heads are those of v3')
    theirs, model = pair(shape, kind, tmp_path / 'theirs')
    huggingface.write(tmp_path / 'ours', model)
    files = [tmp_path / name / 'model.safetensors' for name in ('theirs', 'ours')]
    before, after = (safetensors.numpy.load_file(file) for file in files)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    again = type(theirs).from_pretrained(tmp_path / 'ours').eval()
    batch = rows(shape, kind=kind)
    ours = jax.jit(serving.make_forward(model))(model.params, batch)
    for their_model in (theirs, again):
        with torch.no_grad():
            wanted = their_model(**reference.tensors(batch, segments=shape != 'mpnet'))
        for name, array in ours.items():
            if name == 'pooler_output' and shape != 'mpnet':  # there is none
                continue
            real = batch['input_mask'] > 0 if array.shape[:2] == batch['input_mask'].shape else ...
            there = wanted[name].numpy().reshape(array.shape)
            np.testing.assert_allclose(np.asarray(array)[real], there[real], atol=2e-5, rtol=0)


@pytest.mark.parametrize('is_scanned', [False, True])
@pytest.mark.parametrize('shape', ['mpnet', 'v3', 'v2'])
def test_gradients(tmp_path, shape, is_scanned):
    theirs, model = pair(shape, 'ForMaskedLM', tmp_path)
    batch = rows(shape, 40, 'ForMaskedLM')
    weights = np.random.default_rng(0).normal(size=(4, 40, 100)).astype(np.float32)
    weights *= batch['input_mask'][..., None]
    head = CLASSES[model.architecture]
    module = head.model(model.config, jnp.float32, 2, scan=is_scanned)

    def loss(params):
        return (module.apply({'params': params}, batch)[0][..., :100] * weights).sum()

    params = layout.arrange_for_program(model.params, is_scanned)
    gradient = jax.device_get(layout.stack_blocks(jax.jit(jax.grad(loss))(params)))
    out = theirs(**reference.tensors(batch, segments=shape != 'mpnet'))
    (out.logits * torch.from_numpy(weights)).sum().backward()
    ours = huggingface.make_tensors(model._replace(params=gradient), head.parts)
    full = model.config.traits.transformers.full
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert {full(name, model.architecture) for name in ours} == wanted.keys()
    largest = max(np.abs(array).max() for array in wanted.values())
    for name, array in ours.items():
        there = wanted[full(name, model.architecture)]
        scale = max(np.abs(there).max(), 1e-3 * largest)
        if 'word_embeddings' in name:  # torch gives the padding's row none
            array, there = array[2:], there[2:]
        np.testing.assert_allclose(array / scale, there / scale, atol=3e-5, rtol=0, err_msg=name)


def test_rows_and_buckets_of_distances_are_transformers():
    """Up to 600 tokens away, to the left and to the right."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-600, 601)
    for buckets, farthest in ((256, 512), (16, 64), (32, 600)):
        shape = ModelConfig(
            positions='disentangled', relative_buckets=buckets, relative_max=farthest,
            max_position=601,
        )  # fmt: skip
        wanted = make_log_bucket_position(distances, buckets, farthest).long() + buckets
        wanted = wanted.clamp(0, 2 * buckets - 1).numpy()
        np.testing.assert_array_equal(find_distance_rows(shape), wanted)
    encoder = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    wanted = encoder.relative_position_bucket(distances).numpy()
    np.testing.assert_array_equal(find_bias_buckets(600), wanted)


def test_a_file_of_the_hub_is_read_without_its_heads(tmp_path):
    """Half floats, without the name of a class, and with the head of another objective."""
    theirs, _ = pair('v3', 'Model', tmp_path)
    file = tmp_path / 'model.safetensors'
    held = {f'deberta.{name}': array for name, array in safetensors.numpy.load_file(file).items()}
    held['deberta.embeddings.position_embeddings.weight'] = np.zeros((322, 32), 'f')
    for name in ('lm_predictions.lm_head.dense.weight', 'mask_predictions.dense.weight'):
        held[name] = np.zeros((32, 32), 'f')
    halves = {name: array.astype(np.float16) for name, array in held.items()}
    safetensors.numpy.save_file(halves, file)
    settings = json.loads((tmp_path / 'config.json').read_text())
    del settings['architectures']
    (tmp_path / 'config.json').write_text(json.dumps(settings))
    reading = huggingface.read(tmp_path)
    assert reading.model.parts == () and len(reading.ignored) == 3
    assert any('float16' in remark for remark in reading.remarks)
    table = theirs.embeddings.word_embeddings.weight.detach().half().float().numpy()
    np.testing.assert_array_equal(
        reading.model.params['encoder']['embeddings']['word'][:100], table
    )
    # no answer from a masked-LM head that is not there
    with pytest.raises(UserError, match='DebertaV2ForMaskedLM needs mlm, which this model does'):
        trained_model.check_parts(reading.model.under('masked_words'), 'v3', 'take another')
    name = 'deberta.encoder.rel_embeddings.weight'
    halves[name] = np.full_like(halves[name], np.inf)
    safetensors.numpy.save_file(halves, file)
    with pytest.raises(UserError, match=f'{name}: NaN or infinite'):
        huggingface.read(tmp_path)


@pytest.mark.parametrize(
    ('shape', 'settings', 'said'),
    [
        ('v3', {'pos_att_type': 'p2p'}, "pos_att_type='p2p' is not built here"),
        ('v3', {'pos_att_type': None}, 'pos_att_type=None is not built here'),
        ('v2', {'conv_act': 'swish'}, "conv_act='swish' is not built here"),
        ('v2', {'conv_groups': 2}, 'conv_groups=2 is not built here'),
        ('v2', {'conv_kernel_size': 4}, 'model.convolution=4: must be odd'),
        ('v3', {'num_attention_heads': 5}, 'model.num_heads=5: must be a divisor'),
        ('v3', {'relative_attention': False}, 'relative_attention=False is not built here'),
        ('v3', {'position_biased_input': True}, 'position_biased_input=True is not built'),
        ('v3', {'attention_head_size': 4}, 'attention_head_size=4 is not built here'),
        ('v3', {'max_relative_positions': 9}, 'model.relative_max=9: must be more than 9'),
        ('mpnet', {'relative_attention_num_buckets': 64}, 'relative_attention_num_buckets=64 is'),
        ('mpnet', {'pad_token_id': 0}, 'pad_token_id=0 is not built here'),
    ],
)
def test_settings_that_are_not_built(tmp_path, shape, settings, said):
    pair(shape, 'Model', tmp_path)
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(UserError, match=said) as error:
        huggingface.read(tmp_path)
    assert '\n' not in str(error.value)


def test_mpnet_is_not_written_for_another_padding(tmp_path):
    """transformers counts its positions from the token 1, whatever the settings say."""
    _, model = pair('mpnet', 'Model', tmp_path / 'theirs')
    with pytest.raises(UserError, match='pad_token_id=0 is not built here: only 1 is'):
        huggingface.write(tmp_path / 'ours', model, {'pad_token_id': 0})
