"""Google's TensorFlow 1 checkpoints: TensorFlow's files, its reading of ours, numpy by its names.

The last is a forward pass.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import jax
import numpy as np
import pytest

from bert_jax.conversion import google, huggingface, tensor_bundle
from bert_jax.inference import export
from bert_jax.model import heads
from bert_jax.runs.sources.source import load_source, read_source
from tests.helpers import google_names, tiny_models
from tests.helpers.google_names import (
    BERT,
    pretraining_shapes,
    tensorflow_finds,
    tensorflow_saves,
    values,
)
from tests.helpers.numpy_bert import numpy_forward
from tests.helpers.refusals import refused

SETTINGS = {
    'attention_probs_dropout_prob': 0.1,
    'hidden_act': 'gelu',
    'hidden_dropout_prob': 0.1,
    'hidden_size': 16,
    'initializer_range': 0.02,
    'intermediate_size': 24,
    'max_position_embeddings': 12,
    'num_attention_heads': 2,
    'num_hidden_layers': 2,
    'type_vocab_size': 2,
    'vocab_size': 40,
}
WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'word{i}' for i in range(35))]
ENCODER = google_names.encoder_shapes(BERT, 16)
HEADS = {
    'classifier': {'output_weights': (3, 16), 'output_bias': (3,)},
    'span': {'cls/squad/output_weights': (2, 16), 'cls/squad/output_bias': (2,)},
}


def place(
    folder: pathlib.Path, variables: dict[str, np.ndarray] | None = None, **changes
) -> pathlib.Path:
    """A folder as Google released them.

    Where there are `variables`, its checkpoint is written by us.
    """
    folder.mkdir(exist_ok=True)
    (folder / 'bert_config.json').write_text(json.dumps(SETTINGS | changes))
    (folder / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
    if variables is not None:
        tensor_bundle.write(str(folder / 'bert_model.ckpt'), variables)
    return folder


def check_refused(where: pathlib.Path, message: str) -> None:
    """Asserts that a source is refused in one line that names it."""
    with refused(re.escape(message)) as caught:
        read_source(str(where))
    assert str(where) in str(caught.value)


@pytest.mark.parametrize('program', ['ours', pytest.param('tensorflow', marks=pytest.mark.slow)])
def test_a_checkpoint_comes_in_and_goes_out(tmp_path, capsys, program):
    variables = values(pretraining_shapes(BERT))
    moments = {f'{n}/{m}': a for n, a in variables.items() for m in ('adam_m', 'adam_v')}
    step = {'global_step': np.ones((), 'f')}
    released = place(tmp_path / 'released', variables | moments | step)
    if program == 'tensorflow':
        tensorflow_saves(str(released / 'bert_model.ckpt'), variables, steps=True)
    source = load_source(str(released / 'bert_model.ckpt'), print_map=True)
    assert source.bert.architecture == 'BertForPreTraining' and source.tokenizer.encode(
        'word3 Word0'
    ) == [8, 5]
    reading = google.read(str(released / 'bert_model.ckpt'))
    assert (
        len(reading.ignored) == 2 * len(variables) + 1
        and f'{len(reading.ignored)} variables of the optimizer' in reading.remarks[0]
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(variables) + len(reading.ignored) and 'global_step  (ignored)' in lines
    assert (
        'bert/encoder/layer_1/output/LayerNorm/gamma  encoder/layers/output_norm/scale[1]' in lines
    )

    batch = google_names.batch()
    mlm, nsp = jax.jit(heads.Pretraining(source.model).apply)({'params': source.params}, batch)
    _, _, want_mlm, want_nsp = numpy_forward(
        google_names.tree(variables, BERT), source.model, batch
    )
    np.testing.assert_allclose(mlm[..., :40], want_mlm, atol=2e-5, rtol=0)
    np.testing.assert_allclose(nsp, want_nsp, atol=2e-5, rtol=0)

    export.write(source.bert, source.tokenizer, 'google', str(tmp_path / 'ours'))
    assert json.loads((tmp_path / 'ours' / 'bert_config.json').read_text()) == SETTINGS
    assert (tmp_path / 'ours' / 'vocab.txt').read_text() == (released / 'vocab.txt').read_text()
    ours = tensor_bundle.Bundle(f'{tmp_path}/ours/bert_model.ckpt')
    assert list(ours.variables) == sorted(variables)
    assert all(ours.read(n).tobytes() == a.tobytes() for n, a in variables.items())
    if program == 'tensorflow':
        tensorflow_finds(f'{tmp_path}/ours/bert_model.ckpt', variables)


@pytest.mark.parametrize('head', HEADS)
def test_fine_tuned_heads(tmp_path, head):
    """run_classifier.py and run_squad.py name their variables beside the encoder's.

    Through our tree and back.
    """
    variables = values(ENCODER | HEADS[head])
    folder = place(tmp_path / 'there', hidden_act='relu')
    tensor_bundle.write(str(folder / 'model.ckpt-343'), variables)
    source = read_source(str(folder))  # the only checkpoint in the folder
    np.testing.assert_array_equal(
        source.params[head]['kernel'], variables[next(iter(HEADS[head]))].T
    )
    assert (
        source.bert.architecture
        == {'classifier': 'BertForSequenceClassification', 'span': 'BertForQuestionAnswering'}[head]
    )
    _, left_out = export.write(source.bert, source.tokenizer, 'google', str(tmp_path / 'ours'))
    assert left_out == ()
    data = 'data-00000-of-00001'
    written = (tmp_path / f'ours/bert_model.ckpt.{data}').read_bytes()
    assert written == (folder / f'model.ckpt-343.{data}').read_bytes()


@pytest.mark.parametrize(
    ('variables', 'settings', 'message'),
    [
        ({'bert/pooler/dense/bias': np.ones(8, 'f')}, {}, 'bias: (8,) in the file, (16,) by bert'),
        ({'save_counter/.ATTRIBUTES/VARIABLE_VALUE': np.ones(1, 'f')}, {}, 'by TensorFlow 2'),
        ({}, {'hidden_act': 'tanh'}, "hidden_act='tanh' is not built here: only gelu, relu are"),
        ({}, {'num_hidden_layers': 3}, 'missing bert/encoder/layer_2/'),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, variables, settings, message):
    check_refused(place(tmp_path / 'there', values(ENCODER) | variables, **settings), message)


def test_a_checkpoint_is_known_by_any_of_its_files(tmp_path):
    folder = place(tmp_path / 'there', values(ENCODER))
    prefix = str(folder / 'bert_model.ckpt')
    for name in (
        'bert_model.ckpt',
        'bert_model.ckpt.index',
        'bert_model.ckpt.data-00000-of-00001',
        'bert_model.ckpt.meta',
        '',
    ):
        assert google.find_prefix(folder / name) == prefix
    assert google.find_prefix(folder / 'other.ckpt.index') is None


def test_a_left_over_bert_config_does_not_hide_a_model_of_hugging_face(tmp_path):
    tiny_models.tokenizer().save(tmp_path)
    huggingface.write(tmp_path, tiny_models.model('BertForSequenceClassification'))
    (tmp_path / 'bert_config.json').write_text(json.dumps(SETTINGS))
    assert read_source(str(tmp_path)).bert.architecture == 'BertForSequenceClassification'


def test_the_state_of_any_optimizer_is_left_out_and_said(tmp_path):
    weights, slots = values(ENCODER), ('m', 'v', 'Momentum', 'RMSProp_1')
    state = {f'{name}/{slot}': value for name, value in weights.items() for slot in slots}
    names = ('global_step', 'beta1_power', 'current_loss_scale', 'good_steps', 'bad_steps')
    scalars = {name: np.ones((), 'f') for name in names}
    reading = google.read(
        str(place(tmp_path / 'there', weights | state | scalars) / 'bert_model.ckpt')
    )
    assert (
        set(reading.ignored) == {*state, *scalars}
        and 'variables of the optimizer' in reading.remarks[0]
    )


def test_damaged_and_absent_files_are_refused(tmp_path):
    variables = values(ENCODER)
    folder = place(tmp_path / 'there', variables)
    index, data = folder / 'bert_model.ckpt.index', folder / 'bert_model.ckpt.data-00000-of-00001'
    content = data.read_bytes()
    claims = tensor_bundle.Bundle(str(index).removesuffix('.index'))
    name, variable = next(iter(claims.variables.items()))
    for size, shape in ((2**50, variable.shape), (2**50, (2**48,)), (2**70, (2**34, 2**34))):
        claims.variables[name] = variable._replace(size=size, shape=shape)
        with refused(f'damaged or cut off at {name}'):
            claims.read(name)
    data.write_bytes(content[:1000] + bytes([content[1000] ^ 4]) + content[1001:])
    check_refused(folder, 'damaged or cut off at bert/')
    data.write_bytes(content[:-4])
    check_refused(folder, 'damaged or cut off at bert/pooler/dense/kernel')
    data.unlink()
    check_refused(folder, 'data-00000-of-00001: no such file')
    whole = index.read_bytes()
    for damaged in (
        whole[:-100],
        whole[:50],
        b'',
        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
    ):
        index.write_bytes(damaged)
        check_refused(folder, 'not a whole index of a TensorFlow checkpoint')
    index.unlink()
    check_refused(folder, '0 checkpoints in it (no .index file)')
    for name in ('a.ckpt', 'b.ckpt'):
        tensor_bundle.write(str(folder / name), variables)
    check_refused(folder, '2 checkpoints in it (a.ckpt, b.ckpt): name one')
    (folder / 'bert_config.json').unlink()
    with refused(r'bert_config\.json: no such file'):
        read_source(str(folder / 'a.ckpt'))


@pytest.mark.parametrize(
    ('act', 'architecture', 'message'),
    [
        ('gelu_erf', 'BertModel', 'hidden_act=gelu_erf .* --hidden_act=gelu_tanh'),
        ('gelu_tanh', 'BertForTokenClassification', 'cannot be written for google-research/bert'),
    ],
)
def test_what_the_reference_does_not_have_is_refused_by_name(tmp_path, act, architecture, message):
    folder = place(tmp_path / 'there', values(ENCODER | HEADS['classifier']))
    model = google.read(str(folder / 'bert_model.ckpt')).model
    config = dataclasses.replace(model.config, hidden_act=act)
    with refused(message):
        google.write(tmp_path / 'ours', model._replace(config=config, architecture=architecture))
    assert not (tmp_path / 'ours').exists()
