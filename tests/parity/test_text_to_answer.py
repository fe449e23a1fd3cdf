"""BERT, RoBERTa and ALBERT against transformers from text to answer: tokenizer, rows and heads."""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.conversion import serving
from bert_jax.conversion.trained_model import Model
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.train import task_heads
from tests.parity import answers, reference
from tests.parity.reference import torch, transformers

TEXT = [
    'The capital of France is Paris, on the Seine.',
    'Zürich 2024: naïve café owners don\'t agree; "we\'ll see" 한국어 😀',
    'Who wrote the book that the people of the town like?',
]
SHAPES = {
    'tiny': {'hidden_size': 32, 'num_attention_heads': 4, 'num_hidden_layers': 2},
    'odd': {'hidden_size': 27, 'num_attention_heads': 3, 'num_hidden_layers': 3},
}
# What another family's class has, and how its tokenizer is trained.
FAMILIES = {
    'Bert': ({}, VocabularyOptions(200, 'wordpiece')),
    'Roberta': (
        {'type_vocab_size': 1, 'layer_norm_eps': 1e-5, 'pad_token_id': 1, 'bos_token_id': 0}
        | {'eos_token_id': 2},
        VocabularyOptions(330, 'byte_bpe'),
    ),
    'Albert': (
        {'embedding_size': 12},
        VocabularyOptions(120, 'unigram', character_coverage=1.0),
    ),
}
LABELS = {'id2label': {0: 'no', 1: 'yes', 2: 'maybe'}}


@functools.cache
def tokenizer_of(family: str) -> Tokenizer:
    return vocabulary.train(TEXT * 5, FAMILIES[family][1])[0]


def served(
    family: str, head: str, folder: pathlib.Path, shape: str = 'tiny', **settings
) -> tuple[pathlib.Path, Model]:
    """A model of the family, and the folder that is written of it here."""
    settings = FAMILIES[family][0] | SHAPES[shape] | settings
    return answers.served(f'{family}For{head}', tokenizer_of(family), folder, **settings)


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


def test_masked_words(tmp_path, family):
    where, _ = served(family, 'MaskedLM', tmp_path, 'odd')
    mask = tokenizer_of(family).special_tokens[4]
    text, other = f'The capital of France is {mask}.', f'{mask} people don\'t like "Zürich" 😀'
    answers.same_words(where, text, other)


def test_classes_of_texts_and_pairs(tmp_path, family):
    groups = {'num_hidden_layers': 6, 'num_hidden_groups': 3} if family == 'Albert' else {}
    where, _ = served(family, 'SequenceClassification', tmp_path, **LABELS, **groups)
    answers.same_classes(where, *TEXT[:2])


def test_a_number(tmp_path, family):
    where, model = served(family, 'SequenceClassification', tmp_path, num_labels=1)
    assert model.head == 'regressor'
    answers.same_number(where, TEXT[0])


def test_answers_in_a_context(tmp_path, family):
    where, _ = served(family, 'QuestionAnswering', tmp_path)
    answers.same_answer(where, TEXT[2], TEXT[0])


def test_tags_and_choices(tmp_path):
    """Logits of rows as transformers' tokenizer makes them, padding included."""
    theirs_of = transformers.AutoTokenizer.from_pretrained
    for head, kind in (
        ('TokenClassification', transformers.AutoModelForTokenClassification),
        ('MultipleChoice', transformers.AutoModelForMultipleChoice),
    ):
        options = {'num_labels': 3} if 'Token' in head else {}
        where, model = served('Roberta', head, tmp_path / head, **options)
        texts = TEXT[:2], TEXT[1:]
        rows = theirs_of(where)(*texts, padding=True, return_tensors='np')
        batch = {
            'input_ids': rows['input_ids'].astype(np.int32),
            'input_mask': rows['attention_mask'].astype(np.int32),
            'segment_ids': np.zeros_like(rows['input_ids'], np.int32),
        }
        shape = (1, 2, -1) if 'Choice' in head else (2, -1)
        batch = {name: array.reshape(shape) for name, array in batch.items()}
        found = np.asarray(serving.make_forward(model)(model.params, batch)['logits'])
        with torch.no_grad():
            rows = reference.tensors(batch, segments=False)
            wanted = kind.from_pretrained(where)(**rows).logits.numpy()
        real = batch['input_mask'] > 0 if 'Token' in head else ...
        np.testing.assert_allclose(found[real], wanted[real], atol=2e-5, rtol=0)


def test_loss_of_answers_in_padded_rows(tmp_path):
    """Padding is among the classes of the softmax, there and here."""
    _, model = served('Roberta', 'QuestionAnswering', tmp_path)
    lengths, rng = np.array([56, 20, 30, 9]), np.random.default_rng(0)
    mask = (np.arange(56) < lengths[:, None]).astype(np.int32)
    batch = {
        'input_ids': np.where(mask, rng.integers(5, 300, mask.shape), 1).astype(np.int32),
        'input_mask': mask,
        'segment_ids': np.zeros_like(mask),
        'start_positions': (lengths // 3).astype(np.int32),
        'end_positions': (lengths // 2).astype(np.int32),
        'example_weights': np.ones(4, np.float32),
    }
    module = task_heads.HEADS['span'].model(model.config, jnp.dtype('float32'), 2)
    objective = task_heads.make_objective('span', module)
    encoder = module.init(jax.random.key(0), batch)['params']['encoder'] | model.params['encoder']
    loss, weight = objective.sums({**model.params, 'encoder': encoder}, batch, None)['loss']
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / 'theirs')
    ends = {n: torch.from_numpy(batch[n]).long() for n in ('start_positions', 'end_positions')}
    with torch.no_grad():
        wanted = theirs(**reference.tensors(batch, segments=False), **ends)
    assert abs(float(loss / weight) - float(wanted.loss)) < 1e-5
