"""Hugging Face directories without PyTorch.

Against files that transformers wrote (tests/parity/make_golden.py), and every refusal.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import re
import shutil
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.conversion import huggingface
from bert_jax.model import heads
from tests.helpers import trees
from tests.helpers.refusals import refused

GOLDEN = pathlib.Path(__file__).parents[2] / 'golden' / 'huggingface'
EXPECTED = load_file(GOLDEN / 'expected.safetensors')
BATCH = {
    name.removeprefix('batch/'): value
    for name, value in EXPECTED.items()
    if name.startswith('batch/')
}


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """A copy of the golden model that a test may change."""
    for name in ('config.json', 'model.safetensors'):
        shutil.copyfile(GOLDEN / name, tmp_path / name)
    return tmp_path


def settings(folder: pathlib.Path, *absent: str, **changes) -> None:
    """Changes config.json."""
    data = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(
        json.dumps({k: v for k, v in data.items() if k not in absent} | changes)
    )


def tensors(folder: pathlib.Path, change) -> None:
    """Changes model.safetensors: change(name, array) -> {name: array}."""
    changed: dict[str, np.ndarray] = {}
    for name, array in load_file(folder / 'model.safetensors').items():
        changed |= change(name, array)
    save_file(changed, folder / 'model.safetensors')


def check_refused(folder: pathlib.Path, message: str) -> None:
    """Asserts that the folder is refused in one line that names it."""
    with refused(re.escape(message)) as caught:
        huggingface.read(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize('act', ['gelu', 'gelu_new'])
def test_outputs_are_those_of_transformers(folder, act):
    settings(folder, hidden_act=act)
    config, params = huggingface.read(folder).model[:2]
    everywhere = {**BATCH, 'masked_lm_positions': np.tile(np.arange(12, dtype=np.int32), (4, 1))}
    mlm, nsp = heads.Pretraining(config).apply({'params': params}, everywhere)
    hidden, pooled, _ = heads.Encoder(config).apply(
        {'params': params['encoder']},
        *(BATCH[k] for k in ('input_ids', 'input_mask', 'segment_ids')),
    )
    for name, found in {
        'hidden': hidden,
        'pooled': pooled,
        'mlm': mlm[..., :40],
        'nsp': nsp,
    }.items():
        np.testing.assert_allclose(
            found, EXPECTED[f'{act}/{name}'], atol=2e-5, rtol=0, err_msg=name
        )


def test_what_is_written_is_what_was_read(folder, tmp_path):
    """Same names and same bits as transformers wrote, and the settings that make a model."""
    settings(folder, hidden_act='gelu_new')
    huggingface.write(tmp_path / 'out', huggingface.read(folder).model)
    before, after = (load_file(f / 'model.safetensors') for f in (folder, tmp_path / 'out'))
    assert before.keys() == after.keys() and all(
        np.array_equal(before[n], after[n]) for n in before
    )
    before, after = (
        json.loads((f / 'config.json').read_text()) for f in (folder, tmp_path / 'out')
    )
    new = {'position_embedding_type': 'absolute'}
    assert {k: v for k, v in after.items() if k not in new} == {
        k: before[k] for k in after if k not in new
    }
    assert trees.equal(huggingface.read(tmp_path / 'out').model, huggingface.read(folder).model)


@pytest.mark.parametrize(
    'spelling',
    [
        lambda name, array: {name.removeprefix('bert.'): array},
        lambda name, array: {
            name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace(
                'LayerNorm.bias', 'LayerNorm.beta'
            ): array
        },
        lambda name, array: {name: array, 'bert.embeddings.position_ids': np.arange(12)[None]},
        lambda name, array: (
            {name: array}
            | ({'cls.predictions.decoder.weight': array} if 'word_embeddings' in name else {})
        ),
        lambda name, array: {
            'cls.predictions.decoder.bias' if name == 'cls.predictions.bias' else name: array
        },
    ],
    ids=[
        'no prefix',
        'gamma and beta',
        'position_ids',
        'tied decoder',
        "the decoder's bias alone",
    ],
)
def test_other_spellings_of_the_same_model(folder, spelling):
    wanted = huggingface.read(folder).model
    tensors(folder, spelling)
    reading = huggingface.read(folder)
    assert trees.equal(reading.model, wanted)
    assert set(reading.ignored) <= {'bert.embeddings.position_ids'}


def test_shards_with_an_index(folder):
    wanted = huggingface.read(folder).model
    whole = load_file(folder / 'model.safetensors')
    places = {name: f'model-0000{i % 3 + 1}-of-00003.safetensors' for i, name in enumerate(whole)}
    for file in set(places.values()):
        save_file({n: whole[n] for n in whole if places[n] == file}, folder / file)
    (folder / 'model.safetensors').unlink()
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': places}))
    assert trees.equal(huggingface.read(folder).model, wanted)
    (folder / 'model-00002-of-00003.safetensors').unlink()
    check_refused(folder, 'names model-00002-of-00003.safetensors, which is not beside it')
    for odd, message in (
        ({'a': 3}, 'its weight_map does not give every tensor the name of a file'),
        ({'a': '../there'}, 'which is not beside it'),
        ({'a': 'a\0b'}, 'which is not beside it'),
    ):
        (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': odd}))
        check_refused(folder, message)


def test_other_precisions_become_float32_and_are_said(folder):
    dtype = ml_dtypes.bfloat16
    tensors(folder, lambda name, array: {name: array.astype(dtype)})
    reading = huggingface.read(folder)
    name = np.dtype(dtype).name
    assert reading.remarks == (f'46 tensors are {name}: read as float32',)
    key = load_file(GOLDEN / 'model.safetensors')['bert.encoder.layer.1.attention.self.key.weight']
    found = reading.model.params['encoder']['layers']['key']['kernel'][1]
    assert found.dtype == np.float32 and np.array_equal(
        found, key.astype(dtype).astype(np.float32).T
    )


def test_a_head_that_its_class_has_and_the_file_lacks_is_said(folder):
    assert huggingface.read(folder).remarks == ()
    settings(folder, architectures=['BertForTokenClassification'])
    (remark,) = huggingface.read(folder).remarks
    assert 'says BertForTokenClassification, and the weights lack its classifier' in remark


def test_labels_come_with_a_classifier(folder, tmp_path):
    # Not in order, and "10" sorts before "2" as text.
    names = {'10': 'k', **{str(i): f'{i}' for i in range(10)}}
    settings(
        folder,
        architectures=['BertForSequenceClassification'],
        id2label=names,
        classifier_dropout=0.3,
    )
    head = {'classifier.weight': np.ones((11, 16), 'f'), 'classifier.bias': np.zeros(11, 'f')}
    tensors(folder, lambda name, array: {} if name.startswith('cls.') else {name: array} | head)
    model = huggingface.read(folder).model
    assert model.labels == (*map(str, range(10)), 'k') and model.head_dropout == 0.3
    huggingface.write(tmp_path / 'out', model)
    assert trees.equal(huggingface.read(tmp_path / 'out').model, model)
    settings(folder, id2label={'0': 'a', '1': 'b'})
    check_refused(folder, 'classifier.weight: (11, 16) in the file, (2, 16) by config.json')


def test_dropout_before_a_classifier_is_kept_without_one(folder, tmp_path):
    settings(folder, classifier_dropout=0.0)
    model = huggingface.read(folder).model
    huggingface.write(tmp_path / 'out', model, {'pad_token_id': 7, 'eos_token_id': 3})
    written = json.loads((tmp_path / 'out/config.json').read_text())
    assert (written['classifier_dropout'], written['pad_token_id']) == (0.0, 7)
    assert 'eos_token_id' not in written
    assert huggingface.read(tmp_path / 'out').model.head_dropout == 0.0


def extra(name: str, array: np.ndarray):
    """A change that adds a tensor."""
    return lambda n, a: {n: a, name: array}


EXTRA = np.ones((40, 16), 'f')


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'model_type': 'xlnet', 'architectures': ['XLNetLMHeadModel']},
            "describes XLNetLMHeadModel (model_type 'xlnet')",
        ),
        (
            {'architectures': ['RobertaModel']},
            "describes RobertaModel (model_type 'bert'), but the classes of that type begin with",
        ),
        ({'hidden_act': 'mish'}, 'only gelu_new, gelu, relu'),
        ({'position_embedding_type': 'relative_key'}, "only 'absolute' is"),
        ({'vocab_size': 48}, '(40, 16) in the file, (48, 16) by config.json'),
        ({'num_hidden_layers': 5}, 'encoder.layer.{2,3,4}.output.dense.weight; not known'),
        ({'id2label': {'zero': 'a'}}, 'keys that are no numbers: zero'),
        ({'num_hidden_layers': 10**12}, 'num_layers=1000000000000'),
        (extra('bert.embeddings.extra', EXTRA), 'missing nothing; not known here bert.embeddings'),
        (lambda n, a: {n: a, n.removeprefix('bert.'): a}, 'two names of one array'),
        (extra('cls.predictions.decoder.weight', EXTRA), 'here they are one array'),
        (extra('bert.pooler.dense.bias', np.full(16, np.nan, 'f')), 'pooler.dense.bias: NaN'),
        (extra('bert.odd', np.zeros(2, np.uint8)), 'tensors of type U8'),
    ],
)
def test_settings_and_weights_that_do_not_fit_are_refused(folder, changes, message):
    if isinstance(changes, dict):
        settings(folder, **changes)
    else:
        tensors(folder, changes)
    check_refused(folder, message)


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('model.safetensors', b'', 'not a whole safetensors file'),
        ('model.safetensors', (GOLDEN / 'model.safetensors').read_bytes()[:-100], 'not a whole'),
        ('model.safetensors', None, 'no model.safetensors'),
        ('config.json', b'{"model_type": "bert",', 'not valid JSON'),
        ('config.json', None, 'no config.json in it'),
    ],
)
def test_a_damaged_or_absent_file_is_refused(folder, name, content, message):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    check_refused(folder, message)


def test_a_pickle_is_refused_where_there_is_no_pytorch(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch', None)
    (folder / 'model.safetensors').unlink()
    (folder / 'pytorch_model.bin').write_bytes(pickle.dumps(print))
    check_refused(folder, 'only safetensors are read without PyTorch')


def test_a_class_that_needs_more_than_there_is_is_refused(folder, tmp_path):
    model = huggingface.read(folder).model
    with refused('BertForQuestionAnswering needs span'):
        huggingface.write(tmp_path / 'out', model._replace(architecture='BertForQuestionAnswering'))
    assert huggingface.write(tmp_path / 'out', model._replace(architecture='BertForMaskedLM')) == (
        'pooler',
        'nsp',
    )
    assert huggingface.read(tmp_path / 'out').model.parts == ('mlm',)
