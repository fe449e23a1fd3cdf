"""Adapters in peft's format, written here by hand, against a forward pass in numpy.

What peft itself writes and reads is in tests/parity/test_peft.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.conversion import peft, peft_settings, trained_model
from bert_jax.model import heads
from bert_jax.train import task_heads
from tests.helpers.numpy_bert import dense, make_batch, noisy_params, numpy_encode
from tests.helpers.refusals import refused
from tests.helpers.tiny import tiny_config

SHAPE = tiny_config(num_layers=3, max_position=32)
PREFIX = 'base_model.model.bert.encoder.layer.'
LORA = {'peft_type': 'LORA', 'task_type': 'SEQ_CLS', 'r': 4, 'lora_alpha': 6}
IA3 = {'peft_type': 'IA3', 'task_type': 'SEQ_CLS'}
FULL = {'base_model_name_or_path': 'base'}


def base_model(seed: int = 0) -> trained_model.Model:
    """What a base encoder is read as."""
    return trained_model.Model(SHAPE, noisy_params(heads.EncoderOnly(SHAPE), seed), 'BertModel')


def arrays(*modules: tuple[str, str, tuple[int, ...]], blocks=range(3)):
    """Random arrays of a method at (module, name, shape) of each block, and a head of three."""
    rng = np.random.RandomState(1)
    draw = lambda shape: rng.normal(0.5, 0.3, shape).astype(np.float32)
    made = {
        f'{PREFIX}{i}.{module}.{name}': draw(shape)
        for i in blocks
        for module, name, shape in modules
    }
    head = {'weight': draw((3, 16)), 'bias': draw((3,))}
    return made | {f'base_model.model.classifier.{name}': a for name, a in head.items()}


def lora(module, inputs, outputs, rank=4):
    return (
        (module, 'lora_A.weight', (rank, inputs)),
        (module, 'lora_B.weight', (outputs, rank)),
    )


QUERY, OUTPUT = lora('attention.self.query', 16, 16), lora('output.dense', 32, 16)
SCALES = (
    ('attention.self.key', 'ia3_l', (16, 1)),
    ('attention.self.value', 'ia3_l', (16, 1)),
    ('output.dense', 'ia3_l', (1, 32)),
)
THEIR_NAME = {
    'query': 'attention.self.query',
    'key': 'attention.self.key',
    'value': 'attention.self.value',
    'attention_output': 'attention.output.dense',
    'intermediate': 'intermediate.dense',
    'output': 'output.dense',
}


def save(folder, tensors, settings):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / 'adapter_model.safetensors')
    (folder / 'adapter_config.json').write_text(json.dumps(FULL | settings))
    return folder


def logits(model: trained_model.Model, batch):
    head = task_heads.make_model('classifier', model.config, 3, 0.0, RuntimeConfig())
    return head.apply({'params': model.params}, batch)


def numpy_logits(base, tensors, scale, batch):
    """From peft's own names and layouts: torch's kernels are [out, in]."""
    encoder = base.params['encoder']
    # A block knows its number by a leaf that numpy_encode cuts along with the others.
    encoder = encoder | {'layers': encoder['layers'] | {'number': np.arange(3.0)}}

    def linear(layer, name, x):
        at = f'{PREFIX}{int(layer["number"])}.{THEIR_NAME[name]}.'
        get = lambda leaf: tensors.get(at + leaf)
        if (ia3 := get('ia3_l')) is not None:
            if ia3.shape[1] == 1:
                return dense(x, layer[name]) * ia3[:, 0]
            return dense(x * ia3[0], layer[name])
        y = dense(x, layer[name])
        if get('lora_A.weight') is None:
            return y
        return y + scale * (x @ get('lora_A.weight').T @ get('lora_B.weight').T)

    pooled = numpy_encode(encoder, SHAPE, batch, linear)[1]
    head = 'base_model.model.classifier.'
    return pooled @ tensors[head + 'weight'].T + tensors[head + 'bias']


@pytest.mark.parametrize(
    ('settings', 'modules', 'blocks', 'scale'),
    [
        (LORA | {'layers_to_transform': [1, 2]}, (*QUERY, *OUTPUT), (1, 2), 6 / 4),
        (IA3, (*SCALES, ('attention.output.dense', 'ia3_l', (1, 16))), range(3), 1),
    ],
    ids=['lora', 'ia3'],
)
def test_an_adapter_computes_what_its_arrays_say(tmp_path, settings, modules, blocks, scale):
    base, batch = base_model(), make_batch(SHAPE)
    tensors = arrays(*modules, blocks=blocks)
    model = peft.read(save(tmp_path / 'in', tensors, settings), base).model
    want = numpy_logits(base, tensors, scale, batch)
    np.testing.assert_allclose(logits(model, batch), want, atol=2e-5)

    # Out again: the same arrays under the same names.
    peft.write(tmp_path / 'out', model, base, 'base')
    again = load_file(tmp_path / 'out' / 'adapter_model.safetensors')
    assert again.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(again[name], array)


WHOLE = arrays(*QUERY)
ONE = f'{PREFIX}2.attention.self.query.lora_B.weight'
HEAD = {name: array for name, array in WHOLE.items() if 'classifier' in name}


@pytest.mark.parametrize(
    ('settings', 'tensors', 'message'),
    [
        ({'peft_type': 'PROMPT_TUNING'}, WHOLE, "peft_type='PROMPT_TUNING' is not built here"),
        ({'use_dora': True}, WHOLE, 'use_dora=True: not built here'),
        ({'r': 3}, WHOLE, r'lora_A.weight: .4, 16. in the file, .3, 16. by adapter_config.json'),
        ({'lora_alpha': None}, WHOLE, 'lora_alpha=null: it must be a number'),
        ({'task_type': 'CAUSAL_LM'}, WHOLE, 'it is for CAUSAL_LM, which is none of QUESTION_ANS'),
        ({}, {n: a for n, a in WHOLE.items() if n != ONE}, 'missing encoder.layer.2.att.*lora_B'),
        ({}, WHOLE | {'base_model.model.classifier.lora_A.weight': WHOLE[ONE]}, 'not known here'),
        ({}, WHOLE | {ONE: np.full((16, 4), np.nan, np.float32)}, 'NaN or infinite'),
        ({}, HEAD, 'there are no arrays of LORA for any of query, key'),
        # (IA)3 on other matrices, or on the other side of one.
        (IA3, arrays(('attention.self.query', 'ia3_l', (16, 1))), 'it scales query: here'),
        (
            IA3,
            arrays(*SCALES[:2], ('output.dense', 'ia3_l', (16, 1))),
            'ia3_l has the shape .16, 1.*feedforward_modules',
        ),
    ],
)
def test_what_is_not_built_or_does_not_fit_is_refused_by_name(tmp_path, settings, tensors, message):
    with refused(message):
        peft.read(save(tmp_path / 'in', tensors, LORA | settings), base_model())


def test_another_encoder_is_refused_both_ways(tmp_path):
    base, other = base_model(), base_model(seed=7)
    model = peft.read(save(tmp_path / 'in', arrays(*QUERY), LORA), base).model
    with refused('elsewhere is not the encoder .* are other weights'):
        peft.write(tmp_path / 'out', model, other, 'elsewhere')
    erf = base._replace(config=ModelConfig(**vars(SHAPE) | {'hidden_act': 'gelu_erf'}))
    with refused('hidden_act is gelu_tanh and gelu_erf there'):
        peft.write(tmp_path / 'out', model, erf, 'elsewhere')
    assert not (tmp_path / 'out').exists()

    # What was written here notes its encoder; what others wrote cannot be told apart.
    peft.write(tmp_path / 'out', model, base, 'base')
    with refused('base is not the encoder that it was tuned on'):
        peft.read(tmp_path / 'out', other)
    peft.read(tmp_path / 'in', other)


def test_methods_that_peft_has_not_are_refused():
    for method, why in (('full', 'all weights are'), ('houlsby', 'peft has no such adapters')):
        with refused(f'tuning.method={method}: {why}'):
            peft_settings.check_method(TuningConfig(method=method))


def test_what_was_written_for_one_task_is_not_taken_for_another(tmp_path):
    base = base_model()
    model = peft.read(save(tmp_path / 'in', arrays(*QUERY), LORA), base).model
    peft.write(tmp_path / 'out', model, base, 'base')
    file = tmp_path / 'out/adapter_config.json'

    # Both heads have arrays of the same names and shapes.
    file.write_text(json.dumps(json.loads(file.read_text()) | {'task_type': 'TOKEN_CLS'}))
    message = 'are of BertForSequenceClassification, and it says BertForTokenClassification'
    with refused(message):
        peft.read(tmp_path / 'out', base)
