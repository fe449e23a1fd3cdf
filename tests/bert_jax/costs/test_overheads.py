"""What a run takes beside its steps: sums by hand."""

from __future__ import annotations

import pytest

from bert_jax.configs.load import load
from bert_jax.configs.overrides import apply
from bert_jax.costs import overheads
from bert_jax.costs.chips import topology

PHASES = [
    {'batch_size': 256, 'bytes_read_per_step': 256_000, 'steps': 9_000, 'checkpoint_bytes': 10**9},
    {'batch_size': 64, 'bytes_read_per_step': 256_000, 'steps': 1_001, 'checkpoint_bytes': 10**9},
]
CONFIG = apply(load('bert_base'), ['runtime.eval_every=500', 'runtime.eval_batches=30'])


def test_a_host_decodes_its_share_of_what_it_reads():
    for data, share in ((16, 1 / 4), (2, 1 / 2)):  # four hosts; two of which need the same rows
        mesh = {'data': data, 'fsdp': 1}
        reads = overheads.reading(PHASES[0], topology('v5e:4x4'), mesh, 0.01)
        assert reads['rows_per_s'] == pytest.approx(25_600 * share)
        assert reads['bytes_per_s'] == pytest.approx(25_600_000)


def test_checkpoints():
    def saves(write_rate, step_s):
        return overheads.checkpoints(CONFIG, PHASES, 4, write_rate, step_s)

    made = saves(50e6, [0.01, 0.05])
    assert (made['bytes'], made['kept']) == (10**9, 5 * 10**9)  # 3, the best, one being written
    assert (made['count'], made['save_s']) == (10, 5.0)
    assert made['between_s'] == pytest.approx(10.0)  # 1,000 steps of the faster phase
    # Ten minutes are 60,000 steps of 10 ms; a save of 500 s wants 1,000 s; a minute is rare enough.
    advised = {
        (50e6, 0.01): 60_000, (50e4, 0.1): 10_000, (50e6, 0.05): 10_000, (50e6, 0.06): None,
    }  # fmt: skip
    for (rate, step_s), steps in advised.items():
        assert saves(rate, [step_s, 5 * step_s])['advised'] == steps
    unknown = saves(50e6, None)
    assert unknown['between_s'] is unknown['advised'] is None


def test_evaluations():
    found = overheads.evaluations(CONFIG, PHASES, [0.3, 0.6])
    assert (found['count'], found['batches']) == (18 + 3, 30)
    # A third of a step for a batch: 0.1 s and 0.2 s.
    assert found['hours'] == pytest.approx((18 * 30 * 0.1 + 3 * 30 * 0.2) / 3600)
    assert found['share'] == pytest.approx(72 / (9_000 * 0.3 + 1_001 * 0.6))
