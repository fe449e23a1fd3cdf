"""`--set`: names, types and cross-checks of changed settings."""

from __future__ import annotations

import dataclasses

import pytest

from configs.errors import UserError
from configs.overrides import apply, names
from configs.schema import FeatureConfig, FinetuneConfig, ModelConfig, Phase, PretrainConfig


@pytest.mark.parametrize(
    ('change', 'value'),
    [
        ('seed=7', 7),
        ('seed=1_000', 1000),
        ('seed=1e6', 1_000_000),
        ('model.hidden_act=relu', 'relu'),
        ('optimizer.peak_lr=2e-5', 2e-5),
        ('optimizer.peak_lr=1', 1.0),
        ('runtime.scan_layers=true', True),
        ('runtime.scan_layers=0', False),
        ('runtime.data_parallel=4', 4),
        ('runtime.data_parallel=none', None),
        ('phases.1.steps=100', 100),
        ('name=my run', 'my run'),
        (' seed = 3 ', 3),
    ],
)
def test_values_take_the_type_of_the_setting(change, value):
    result = apply(PretrainConfig(), [change])
    for key in change.partition('=')[0].strip().split('.'):
        result = result[int(key)] if key.isdecimal() else getattr(result, key)
    assert result == value and type(result) is type(value)


def test_nothing_else_changes_and_the_last_one_wins():
    before = PretrainConfig()
    after = apply(before, ['seed=1', 'phases.0.batch_size=8', 'seed=2'])
    assert after == dataclasses.replace(before, seed=2, phases=(Phase(128, 900_000, 8), Phase(512, 100_000, 256)))
    assert before == PretrainConfig() == apply(before, [])


def test_a_list_of_phases_as_a_whole():
    after = apply(PretrainConfig(), ['phases=[{"seq_len": 64, "steps": 20000, "batch_size": 16}]', 'phases.0.steps=30000'])
    assert after.phases == (Phase(64, 30_000, 16),)


def test_settings_that_only_fit_together_may_come_in_any_order():
    for changes in (['model.hidden_size=130', 'model.num_heads=13'], ['model.num_heads=13', 'model.hidden_size=130']):
        assert apply(PretrainConfig(), changes).model == ModelConfig(hidden_size=130, num_heads=13)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ('seed', 'expected NAME=VALUE'),
        ('=3', 'expected NAME=VALUE'),
        ('sede=1', "PretrainConfig has no 'sede' \\(did you mean seed\\?\\); it has name, seed, model"),
        ('model.zzz=1', "ModelConfig has no 'zzz'; it has vocab_size"),
        ('seed.x=1', "'seed' has no settings inside it"),
        ('model=1', 'set one of model.vocab_size, model.hidden_size'),
        ('phases.0=1', 'set one of phases.0.seq_len'),
        ('phases.2.steps=1', "'2' is no place in it; the places are 0 to 1"),
        ('phases.-1.steps=1', "'-1' is no place"),
        ('phases.steps=1', "'steps' is no place"),
        ('phases=3', 'must be a JSON list of objects'),
        ('phases=[', 'must be a JSON list of objects'),
        ('phases=[{"steps": 3}]', 'missing settings'),
        ('seed=1.5', 'must be a whole number'),
        ('seed=none', 'must be a whole number$'),
        ('runtime.data_parallel=x', 'must be a whole number or none'),
        ('optimizer.peak_lr=fast', 'must be a number'),
        ('optimizer.peak_lr=nan', 'must be a number'),
        ('optimizer.peak_lr=inf', 'must be a number'),
        ('runtime.scan_layers=maybe', 'must be true or false'),
        ('model.hidden_act=gelu', 'must be one of gelu_tanh, gelu_erf, relu'),
        ('model.num_heads=7', 'a divisor of hidden_size'),
        ('phases.0.seq_len=1024', 'beyond the position table'),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(UserError, match=message):
        apply(PretrainConfig(), [change])


def test_every_setting_has_a_name_that_apply_takes():
    for config in (PretrainConfig(), FinetuneConfig(), FeatureConfig()):
        for name in names(type(config)):
            name = name.replace('.N.', '.0.')
            value = config
            for key in name.split('.'):
                value = value[int(key)] if key.isdecimal() else getattr(value, key)
            assert apply(config, [f'{name}={value}']) == config
