"""Golden counts: published parameter numbers for every preset, and published FLOPs a sequence."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.configs import load
from bert_jax.configs.schema import ModelConfig
from bert_jax.costs import flops

# name: (pre-training total, encoder with pooler); google-research/bert shapes, vocabulary 30522,
# decoder counted once.
GOLDEN = {
    'bert_tiny': (4_433_468, 4_385_920),
    'bert_mini': (11_267_900, 11_170_560),
    'bert_mini_cpu': (11_267_900, 11_170_560),
    'bert_small': (29_058_876, 28_763_648),
    'bert_medium': (41_668_412, 41_373_184),
    'bert_base': (110_106_428, 109_482_240),
    'bert_large': (336_226_108, 335_141_888),
}


def test_every_preset_has_a_golden_count():
    # Relatives have theirs in tests of their own.
    own = {name for name in load.list_presets() if name.startswith('bert_')}
    assert set(GOLDEN) == own - {'bert_multilingual'}


@pytest.mark.parametrize('name', GOLDEN)
def test_golden_parameter_counts(name):
    model = load.load(name).model
    counts = flops.count_parameters(model), flops.count_parameters(model, pretraining=False)
    assert counts == GOLDEN[name]
    assert f'{counts[0]:,}' in load.PRESETS[name].__doc__


@pytest.mark.parametrize(
    ('name', 'vocab_size', 'encoder'),
    [
        ('bert_large', 28996, 333_579_264),  # cased
        ('bert_base', 119547, 177_853_440),  # multilingual cased
        ('uno_eelbert', 30522, 281_986 - 2 * 129),  # without the table, by hand
    ],
)
def test_other_published_vocabularies(name, vocab_size, encoder):
    model = dataclasses.replace(load.load(name).model, vocab_size=vocab_size)
    assert flops.count_parameters(model, pretraining=False) == encoder


def test_parts():
    base = flops.count_by_part(ModelConfig())
    assert base == {
        'embeddings': 23_837_184,
        'layers': 85_054_464,
        'pooler': 590_592,
        'mlm_head': 622_650,
        'nsp_head': 1_538,
    }


@pytest.mark.parametrize(
    ('name', 'seq_len', 'predictions', 'gflop'),
    [
        ('bert_base', 128, 20, 69.9),
        ('bert_base', 512, 76, 300.9),
        ('bert_large', 512, 76, 1019.8),
        ('bert_base', 128, 128, 85.5),  # without gathering the masked positions
    ],
)
def test_training_flops(name, seq_len, predictions, gflop):
    count = flops.count_training_flops(load.load(name).model, seq_len, predictions)
    assert round(count / 1e9, 1) == gflop
