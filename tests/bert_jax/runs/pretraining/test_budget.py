"""What a budget of tokens or hours buys, counted by hand, and phases with settings of their own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.configs.load import list_presets, load
from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)
from bert_jax.launch.pretrain import Pretrain
from bert_jax.runs.pretraining.budget import fit_hours, fit_tokens, scale_steps
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.learning_rate import list_rates
from tests.helpers.refusals import refused

RECIPE = PretrainConfig(
    model=ModelConfig(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32),
    phases=(
        Phase(128, 1000, 32, batch_warmup_from=8, batch_warmup_steps=100),
        Phase(512, 200, 8, schedule='constant', peak_lr=3e-4, warmup_steps=20),
        Phase(512, 50, 8, schedule='wsd', decay_fraction=1.0, peak_lr=3e-4, warmup_steps=0),
    ),
    optimizer=OptimizerConfig(schedule='constant', warmup_steps=40),
    runtime=RuntimeConfig(accumulation=4),
)


def count_tokens(config: PretrainConfig) -> int:
    """Every step by itself."""
    total = 0
    for phase in config.phases:
        for step in range(phase.steps):
            rows = phase.batch_size
            if phase.batch_warmup_from:
                level = 1 + step // phase.batch_warmup_steps
                rows = min(rows, level * phase.batch_warmup_from)
            total += rows * phase.seq_len
    return total


@pytest.mark.parametrize('share', [0.31, 1.0, 7.3])
def test_tokens_scale_steps_warmups_and_growth_alike(share):
    tokens = share * count_tokens(RECIPE)
    config = fit_tokens(RECIPE, tokens, [])
    # Within half a step of each phase.
    slack = sum(phase.batch_size * phase.seq_len for phase in config.phases) / 2
    assert count_tokens(config) == pytest.approx(tokens, abs=slack)
    assert config.optimizer.warmup_steps == round(40 * share)
    assert config.phases[0].batch_warmup_steps == round(100 * share)
    assert config.phases[1].warmup_steps == round(20 * share)
    for phase, before in zip(config.phases[1:], RECIPE.phases[1:]):
        assert phase.steps == round(before.steps * share)
    named = fit_tokens(RECIPE, tokens, [], ['optimizer.warmup_steps', 'phases.1.warmup_steps'])
    assert (named.optimizer.warmup_steps, named.phases[1].warmup_steps) == (40, 20)


def test_hours_count_what_each_size_of_a_batch_takes():
    seconds = [[0.1, 0.2, 0.3, 0.4], [1.0], [1.0]]
    whole = 100 * 0.6 + 700 * 0.4 + 250
    config = fit_hours(RECIPE, 3 * whole / 3600, seconds)
    grows = config.phases[0].batch_warmup_steps
    rest = config.phases[0].steps - 3 * grows
    took = grows * 0.6 + rest * 0.4 + config.phases[1].steps + config.phases[2].steps
    assert took == pytest.approx(3 * whole, rel=2e-3)


def test_a_budget_below_a_step_of_a_phase_is_refused():
    with refused('phase 2 would have 0 steps'):
        scale_steps(RECIPE, 0.005)


@pytest.mark.parametrize('name', list_presets(PretrainConfig))
def test_every_preset_takes_a_budget(name):
    config = load(name)
    for tokens in (0.2, 3.0):
        scaled = scale_steps(config, tokens)
        assert scaled.total_steps == pytest.approx(tokens * config.total_steps, rel=0.02)
        share = config.optimizer.warmup_steps / config.total_steps
        assert scaled.optimizer.warmup_steps / scaled.total_steps == pytest.approx(share, rel=0.1)


def test_a_schedule_of_its_own_counts_the_steps_of_its_phase():
    rates = {(phase, step): rate for step, phase, rate in list_rates(RECIPE)}
    # The run's, then warm-up again, and a straight line down to 0 over all of the last phase.
    wanted = {(0, 1): 0.0, (0, 41): 1e-4, (0, 1000): 1e-4, (1, 1001): 0.0, (1, 1021): 3e-4}
    wanted |= {(1, 1200): 3e-4, (2, 1201): 3e-4, (2, 1250): 3e-4 / 50}
    assert {key: rates[key] for key in wanted} == pytest.approx(wanted, rel=1e-4)

    # Without one, phases share the run's, as the paper's two do.
    shared = dataclasses.replace(RECIPE.phases[1], schedule=None, peak_lr=None, warmup_steps=None)
    phases = (RECIPE.phases[0], RECIPE.phases[2], shared)
    optimizer = OptimizerConfig(schedule='linear', warmup_steps=0)
    config = dataclasses.replace(RECIPE, phases=phases, optimizer=optimizer)
    assert [config.time_schedule(i) for i in range(3)] == [(0, 1200), (1000, 50), (50, 1200)]
    rates = {(phase, step): rate for step, phase, rate in list_rates(config)}
    assert rates[0, 1000] == pytest.approx(1e-4 * 201 / 1200, rel=1e-4)
    assert rates[2, 1051] == pytest.approx(1e-4 * 200 / 1200, rel=1e-4)


def test_weights_of_a_step_have_the_rotary_bases_of_their_phase(tmp_path):
    model = load('modernbert_tiny_cpu').model
    phases = (Phase(128, 10, 8), Phase(128, 5, 8, rope_theta=160_000.0), Phase(128, 5, 8))
    config = PretrainConfig(model=model, phases=phases, optimizer=OptimizerConfig(warmup_steps=0))
    Workdir(tmp_path).create_or_resume(config, {})
    bases = [Workdir(tmp_path).model_config(step).rope_theta for step in (0, 10, 11, 15, 16, 20)]
    own = model.rope_theta
    assert bases == [own, own, 160_000.0, 160_000.0, own, own]
    assert Workdir(tmp_path).model_config().rope_theta == own


@pytest.mark.parametrize(
    'change, goes_on',
    [({'steps': 99}, True), ({'peak_lr': 2e-4}, False), ({'rope_theta': 5e4}, False)],
)
def test_a_phase_that_is_still_to_come_is_compared_as_settings_are(tmp_path, change, goes_on):
    """Its steps may change while no step has looked at them; nothing else of it may."""
    model = load('modernbert_tiny_cpu').model
    later = Phase(128, 50, 8, schedule='constant')
    config = PretrainConfig(
        model=model,
        phases=(Phase(128, 10, 8, schedule='wsd'), later),
        optimizer=OptimizerConfig(warmup_steps=0),
    )
    Workdir(tmp_path).create_or_resume(config, {})
    (tmp_path / 'checkpoints/10').mkdir(parents=True)
    changed = dataclasses.replace(
        config, phases=(config.phases[0], dataclasses.replace(later, **change))
    )
    if goes_on:
        assert Workdir(tmp_path).create_or_resume(changed, {})
    else:
        with refused('holds another run .phases.1.'):
            Workdir(tmp_path).create_or_resume(changed, {})


def test_rows_of_a_growing_batch_are_counted_as_they_are_read():
    phase = RECIPE.phases[0]
    rows = np.minimum(32, 8 * (1 + np.arange(1000) // 100))
    for steps in (0, 1, 100, 101, 399, 400, 1000):
        assert phase.count_rows(steps) == rows[:steps].sum()


def test_a_run_goes_on_with_the_steps_of_its_budget_and_with_no_other_setting_of_before(tmp_path):
    """Many times a preset's steps, so that the warm-up alone is longer than the preset."""
    asked = {'config': 'modernbert_tiny_cpu', 'workdir': tmp_path, 'tokens': 3e8}
    first = Pretrain(**asked).settle()
    assert first.optimizer.warmup_steps > load('modernbert_tiny_cpu').total_steps
    Workdir(tmp_path).create_or_resume(first, {})
    (tmp_path / 'checkpoints/10').mkdir(parents=True)
    assert Pretrain(**asked).settle() == first
    assert Workdir(tmp_path).create_or_resume(Pretrain(**asked).settle(), {})

    # What is named is compared with the run, and not passed over.
    for change in ('phases.0.batch_size=8', 'optimizer.warmup_steps=7', 'phases.0.peak_lr=0.1'):
        changed = Pretrain(**asked, settings=(change,)).settle()
        with refused('holds another run'):
            Workdir(tmp_path).create_or_resume(changed, {})
