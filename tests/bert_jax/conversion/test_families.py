"""What a family's entry is enough for, on one that is made up."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

from bert_jax.configs.model.families import bert
from bert_jax.configs.model.families.family import Piece, TransformersNames
from bert_jax.configs.model.model_config import FAMILIES, ModelConfig
from bert_jax.conversion import huggingface
from bert_jax.inference import export
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.sources.source import read_source
from bert_jax.train.task_heads import CLASSES, HEADS
from tests.helpers import tiny_models, tokenizer_folders, trees
from tests.helpers.refusals import refused

LAYER = 'layers.{}'
MADE_UP = dataclasses.replace(
    bert.FAMILY,
    name='MadeUp',
    transformers=TransformersNames(
        'made-up',
        'MadeUp',
        bert.ARRAYS
        | {
            'encoder/embeddings/word': 'embeddings.tok.weight',
            'encoder/embeddings/norm': 'embeddings.norm',
            'encoder/layers/query': Piece(f'{LAYER}.Wqkv', 0, 3),
            'encoder/layers/key': Piece(f'{LAYER}.Wqkv', 1, 3),
            'encoder/layers/value': Piece(f'{LAYER}.Wqkv', 2, 3),
            'encoder/layers/intermediate': (Piece(f'{LAYER}.up'), Piece(f'{LAYER}.gate')),
        },
        base='model',
    ),
)


@pytest.fixture
def made_up(monkeypatch):
    """The table of families with the made-up one in the place of BERT."""
    monkeypatch.setitem(FAMILIES, 'bert', MADE_UP)
    monkeypatch.setattr(huggingface, 'BY_TYPE', {'made-up': 'bert'})
    monkeypatch.setitem(CLASSES, 'MadeUpForMaskedLM', HEADS['masked_words'])


def test_fused_and_split_arrays_go_out_and_come_back(tmp_path, made_up):
    model = tiny_models.model('BertForMaskedLM')
    model = model._replace(architecture=HEADS['masked_words'].class_in('bert'))
    assert model.architecture == 'MadeUpForMaskedLM'
    huggingface.write(tmp_path, model)

    tensors = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
    layers = model.params['encoder']['layers']
    fused = [layers[name]['kernel'][1].T for name in ('query', 'key', 'value')]
    np.testing.assert_array_equal(tensors['model.layers.1.Wqkv.weight'], np.concatenate(fused))
    biases = [layers[name]['bias'][0] for name in ('query', 'key', 'value')]
    np.testing.assert_array_equal(tensors['model.layers.0.Wqkv.bias'], np.concatenate(biases))
    up, gate = np.split(layers['intermediate']['kernel'][0].T, 2)
    np.testing.assert_array_equal(tensors['model.layers.0.up.weight'], up)
    np.testing.assert_array_equal(tensors['model.layers.0.gate.weight'], gate)
    assert 'cls.predictions.bias' in tensors  # around the encoder: without its module
    assert json.loads((tmp_path / 'config.json').read_text())['model_type'] == 'made-up'

    back = huggingface.read(tmp_path)
    assert back.model.architecture == 'MadeUpForMaskedLM'
    assert set(back.names['model.layers.1.Wqkv.bias'].split(' + ')) == {
        f'encoder/layers/{name}/bias[1]' for name in ('query', 'key', 'value')
    }
    for name in ('query', 'value', 'intermediate'):
        for leaf in ('kernel', 'bias'):
            np.testing.assert_array_equal(
                back.model.params['encoder']['layers'][name][leaf], layers[name][leaf]
            )


OF_ROBERTA = ['roberta', 'xlm_roberta', 'camembert']


def written(folder, family: str, head: str, **settings):
    """Writes a model's directory with other settings, ... for none; returns the model."""
    model = tiny_models.of_family(family, head, type_vocab_size=1)
    huggingface.write(folder, model)
    file = folder / 'config.json'
    stated = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({name: value for name, value in stated.items() if value is not ...}))
    return model


@pytest.mark.parametrize('family', OF_ROBERTA)
@pytest.mark.parametrize('head', ['encoder', 'masked_words', 'tokens', 'span'])
def test_a_directory_that_names_no_class_is_read_by_its_arrays(tmp_path, family, head):
    written(tmp_path, family, head)
    wanted = huggingface.read(tmp_path).model
    written(tmp_path, family, head, architectures=...)
    found = huggingface.read(tmp_path).model
    assert found.architecture == FAMILIES[family].transformers.bare
    assert found.parts == HEADS[head].of(family).parts
    assert trees.equal(found.params, wanted.params)


@pytest.mark.parametrize('family', OF_ROBERTA)
def test_rows_of_positions_are_counted_from_the_padding(tmp_path, family):
    """512 rows are 510 tokens, as in transformers; rows of no text alone are refused."""
    model = written(tmp_path, family, 'encoder')
    settings = json.loads((tmp_path / 'config.json').read_text())
    assert settings['max_position_embeddings'] == model.config.max_position + 2
    assert huggingface.read(tmp_path).model.config == model.config
    written(tmp_path, family, 'encoder', max_position_embeddings=2)
    with refused('max_position_embeddings=2: with pad_token_id=1 the first 2 rows are of no text'):
        huggingface.read(tmp_path)


@pytest.mark.parametrize('family', OF_ROBERTA)
def test_there_are_no_files_of_the_code_that_released_it(tmp_path, family):
    """Neither is fairseq's folder read, nor one of Google's written."""
    for name in ('model.pt', 'dict.txt', 'sentencepiece.bpe.model'):
        (tmp_path / name).write_bytes(b'')
    with refused('no config.json in it; expected a workdir'):
        read_source(str(tmp_path))
    model = tiny_models.of_family(family, 'masked_words', type_vocab_size=1)
    with refused(f'{FAMILIES[family].name}'):
        export.write(model, tiny_models.tokenizer(), 'google', str(tmp_path / 'out'))


@pytest.mark.parametrize('family', OF_ROBERTA)
def test_a_tokenizer_with_ids_beyond_the_table_is_refused(tmp_path, family):
    folder = tokenizer_folders.unigram(tmp_path / 'a', 'XLMRobertaTokenizer')
    entries = Tokenizer.load(folder).vocab_size
    for size in (entries, entries - 1):
        model = tiny_models.of_family(family, 'encoder', type_vocab_size=1, vocab_size=size)
        huggingface.write(folder, model)
        if size == entries:
            assert read_source(str(folder)).tokenizer.vocab_size == entries
    with refused(f'its tokenizer has {entries} entries but its model {entries - 1}'):
        read_source(str(folder))


def test_settings_unlike_those_of_a_family_are_told_before_a_run():
    lines = ModelConfig(family='mpnet').list_unlike_family()
    assert lines[0].startswith('model.positions=learned: MPNet of other programs has relative')
    assert len(lines) == 2 and not ModelConfig(family='electra').list_unlike_family()
