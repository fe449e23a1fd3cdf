"""`--set`: names, types and cross-checks of changed settings."""

from __future__ import annotations

import json

import pytest

from bert_jax.configs import load, schema, sweep
from bert_jax.configs.errors import UserError
from bert_jax.configs.overrides import apply
from bert_jax.configs.schema import (
    FeatureConfig,
    FinetuneConfig,
    ModelConfig,
    Phase,
    PretrainConfig,
)
from bert_jax.runs.workdir.changes import leaves


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


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ('seed', 'expected NAME=VALUE'),
        (
            'sede=1',
            "PretrainConfig has no 'sede' \\(did you mean seed\\?\\); it has name, seed, model",
        ),
        ('seed.x=1', "'seed' has no settings inside it"),
        ('model=1', 'set one of model.vocab_size, model.hidden_size'),
        ('phases.2.steps=1', "'2' is no place in it; the places are 0 to 1"),
        ('phases=[{"steps": 3}]', r'^phases.0: missing settings batch_size, seq_len$'),
        ('seed=1.5', 'must be a whole number'),
        ('phases.0.steps=0', r'--set phases.0.steps=0: must be in \[1, '),
        ('runtime.data_parallel=x', 'must be a whole number or none'),
        ('optimizer.peak_lr=fast', 'must be a number'),
        ('runtime.scan_layers=maybe', 'must be true or false'),
        ('model.hidden_act=gelu', 'must be one of gelu_tanh, gelu_erf, relu'),
        ('model.num_heads=7', 'a divisor of hidden_size'),
        ('phases.0.seq_len=1024', 'beyond the position table'),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(UserError, match=message):
        apply(PretrainConfig(), [change])


@pytest.mark.parametrize(
    ('config', 'change', 'meant'),
    [
        (PretrainConfig(), 'lr=1', 'optimizer.peak_lr'),
        (PretrainConfig(), 'phases.0.train_batch_size=8', 'phases.0.batch_size'),
        (PretrainConfig(), 'attention=xla', 'model.attention or runtime.attention'),
        (PretrainConfig(), 'num_attention_heads=2', 'model.num_heads'),
        (FinetuneConfig(), 'num_train_epochs=2', 'epochs'),
    ],
)
def test_a_setting_under_another_name_is_suggested(config, change, meant):
    with pytest.raises(UserError) as refused:
        apply(config, [change])
    assert f'(did you mean {meant}?)' in str(refused.value)


def test_a_refusal_names_the_flag_that_was_given():
    with pytest.raises(UserError, match=r'^--set_bilstm lstm_widht: .*did you mean lstm_width'):
        apply(FeatureConfig(), ['seed=1'], set_bilstm=['lstm_widht=3'])
    with pytest.raises(UserError, match=r'^--sweep sed: .*did you mean seed'):
        sweep.grid(FinetuneConfig(), 'sed=0')
    with pytest.raises(UserError, match=r'^--set_bilstm seed: expected NAME=VALUE'):
        apply(FeatureConfig(), set_bilstm=['seed'])
    both = apply(FeatureConfig(), ['select=best'], set_bilstm=['score_every=5', 'seed=2'])
    assert (both.select, both.score_every, both.seed) == ('best', 5, 2)


@pytest.mark.parametrize('name', load.presets())
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
