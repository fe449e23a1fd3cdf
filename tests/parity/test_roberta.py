"""RoBERTa against transformers from text to answer: its tokenizer, rows, positions and heads."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.conversion import huggingface, serving
from bert_jax.conversion.parameters import Model
from bert_jax.input_pipeline.tokenizer import vocabulary
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.vocabulary_options import VocabularyOptions
from bert_jax.train import task_heads
from tests.parity import answers, reference
from tests.parity.reference import torch, transformers

# Warnings of torch and transformers are not ours to mend.
pytestmark = pytest.mark.filterwarnings('default')
TEXT = [
    'The capital of France is Paris, on the Seine.',
    'Zürich 2024: naïve café owners don\'t agree; "we\'ll see" 한국어 😀',
    'Who wrote the book that the people of the town like?',
]
SHAPES = {
    'tiny': {'hidden_size': 32, 'num_attention_heads': 4, 'num_hidden_layers': 2},
    'odd': {'hidden_size': 27, 'num_attention_heads': 3, 'num_hidden_layers': 3},
}


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
    return vocabulary.train(TEXT * 5, VocabularyOptions(330, 'byte_bpe'))[0]


def served(
    architecture: str, tokenizer: Tokenizer, folder: pathlib.Path, shape: str = 'tiny', **settings
) -> tuple[pathlib.Path, Model]:
    """A model of transformers with random weights, read here and written again with `tokenizer`."""
    theirs = reference.random_model(
        architecture,
        vocab_size=tokenizer.vocab_size,
        intermediate_size=50,
        max_position_embeddings=130,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **SHAPES[shape],
        **settings,
    )
    theirs.save_pretrained(folder / 'theirs')
    model = huggingface.read(folder / 'theirs').model
    tokenizer.save(folder / 'ours')
    huggingface.write(folder / 'ours', model)
    return folder / 'ours', model


def test_masked_words(tmp_path, tokenizer):
    where, _ = served('RobertaForMaskedLM', tokenizer, tmp_path, 'odd')
    answers.same_words(
        where, 'The capital of France is <mask>.', '<mask> people don\'t like "Zürich" 😀'
    )


def test_classes_of_texts_and_pairs(tmp_path, tokenizer):
    labels = {'id2label': {0: 'no', 1: 'yes', 2: 'maybe'}}
    where, _ = served('RobertaForSequenceClassification', tokenizer, tmp_path, **labels)
    answers.same_classes(where, *TEXT[:2])


def test_a_number(tmp_path, tokenizer):
    where, model = served('RobertaForSequenceClassification', tokenizer, tmp_path, num_labels=1)
    assert model.head == 'regressor'
    answers.same_number(where, TEXT[0])


def test_tags_and_choices(tmp_path, tokenizer):
    """Logits of rows as transformers' tokenizer makes them, padding included."""
    theirs_of = transformers.AutoTokenizer.from_pretrained
    for architecture, kind in (
        ('RobertaForTokenClassification', transformers.AutoModelForTokenClassification),
        ('RobertaForMultipleChoice', transformers.AutoModelForMultipleChoice),
    ):
        options = {'num_labels': 3} if 'Token' in architecture else {}
        where, model = served(architecture, tokenizer, tmp_path / architecture, **options)
        texts = TEXT[:2], TEXT[1:]
        rows = theirs_of(where)(*texts, padding=True, return_tensors='np')
        batch = {
            'input_ids': rows['input_ids'].astype(np.int32),
            'input_mask': rows['attention_mask'].astype(np.int32),
            'segment_ids': np.zeros_like(rows['input_ids'], np.int32),
        }
        shape = (1, 2, -1) if 'Choice' in architecture else (2, -1)
        batch = {name: array.reshape(shape) for name, array in batch.items()}
        found = np.asarray(serving.forward(model)(model.params, batch)['logits'])
        with torch.no_grad():
            rows = reference.tensors(batch, segments=False)
            wanted = kind.from_pretrained(where)(**rows).logits.numpy()
        real = batch['input_mask'] > 0 if 'Token' in architecture else ...
        np.testing.assert_allclose(found[real], wanted[real], atol=2e-5, rtol=0)


def test_loss_of_answers_in_padded_rows(tmp_path, tokenizer):
    """Padding is among the classes of the softmax, there and here."""
    _, model = served('RobertaForQuestionAnswering', tokenizer, tmp_path)
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


def test_answers_in_a_context(tmp_path, tokenizer):
    where, _ = served('RobertaForQuestionAnswering', tokenizer, tmp_path)
    answers.same_answer(where, TEXT[2], TEXT[0])
