"""Hugging Face directories without PyTorch.

Against files that transformers wrote (tests/parity/make_golden.py), and every refusal.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import shutil
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.configs.errors import UserError
from bert_jax.conversion import huggingface
from bert_jax.model import heads

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


def refused(folder: pathlib.Path) -> str:
    """The one line with which a directory is refused."""
    with pytest.raises(UserError) as caught:
        huggingface.read(folder)
    assert '\n' not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def equal(a, b) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(
        jax.tree.map(np.array_equal, a, b)
    )


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
    assert equal(huggingface.read(tmp_path / 'out').model, huggingface.read(folder).model)


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
    assert equal(reading.model, wanted)
    assert set(reading.ignored) <= {'bert.embeddings.position_ids'}


def test_shards_with_an_index(folder):
    wanted = huggingface.read(folder).model
    whole = load_file(folder / 'model.safetensors')
    places = {name: f'model-0000{i % 3 + 1}-of-00003.safetensors' for i, name in enumerate(whole)}
    for file in set(places.values()):
        save_file({n: whole[n] for n in whole if places[n] == file}, folder / file)
    (folder / 'model.safetensors').unlink()
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': places}))
    assert equal(huggingface.read(folder).model, wanted)
    (folder / 'model-00002-of-00003.safetensors').unlink()
    assert 'names model-00002-of-00003.safetensors, which is not beside it' in refused(folder)
    for odd, message in (
        ({'a': 3}, 'its weight_map does not give every tensor the name of a file'),
        ({'a': '../there'}, 'which is not beside it'),
        ({'a': 'a\0b'}, 'which is not beside it'),
    ):
        (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': odd}))
        assert message in refused(folder)


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
    assert equal(huggingface.read(tmp_path / 'out').model, model)
    settings(folder, id2label={'0': 'a', '1': 'b'})
    assert 'classifier.weight: (11, 16) in the file, (2, 16) by config.json' in refused(folder)


def test_dropout_before_a_classifier_is_kept_without_one(folder, tmp_path):
    settings(folder, classifier_dropout=0.0)
    model = huggingface.read(folder).model
    huggingface.write(tmp_path / 'out', model, {'pad_token_id': 7, 'eos_token_id': 3})
    written = json.loads((tmp_path / 'out/config.json').read_text())
    assert (written['classifier_dropout'], written['pad_token_id']) == (0.0, 7)
    assert 'eos_token_id' not in written
    assert huggingface.read(tmp_path / 'out').model.head_dropout == 0.0


@pytest.mark.parametrize(
    ('model_type', 'architecture'),
    [
        ('xlm-roberta', 'XLMRobertaForMaskedLM'),
        ('bert', 'RobertaModel'),
    ],
)
def test_other_architectures_are_refused(folder, model_type, architecture):
    settings(folder, model_type=model_type, architectures=[architecture])
    assert f'describes {architecture} (model_type {model_type!r}), which is not BERT' in refused(
        folder
    )


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'hidden_act': 'silu'}, "hidden_act='silu' is not built here: only gelu_new, gelu, relu"),
        (
            {'position_embedding_type': 'relative_key'},
            "position_embedding_type='relative_key' is not built here: only 'absolute' is",
        ),
        (
            {'vocab_size': 48},
            'bert.embeddings.word_embeddings.weight: (40, 16) in the file, (48, 16) by config.json',
        ),
        (
            {'num_hidden_layers': 5},
            'encoder.layer.{2,3,4}.output.dense.weight; not known here nothing',
        ),
        ({'id2label': {'zero': 'a'}}, 'id2label has keys that are no numbers: zero'),
        ({'num_hidden_layers': 10**12}, 'num_layers=1000000000000: must be in'),
    ],
)
def test_settings_that_do_not_fit_are_refused(folder, changes, message):
    settings(folder, **changes)
    assert message in refused(folder)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (
            lambda n, a: {n: a, 'bert.embeddings.extra': a},
            'missing nothing; not known here bert.embeddings.extra',
        ),
        (lambda n, a: {n: a, n.removeprefix('bert.'): a}, 'are two names of one array'),
        (
            lambda n, a: {n: a, 'cls.predictions.decoder.weight': np.ones((40, 16), 'f')},
            'but here they are one array',
        ),
        (
            lambda n, a: {n: np.full_like(a, np.nan) if 'pooler.dense.bias' in n else a},
            'bert.pooler.dense.bias: NaN or infinite',
        ),
        (lambda n, a: {n: a, 'bert.odd': np.zeros(2, np.uint8)}, 'tensors of type U8'),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder, change, message):
    tensors(folder, change)
    assert message in refused(folder)


def test_damaged_and_absent_files_are_refused(folder, monkeypatch):
    content = (folder / 'model.safetensors').read_bytes()
    for damaged in (content[:-100], b''):
        (folder / 'model.safetensors').write_bytes(damaged)
        assert 'not a whole safetensors file' in refused(folder)
    (folder / 'model.safetensors').unlink()
    assert 'no model.safetensors' in refused(folder)
    monkeypatch.setitem(sys.modules, 'torch', None)
    (folder / 'pytorch_model.bin').write_bytes(pickle.dumps(print))
    assert 'only safetensors are read without PyTorch' in refused(folder)
    (folder / 'config.json').write_bytes(b'{"model_type": "bert",')
    assert 'not valid JSON' in refused(folder)
    (folder / 'config.json').unlink()
    assert 'no config.json in it' in refused(folder)


def test_a_class_that_needs_more_than_there_is_is_refused(folder, tmp_path):
    model = huggingface.read(folder).model
    with pytest.raises(
        UserError, match='BertForQuestionAnswering needs span, which this model does not have'
    ):
        huggingface.write(tmp_path / 'out', model._replace(architecture='BertForQuestionAnswering'))
    assert huggingface.write(tmp_path / 'out', model._replace(architecture='BertForMaskedLM')) == (
        'pooler',
        'nsp',
    )
    assert huggingface.read(tmp_path / 'out').model.parts == ('mlm',)
