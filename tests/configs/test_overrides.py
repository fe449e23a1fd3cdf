"""`--set`: names, types and cross-checks of changed settings."""

from __future__ import annotations

import json

import pytest

from bert_jax.configs import load, schema
from bert_jax.configs.overrides import apply, make_grid
from bert_jax.configs.schema import (
    FeatureConfig,
    FinetuneConfig,
    ModelConfig,
    Phase,
    PretrainConfig,
)
from bert_jax.runs.workdir.changes import leaves
from tests.helpers.refusals import refused


@pytest.mark.parametrize(
    ('change', 'value'),
    [
        ('seed=1e6', 1_000_000),
        ('model.hidden_act=relu', 'relu'),
        ('optimizer.peak_lr=1', 1.0),
        ('runtime.scan_layers=true', True),
        ('runtime.data_parallel=none', None),
        ('phases.1.steps=100', 100),
        (' seed = 3 ', 3),
    ],
)
def test_values_take_the_type_of_the_setting(change, value):
    result = apply(PretrainConfig(), [change])
    for key in change.partition('=')[0].strip().split('.'):
        result = result[int(key)] if key.isdecimal() else getattr(result, key)
    assert result == value and type(result) is type(value)


def test_a_list_of_phases_as_a_whole():
    after = apply(
        PretrainConfig(),
        ['phases=[{"seq_len": 64, "steps": 20000, "batch_size": 16}]', 'phases.0.steps=30000'],
    )
    assert after.phases == (Phase(64, 30_000, 16),)


def test_settings_that_only_fit_together_may_come_in_any_order():
    for changes in (
        ['model.hidden_size=130', 'model.num_heads=13'],
        ['model.num_heads=13', 'model.hidden_size=130'],
    ):
        assert apply(PretrainConfig(), changes).model == ModelConfig(hidden_size=130, num_heads=13)


PRETRAIN, FINETUNE, FEATURES = PretrainConfig(), FinetuneConfig(), FeatureConfig()


@pytest.mark.parametrize(
    ('config', 'change', 'message'),
    [
        (PRETRAIN, 'seed', 'expected NAME=VALUE'),
        (PRETRAIN, 'sede=1', r"no 'sede' \(did you mean seed\?\); it has name, seed, model"),
        (PRETRAIN, 'seed.x=1', "'seed' has no settings inside it"),
        (PRETRAIN, 'model=1', 'set one of model.vocab_size, model.hidden_size'),
        (PRETRAIN, 'phases.2.steps=1', "'2' is no place in it; the places are 0 to 1"),
        (PRETRAIN, 'phases=[{"steps": 3}]', '^phases.0: missing settings batch_size, seq_len$'),
        (PRETRAIN, 'seed=1.5', 'must be a whole number'),
        (PRETRAIN, 'phases.0.steps=0', r'--set phases.0.steps=0: must be in \[1, '),
        (PRETRAIN, 'runtime.data_parallel=x', 'must be a whole number or none'),
        (PRETRAIN, 'optimizer.peak_lr=fast', 'must be a number'),
        (PRETRAIN, 'runtime.scan_layers=maybe', 'must be true or false'),
        (PRETRAIN, 'model.hidden_act=gelu', 'must be one of gelu_tanh, gelu_erf, relu'),
        (PRETRAIN, 'model.num_heads=7', 'a divisor of hidden_size'),
        (PRETRAIN, 'phases.0.seq_len=1024', 'beyond the position table'),
        # A setting under another name.
        (PRETRAIN, 'lr=1', r'mean optimizer.peak_lr\?'),
        (PRETRAIN, 'phases.0.train_batch_size=8', r'mean phases.0.batch_size\?'),
        (PRETRAIN, 'attention=xla', r'mean model.attention or runtime.attention\?'),
        (PRETRAIN, 'num_attention_heads=2', r'mean model.num_heads\?'),
        (FINETUNE, 'num_train_epochs=2', r'mean epochs\?'),
    ],
)
def test_mistakes_are_named(config, change, message):
    with refused(message):
        apply(config, [change])


def test_a_refusal_names_the_flag_that_was_given():
    with refused(r'^--set_bilstm lstm_widht: .*did you mean lstm_width'):
        apply(FEATURES, ['seed=1'], set_bilstm=['lstm_widht=3'])
    with refused(r'^--sweep sed: .*did you mean seed'):
        make_grid(FINETUNE, 'sed=0')
    both = apply(FEATURES, ['select=best'], set_bilstm=['score_every=5', 'seed=2'])
    assert (both.select, both.score_every, both.seed) == ('best', 5, 2)


@pytest.mark.parametrize('name', load.list_presets())
def test_what_is_printed_of_a_preset_can_be_set_line_by_line(name):
    """`null` included, which JSON has for none."""
    config = load.load(name)
    printed = json.loads(schema.dumps(config))
    del printed['kind']
    for setting, value in leaves(printed).items():
        text = value if isinstance(value, str) else json.dumps(value)
        if not setting.endswith('.length'):  # of a list, as `leaves` tells it
            assert apply(config, [f'{setting}={text}']) == config
    assert schema.loads(schema.dumps(config)) == config
