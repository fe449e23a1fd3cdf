"""The figures of a log line against arithmetic by hand; a trace where --profile asks for one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.load import load
from bert_jax.costs import chips, flops, step_costs
from bert_jax.train import metrics_accumulator as meters


def test_figures_by_hand():
    """BERT-base at S=128 with 20 predictions takes 69.9 GFLOP a sequence (see test_flops.py).

    8 fake devices share the work.
    """
    model = load('bert_base').model
    costs = step_costs.StepCosts(lambda S: flops.count_training_flops(model, S, 20))
    found = costs.rates(costs.work({'input_ids': np.zeros((256, 128))}), 0.2)
    assert (found['sequences_per_s'], found['tokens_per_s']) == (1280.0, 163840.0)
    assert found['model_tflops'] == pytest.approx(1280 * 69.9e9 / 8 / 1e12, rel=1e-3)
    assert 'mfu' not in found  # a CPU has no peak here


def test_peak_of_a_device():
    peaks = {
        'TPU v4': 275e12, 'TPU v5 lite': 197e12, 'TPU v5e': 197e12, 'TPU v5p': 459e12,
        'TPU v5': 459e12, 'TPU v6 lite': 918e12, 'NVIDIA H100 80GB HBM3': 989e12,
        'NVIDIA H200': 989e12, 'NVIDIA H100 PCIe': None, 'NVIDIA A100-SXM4-80GB': 312e12,
        'cpu': None,
    }  # fmt: skip
    assert {kind: chips.find_peak_flops(kind) for kind in peaks} == peaks


def test_compiling_evaluating_and_saving_are_in_no_rate(monkeypatch):
    """Steps of 1 second, beside which time is spent on other things.

    The first and the fourth waited 3 seconds for records and compiled for 60.
    """
    now, one = [0.0], (jnp.ones(()), jnp.ones(()))
    monkeypatch.setattr(meters.time, 'perf_counter', lambda: now[0])
    meter = meters.MetricsAccumulator(max_bad_steps=1)
    for step in range(1, 6):
        compiled = step in (1, 4)
        with meter.waiting():
            now[0] += 3.0 if compiled else 0.25
        now[0] += 60.0 if compiled else 0.75
        meter.push(step, {'loss': one, 'bad_steps': (jnp.zeros(()), jnp.ones(()))}, compiled)
        with meter.paused():
            now[0] += 100.0
        if step == 1:
            assert 'step_ms' not in meter.drain()  # not a step yet that tells of those to come
    told = meter.drain()
    assert (told['steps'], told['seconds'], told['step_ms']) == (4, 3.0, 1000.0)
    assert told['input_wait'] == 0.25


@pytest.mark.parametrize(
    ('steps', 'last', 'traced'), [(5, 12, True), (2, 10, False), (0, 100, False)]
)
def test_profile(tmp_path, monkeypatch, steps, last, traced):
    calls = []
    monkeypatch.setattr(jax.profiler, 'start_trace', lambda folder: calls.append(('start', folder)))
    monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: calls.append(('stop',)))
    profile = meters.Profile(str(tmp_path), steps, 0, last)
    for step in range(1, last + 1):
        profile.after(step, {'loss': (jnp.zeros(()), jnp.ones(()))})
    assert calls == ([('start', str(tmp_path)), ('stop',)] if traced else [])
