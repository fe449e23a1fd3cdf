"""ALBERT against transformers from text to answer: its tokenizer, shapes and heads."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.conversion import huggingface
from bert_jax.conversion.parameters import Model
from bert_jax.inference import export
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.runs.sources import source
from tests.input_pipeline.tokenizer import test_albert_directories as directories
from tests.parity import answers, reference
from tests.parity.reference import transformers

# Warnings of torch and transformers are not ours to mend.
pytestmark = pytest.mark.filterwarnings('default')
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


def made(architecture: str, shape: str, vocab_size: int = 100, **settings):
    """A model of transformers with random weights."""
    sizes = {'embedding_size': 12, 'intermediate_size': 50, 'max_position_embeddings': 130}
    return reference.random_model(
        architecture, vocab_size=vocab_size, **{**sizes, **SHAPES[shape], **settings}
    )


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    text = [*directories.TEXT, *directories.NUMBERS] * 5
    return vocabulary.train(text, VocabularyOptions(120, 'unigram', character_coverage=1.0))[0]


def served(
    architecture: str, tokenizer: Tokenizer, folder: pathlib.Path, shape: str = 'tiny', **settings
) -> tuple[pathlib.Path, Model]:
    """Such a model, read here and written again with `tokenizer`."""
    theirs, ours = folder / 'theirs', folder / 'ours'
    tokenizer.save(theirs)
    made(architecture, shape, tokenizer.vocab_size, **settings).save_pretrained(theirs)
    read = source.read_source(str(theirs))
    export.write(read.bert, read.tokenizer, 'huggingface', str(ours))
    return ours, read.bert


@pytest.mark.parametrize('shape', SHAPES)
def test_pre_training_and_its_gradients(tmp_path, shape):
    """Both losses, and the slopes of all weights, of the shared ones summed over the blocks."""
    theirs = made('AlbertForPreTraining', shape)
    theirs.save_pretrained(tmp_path / 'weights')
    model = huggingface.read(tmp_path / 'weights').model
    batch = reference.inputs(model.config.vocab_size, rows=6, length=32)
    reference.same_gradients(theirs, model, batch, tmp_path / 'gradients')


def test_masked_words(tmp_path, tokenizer):
    where, _ = served('AlbertForMaskedLM', tokenizer, tmp_path, 'odd')
    answers.same_words(
        where, 'The capital of [MASK] is Paris, and', '[MASK] did, as far as we know'
    )


def test_classes_of_texts_and_pairs(tmp_path, tokenizer):
    labels = {'id2label': {0: 'no', 1: 'yes', 2: 'maybe'}}
    where, _ = served('AlbertForSequenceClassification', tokenizer, tmp_path, 'groups', **labels)
    answers.same_classes(where, *TEXT[:2])


def test_a_number(tmp_path, tokenizer):
    where, model = served('AlbertForSequenceClassification', tokenizer, tmp_path, num_labels=1)
    assert model.head == 'regressor'
    answers.same_number(where, TEXT[0])


def test_answers_in_a_context(tmp_path, tokenizer):
    where, _ = served('AlbertForQuestionAnswering', tokenizer, tmp_path)
    answers.same_answer(where, TEXT[2], TEXT[0])


def test_settings_of_transformers_own_default_are_read(tmp_path):
    """A config.json that states little: ALBERT-xxlarge's shape and dropouts."""
    (tmp_path / 'config.json').write_text('{"model_type": "albert", "num_hidden_groups": 4}')
    config = huggingface.shape(tmp_path)
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
