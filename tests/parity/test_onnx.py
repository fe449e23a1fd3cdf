"""ONNX files as onnxruntime computes them, beside the model that they were made of."""

from __future__ import annotations

import collections
import dataclasses
import json
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.conversion import onnx_program, serving
from bert_jax.conversion.trained_model import Model
from bert_jax.inference import export
from bert_jax.inference.serving_folder import ProgramSettings
from bert_jax.train.task_heads import HEADS
from tests.helpers import tiny_models
from tests.helpers.tiny_models import SHAPES
from tests.helpers.tiny_models import of_family as model

_REASON = 'onnx and onnxruntime are not installed: bash launch/test.sh --parity'
onnx = pytest.importorskip('onnx', reason=_REASON)
onnxruntime = pytest.importorskip('onnxruntime', reason=_REASON)

# Every head of BERT; of the others those that read what a family has of its own.
CASES = (
    [('bert', head) for head in HEADS if HEADS[head].is_in('bert')]
    + [
        (family, head)
        for family in SHAPES
        if family != 'bert'
        for head in ('masked_words', 'choice')
    ]
    + [('electra', 'detection')]
)
SEGMENTS = {'bert', 'albert', 'electra'}


def batch_of(made: Model, b: int, t: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(t)
    sizes = {'b': b, 't': t, 'c': 2}
    shape = [sizes[axis] for axis in made.row.inputs['input_ids'].split(', ')]
    lengths = rng.integers(1, t + 1, shape[:-1])
    return {
        'input_ids': rng.integers(0, 100, shape),
        'input_mask': (np.arange(t) < lengths[..., None]).astype(int),
        'segment_ids': rng.integers(0, 2, shape),
    }


def check(made: Model, *files, shapes=((2, 9),)) -> None:
    """onnxruntime gives what the model gives."""
    sessions = [onnxruntime.InferenceSession(file) for file in files]
    inputs = [each.name for each in sessions[0].get_inputs()]
    outputs = [each.name for each in sessions[0].get_outputs()]
    for b, t in shapes:
        batch = batch_of(made, b, t)
        asked = {onnx_program.INPUTS[name]: array for name, array in batch.items()}
        if 'masked_lm_positions' in made.row.inputs:
            batch['masked_lm_positions'] = np.broadcast_to(np.arange(t), (b, t))
        arrays = {name: jnp.asarray(array, jnp.int32) for name, array in batch.items()}
        # One by one, operations of the usual shape are compiled once for all models.
        is_usual = shapes == ((2, 9),)
        forward = serving.make_forward(made) if is_usual else jax.jit(serving.make_forward(made))
        wanted = forward(made.params, arrays)
        for session in sessions:
            found = dict(zip(outputs, session.run(None, {name: asked[name] for name in inputs})))
            assert set(wanted) <= set(found)
            for name, value in wanted.items():
                assert found[name].shape == value.shape
                np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=1e-5)
                assert np.ptp(found[name]) > 0.01


@pytest.mark.parametrize(('family', 'head'), CASES)
def test_every_head_answers_in_onnxruntime_as_here(family, head, tmp_path):
    made, file = model(family, head), tmp_path / 'model.onnx'
    inputs, outputs = onnx_program.write(file, made)
    segments = ['token_type_ids'] if family in SEGMENTS else []
    assert inputs == ['input_ids', 'attention_mask', *segments]
    tokens = ['token_embeddings'] if head == 'embedding' else []
    assert outputs == [*made.row.output_names, *tokens]
    check(made, file)


@pytest.mark.parametrize('pooling', ['max', 'weighted_mean', 'last'])
def test_pooling_is_in_the_graph(pooling, tmp_path):
    made = model('bert', 'embedding')._replace(sentence=SentenceConfig(pooling, True, 5))
    onnx_program.write(tmp_path / 'model.onnx', made)
    check(made, tmp_path / 'model.onnx')


@pytest.mark.parametrize('family', ['bert', 'modernbert'])
def test_rows_of_any_number_and_length_are_taken_by_any_opset(family, tmp_path):
    # Small weights: of 230 tokens some norms are near zero with large ones, and round-off grows.
    made = model(family, 'encoder', hidden_act='gelu_tanh', initializer_range=0.1)
    files = {opset: tmp_path / f'{opset}.onnx' for opset in (17, 20)}
    for opset, file in files.items():
        onnx_program.write(file, made, opset)
        nodes = collections.Counter(node.op_type for node in onnx.load(file).graph.node)
        assert nodes['Softmax'] == 2 and nodes['LayerNormalization'] >= 4
        assert nodes['Gelu'] == (2 if opset == 20 else 0)
    check(made, *files.values(), shapes=[(1, 1), (2, 40 if family == 'bert' else 230)])


def test_a_tagger_with_an_lstm_is_written_with_its_loops(tmp_path):
    made, file = model('bert', 'tokens', bilstm=True), tmp_path / 'model.onnx'
    onnx_program.write(file, made)
    check(made, file, shapes=[(2, 9), (1, 4)])


def test_weights_are_matrices_that_onnxruntime_quantises(tmp_path):
    made, file = model('bert', 'encoder'), tmp_path / 'model.onnx'
    onnx_program.write(file, made)
    graph = onnx.load(file).graph
    held = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    assert held['encoder/layers/1/intermediate/kernel'] == (16, 32)
    products = [node for node in graph.node if node.op_type == 'MatMul']
    assert sum(node.input[1] in held for node in products) == 2 * 6 + 1  # and the pooler
    onnx_program.quantise(file, tmp_path / 'int8.onnx')
    quantised = onnx.load(tmp_path / 'int8.onnx').graph.node
    assert sum(node.op_type == 'MatMulInteger' for node in quantised) == 2 * 6 + 1


def test_large_weights_lie_in_a_file_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_program, '_MOST_BYTES', 1000)
    made = model('bert', 'classifier')
    onnx_program.write(tmp_path / 'model.onnx', made)
    assert (tmp_path / 'model.onnx_data').stat().st_size > 1000
    check(made, tmp_path / 'model.onnx')


@pytest.mark.parametrize(
    ('opset', 'message'),
    [
        (16, '--opset=16 is too old: these models need LayerNormalization, which ONNX has since'),
        (999, '--opset=999: the onnx that is installed has opsets up to'),
    ],
)
def test_an_opset_that_cannot_be_is_refused(opset, message, tmp_path):
    with pytest.raises(UserError, match=message):
        onnx_program.write(tmp_path / 'model.onnx', model('bert', 'encoder'), opset)
    assert not any(tmp_path.iterdir())


def test_what_has_no_node_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.delitem(onnx_program.ROWS, 'tanh')
    with pytest.raises(UserError, match='this model computes tanh, which is not built there'):
        onnx_program.write(tmp_path / 'model.onnx', model('bert', 'classifier'))


@pytest.mark.parametrize(
    ('architecture', 'words'),
    [
        ('BertForMaskedLM', ['paris is the [MASK] of france']),
        ('BertForMultipleChoice', ['what is paris', 'the capital', 'a bad film']),
    ],
)
def test_the_script_of_a_folder_asks_it(architecture, words, tmp_path, monkeypatch, capsys):
    made, said = tiny_models.model(architecture), {}
    for form in ('stablehlo', 'onnx'):
        folder = tmp_path / form
        export.write(made, tiny_models.tokenizer(), form, str(folder))
        monkeypatch.setattr(sys, 'argv', ['serve.py', *words])
        runpy.run_path(str(folder / 'serve.py'), run_name='__main__')
        said[form] = capsys.readouterr().out
    assert said['onnx'] == said['stablehlo'] != ''
    config = json.loads((tmp_path / 'onnx' / 'config.json').read_text())
    assert config['architectures'] == [architecture]


def test_int8_lies_beside_and_a_model_that_others_lack_has_no_config(tmp_path):
    made = tiny_models.model('BertForSequenceClassification')
    made = made._replace(config=dataclasses.replace(made.config, attention='left_to_right'))
    out = tmp_path / 'out'
    export.write(
        made,
        tiny_models.tokenizer(),
        'onnx',
        str(out),
        export.Extras(program=ProgramSettings(int8=True)),
    )
    assert {file.name for file in (out / 'onnx').iterdir()} == {
        'model.onnx', 'model_quantized.onnx'
    }  # fmt: skip
    assert not (out / 'config.json').exists() and (out / 'tokenizer.json').exists()
