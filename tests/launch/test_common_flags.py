"""--steps, --batch_size and --learning_rate, and what a preset takes from its records."""

from __future__ import annotations

import types

import pytest

from bert_jax.cli.common_flags import CommonFlags, apply_settings, check_growth_ends
from bert_jax.configs.errors import UserError
from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets.finetune import choose_recipe
from bert_jax.configs.schema import PretrainConfig
from bert_jax.runs.pretraining import baselines, records


def pretraining(**flags) -> PretrainConfig:
    config = load('bert_base', PretrainConfig)
    return apply(
        config, ['optimizer.warmup_steps=0', *CommonFlags(**flags).settings_of_flags(config, [])]
    )


def test_phases_keep_their_shares_and_the_rates_are_those_of_the_flags():
    config = pretraining(steps=605, batch_size=8, learning_rate=3e-4)
    assert [phase.steps for phase in config.phases] == [544, 61]  # 9 to 1, rounded
    assert [phase.batch_size for phase in config.phases] == [8, 8]
    assert config.optimizer.peak_lr == 3e-4
    assert [phase.steps for phase in pretraining(steps=2).phases] == [1, 1]

    begin = choose_recipe('mrpc', 'classification', 'paper')
    settings = CommonFlags(steps=7, batch_size=4, learning_rate=1e-4).settings_of_flags(begin, [])
    tuned = apply(begin, settings)
    assert (tuned.steps, tuned.batch_size, tuned.optimizer.peak_lr) == (7, 4, 1e-4)


@pytest.mark.parametrize(
    'flags, named, words',
    [
        ({'steps': 1}, [], '2 phases'),
        ({'steps': 9}, ['phases.1.steps=3'], '--steps and --set phases.1.steps=3 are one setting'),
        ({'batch_size': 9}, ['phases=[]'], '--batch_size and --set phases=[] are one setting'),
        ({'learning_rate': 1.0}, ['optimizer.peak_lr=2'], 'are one setting'),
    ],
)
def test_what_contradicts_itself_is_refused(flags, named, words):
    with pytest.raises(UserError) as refused:
        CommonFlags(**flags).settings_of_flags(load('bert_base', PretrainConfig), named)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    'changes, warmup',
    [
        ([], 10_000),
        (['phases.0.steps=900', 'phases.1.steps=100'], 10),  # 1 % of the steps, as in the preset
        (['phases.0.steps=900', 'optimizer.warmup_steps=77'], 77),
    ],
)
def test_the_warm_up_of_a_preset_keeps_its_share(changes, warmup):
    config = apply_settings(load('bert_base', PretrainConfig), changes, is_preset=True)
    assert config.optimizer.warmup_steps == warmup


@pytest.mark.parametrize(
    'gains, words',
    [
        ([-2.0, 0.5], '0.50 nats better than guessing'),
        ([-2.0, -0.5], 'train longer, by about 30 steps at least'),  # .015 nats a step
        ([-1.0, -1.5], 'guessing 7.00): train longer'),
        ([-1.0], 'guessing 7.00): train longer'),
    ],
)
def test_a_verdict_compares_with_guessing(gains, words):
    lines = [
        {'step': 100 * (i + 1), 'split': 'eval', 'nats_gained': gain, 'mlm_loss': 7.0 - gain}
        for i, gain in enumerate(gains)
    ]
    assert words in (baselines.compare_with_guessing([{'step': 1, 'split': 'train'}, *lines]) or '')
    assert baselines.compare_with_guessing([{'step': 1, 'split': 'train', 'mlm_loss': 1.0}]) is None


@pytest.mark.parametrize(
    'preset, lengths, named_shape, settings',
    [
        ('bert_mini', [128], False, ['model.vocab_size=99']),
        ('bert_mini', [64], False, ['phases.0.seq_len=64', 'model.vocab_size=99']),
        ('bert_mini', [64], True, ['phases.0.seq_len=64']),
        (
            'bert_base',
            [64, 1024],
            False,
            [
                *('phases.0.seq_len=64', 'phases.1.seq_len=1024', 'model.max_position=1024'),
                'model.vocab_size=99',
            ],
        ),
        # In any order where the lengths are the preset's; what is missing stays missing.
        ('bert_base', [512, 128], True, []),
        ('bert_base', [64], True, []),
        ('bert_base', [], False, []),
    ],
)
def test_a_preset_takes_vocabulary_and_lengths_of_its_records(
    monkeypatch, preset, lengths, named_shape, settings
):
    read = lambda length: types.SimpleNamespace(seq_len=length, vocab_size=99)
    monkeypatch.setattr(records, 'Manifest', types.SimpleNamespace(load=read))
    config = load(preset, PretrainConfig)
    assert records.list_record_settings(config, lengths, named_shape) == settings


@pytest.mark.parametrize(
    'changes, growth',
    [
        (['phases.0.steps=20000'], 226),
        (['phases.0.steps=20'], 1),
        (['phases.0.steps=20000', 'phases.0.batch_warmup_steps=77'], 77),
        (['phases.0.batch_warmup_from=null', 'phases.0.batch_warmup_steps=null'], None),
    ],
)
def test_the_growth_of_a_presets_batch_keeps_its_share(changes, growth):
    preset = load('modernbert_base', PretrainConfig)
    config = apply_settings(preset, changes, is_preset=True)
    assert config.phases[0].batch_warmup_steps == growth
    check_growth_ends(config)


def test_a_batch_that_never_becomes_whole_is_refused():
    """Of five sizes below the whole one, each for 4 steps: twenty, so that one more is needed."""
    changes = ['phases.0.batch_warmup_steps=4', 'optimizer.warmup_steps=0']
    preset = load('modernbert_base', PretrainConfig)
    check_growth_ends(apply(preset, [*changes, 'phases.0.steps=21']))
    with pytest.raises(UserError, match='phases.0: its batch grows for 20 steps, and it has 20'):
        check_growth_ends(apply(preset, [*changes, 'phases.0.steps=20']))
