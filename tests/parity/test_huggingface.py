"""Every number against transformers' own BERT with PyTorch on the CPU, in float32, both ways."""

from __future__ import annotations

import json
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion import huggingface, serving
from bert_jax.inference.predictor import Predictor
from bert_jax.model import heads
from bert_jax.train.task_heads import CLASSES
from tests.helpers import trees
from tests.helpers.vocabularies import write_vocabulary
from tests.parity import answers, reference
from tests.parity.reference import torch, transformers

TINY = reference.sizes()
ODD = reference.sizes(
    vocab_size=131,
    hidden_size=27,
    num_attention_heads=3,
    num_hidden_layers=1,
    intermediate_size=50,
    max_position_embeddings=37,
    type_vocab_size=5,
    layer_norm_eps=1e-5,
)


def read_back(model: torch.nn.Module, folder: pathlib.Path) -> huggingface.Model:
    """What we read of a model that transformers saved."""
    model.save_pretrained(folder)
    return huggingface.read(folder).model


def encode(config: ModelConfig, params, batch):
    """-> (hidden states, pooled)"""
    model = heads.Encoder(config, jnp.float32)
    return jax.jit(model.apply)(
        {'params': params['encoder']}, batch['input_ids'], batch['input_mask'], batch['segment_ids']
    )[:2]


def pretraining(config: ModelConfig, params, batch):
    """-> (masked-LM logits at every position, next-sentence logits)"""
    rows, length = batch['input_ids'].shape
    everywhere = {
        **batch,
        'masked_lm_positions': np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
    }
    mlm, nsp = jax.jit(heads.Pretraining(config).apply)({'params': params}, everywhere)
    return mlm[..., : config.vocab_size], nsp


def close(found, wanted) -> None:
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize(('size', 'act'), [(TINY, 'gelu'), (ODD, 'relu')])
def test_forward(tmp_path, size, act):
    theirs = reference.random_model('BertForPreTraining', hidden_act=act, **size)
    config, params = read_back(theirs, tmp_path)[:2]
    for length in (5, 32):
        batch = reference.inputs(config.vocab_size, rows=5, length=length, seed=length)
        wanted = reference.call(theirs, batch)
        hidden, pooled = encode(config, params, batch)
        mlm, nsp = pretraining(config, params, batch)
        close(hidden, wanted['last_hidden_state'])
        close(pooled, reference.call(theirs.bert, batch)['pooler_output'])
        close(mlm, wanted['prediction_logits'])
        close(nsp, wanted['seq_relationship_logits'])


@pytest.mark.parametrize('act', ['gelu', 'gelu_new'])
def test_gradients_of_the_pretraining_loss(tmp_path, act):
    theirs = reference.random_model('BertForPreTraining', hidden_act=act, **TINY)
    model = read_back(theirs, tmp_path / 'weights')
    batch = reference.inputs(model.config.vocab_size, rows=6, length=32)
    found, norm = reference.same_gradients(theirs, model, batch, tmp_path / 'gradients')
    # a constant added to every key changes no softmax
    assert np.abs(found['encoder']['layers']['key']['bias']).max() < 1e-6 * norm


# Classes with BERT's settings; test_modernbert.py and test_encoders.py have the others.
ALIKE = ('Bert', 'Albert', 'Roberta', 'XLMRoberta', 'Camembert', 'MPNet')


@pytest.mark.parametrize('architecture', [a for a in CLASSES if a.startswith(ALIKE)])
def test_every_class_comes_in_and_goes_out(tmp_path, architecture):
    """The same outputs here and there.

    What we write is loaded with no missing or unexpected key and gives bit-equal outputs.
    """
    labels = {'num_labels': 3} if CLASSES[architecture].labelled else {}
    traits = next(f for f in FAMILIES.values() if architecture.startswith(f.transformers.prefix))
    ids = {k: v for k, v in traits.transformers.written.items() if k.endswith('_token_id')}
    theirs = reference.random_model(architecture, hidden_act='gelu_new', **TINY, **labels, **ids)
    model = read_back(theirs, tmp_path / 'theirs')
    assert model.architecture == architecture and model.parts == CLASSES[architecture].parts
    batch = reference.inputs(100, rows=4, length=16)
    if architecture.endswith('ForMultipleChoice'):
        batch = {k: batch[k].reshape(2, 2, 16) for k in ('input_ids', 'input_mask', 'segment_ids')}
    if traits.first_position:  # it knows padding by its id, not by the mask
        is_real = batch['input_mask'] > 0
        batch['input_ids'] = np.where(is_real, batch['input_ids'], theirs.config.pad_token_id)
    wanted = reference.call(theirs, batch)
    if 'sop_logits' in wanted:  # ALBERT's name of it
        wanted['seq_relationship_logits'] = wanted['sop_logits']
    batch['masked_lm_positions'] = np.tile(np.arange(16, dtype=np.int32), (4, 1))
    for name, found in jax.jit(serving.make_forward(model))(model.params, batch).items():
        close(found, wanted[name])
    assert huggingface.write(tmp_path / 'ours', model) == ()
    again, info = getattr(transformers, architecture).from_pretrained(
        tmp_path / 'ours', output_loading_info=True
    )
    assert not any(info.values()), info
    before, after = theirs.config.to_dict(), again.config.to_dict()
    assert {k: after[k] for k in before if k != '_name_or_path'} == {
        k: v for k, v in before.items() if k != '_name_or_path'
    }
    for name, found in reference.call(again, batch).items():
        np.testing.assert_array_equal(found, wanted[name])
    back = read_back(again, tmp_path / 'back')  # what transformers saves of ours is ours again
    assert back[2:] == model[2:] and trees.equal(back.params, model.params)


def test_shards_of_transformers(tmp_path):
    theirs = reference.random_model('BertModel', **TINY)
    theirs.save_pretrained(tmp_path / 'many', max_shard_size='20KB')
    assert len(list((tmp_path / 'many').glob('*.safetensors'))) > 3
    many, one = huggingface.read(tmp_path / 'many').model, read_back(theirs, tmp_path / 'one')
    assert trees.equal(many.params, one.params)


def test_pickled_weights_only_as_plain_tensors(tmp_path):
    theirs = reference.random_model('BertForMaskedLM', **TINY)
    wanted = read_back(theirs, tmp_path)
    (tmp_path / 'model.safetensors').unlink()
    # The file holds the decoder's copies of the word table and bias.
    torch.save(theirs.state_dict(), tmp_path / 'pytorch_model.bin')
    found = huggingface.read(tmp_path).model
    assert trees.equal(found.params, wanted.params)
    whole = torch.load(tmp_path / 'pytorch_model.bin', weights_only=True)
    (tmp_path / 'pytorch_model.bin').unlink()
    places = {name: f'pytorch_model-0000{i % 2 + 1}-of-00002.bin' for i, name in enumerate(whole)}
    for file in set(places.values()):
        torch.save(
            {name: whole[name].half() for name in whole if places[name] == file}, tmp_path / file
        )
    (tmp_path / 'pytorch_model.bin.index.json').write_text(json.dumps({'weight_map': places}))
    found = huggingface.read(tmp_path)
    assert found.remarks == (f'{len(whole)} tensors are float16: read as float32',)
    off = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), found.model.params, wanted.params)
    assert 0 < max(jax.tree.leaves(off)) < 1e-3
    for held, message in (
        (
            {'epoch': 3, 'state_dict': whole},
            'holds a dict of epoch, state_dict, and not a dictionary of tensors',
        ),
        (list(whole.values()), 'holds a list, and not a dictionary of tensors'),
        (
            whole | {'odd': whole['cls.predictions.bias'].to_sparse()},
            'odd is a sparse, quantised or complex tensor',
        ),
    ):
        torch.save(held, tmp_path / 'pytorch_model.bin')
        with pytest.raises(UserError, match=message):
            huggingface.read(tmp_path)
    learnt = {name: torch.nn.Parameter(tensor) for name, tensor in whole.items()}
    torch.save(learnt, tmp_path / 'pytorch_model.bin')
    found = huggingface.read(tmp_path).model
    assert trees.equal(found.params, wanted.params)
    (tmp_path / 'pytorch_model.bin').write_bytes(pickle.dumps(pathlib.Path.cwd))
    with pytest.raises(UserError, match='torch cannot read it as plain tensors'):
        huggingface.read(tmp_path)


def test_token_classification_pipeline(tmp_path):
    theirs = reference.random_model('BertForTokenClassification', num_labels=3, **TINY)
    model = read_back(theirs, tmp_path / 'theirs')._replace(labels=('B-PER', 'I-PER', 'B-LOC'))
    where = write_vocabulary(tmp_path / 'ours', [f'word{i}' for i in range(95)])
    huggingface.write(where, model)
    text = 'Word3 word4 word17'
    wanted = answers.pipeline('token-classification', where)(text)
    found = Predictor.from_workdir(str(where))(text)
    assert found['labels'] == [word['entity'] for word in wanted]
    close(found['probabilities'], [word['score'] for word in wanted])
