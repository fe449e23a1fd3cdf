"""ALBERT against transformers: its tokenizer, shapes and gradients."""

from __future__ import annotations

import pytest

from bert_jax.conversion import huggingface
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from tests.input_pipeline.tokenizer import test_albert_directories as directories
from tests.parity import reference
from tests.parity.reference import transformers

TEXT = [*directories.TEXT, *directories.NASTY, '한국어 사전을 학습합니다.']
SHAPES = {
    'tiny': {'hidden_size': 32, 'num_attention_heads': 4, 'num_hidden_layers': 3},
    'odd': {
        'hidden_size': 27,
        'num_attention_heads': 3,
        'num_hidden_layers': 2,
        'embedding_size': 41,
        'hidden_act': 'gelu',
        'type_vocab_size': 3,
        'layer_norm_eps': 1e-5,
    },
    'groups': {
        'hidden_size': 32,
        'num_attention_heads': 2,
        'num_hidden_layers': 6,
        'num_hidden_groups': 3,
        'embedding_size': 32,
        'hidden_act': 'relu',
    },
}


@pytest.mark.parametrize('shape', SHAPES)
def test_pre_training_and_its_gradients(tmp_path, shape):
    """Both losses, and the slopes of all weights, of the shared ones summed over the blocks."""
    sizes = {'embedding_size': 12, 'intermediate_size': 50, 'max_position_embeddings': 130}
    sizes |= {'vocab_size': 100, **SHAPES[shape]}
    theirs = reference.random_model('AlbertForPreTraining', **sizes)
    theirs.save_pretrained(tmp_path / 'weights')
    model = huggingface.read(tmp_path / 'weights').model
    batch = reference.inputs(model.config.vocab_size, rows=6, length=32)
    reference.same_gradients(theirs, model, batch, tmp_path / 'gradients')


def test_settings_of_transformers_own_default_are_read(tmp_path):
    """A config.json that states little: ALBERT-xxlarge's shape and dropouts."""
    (tmp_path / 'config.json').write_text('{"model_type": "albert", "num_hidden_groups": 4}')
    config = huggingface.read_shape(tmp_path)
    theirs = transformers.AlbertConfig(num_hidden_groups=4)
    assert (config.hidden_size, config.num_heads) == (4096, theirs.num_attention_heads)
    assert (config.embedding_size, config.num_groups, config.num_layers) == (128, 4, 12)
    assert (config.hidden_dropout, config.hidden_act) == (0.0, 'gelu_tanh')


@pytest.mark.parametrize('settings', [{}, {'do_lower_case': False}, {'keep_accents': True}])
def test_ids_of_their_tokenizer(tmp_path, settings):
    """Of a directory that transformers has written; user-defined signs are added tokens there."""
    directories.train(tmp_path / 'spiece')
    theirs = transformers.AlbertTokenizer.from_pretrained(tmp_path / 'spiece', **settings)
    theirs.save_pretrained(tmp_path / 'theirs')
    ours = Tokenizer.load(tmp_path / 'theirs')
    ours.save(tmp_path / 'again')
    for program in (theirs, transformers.AutoTokenizer.from_pretrained(tmp_path / 'again')):
        for text in TEXT:
            assert ours.encode(text) == program.encode(text, add_special_tokens=False), text
            both = [*ours.encode(text), ours.sep_id] * 2
            assert not text or program(text, text)['input_ids'] == [ours.cls_id, *both]


def test_ids_of_a_sentencepiece_model(tmp_path):
    """Without signs of the user's own, which transformers makes added tokens of."""
    directories.train(tmp_path, symbols='')
    theirs, ours = (
        kind(tmp_path) for kind in (transformers.AlbertTokenizer.from_pretrained, Tokenizer.load)
    )
    for text in (text for text in TEXT if not any(c.isdigit() for c in text)):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
