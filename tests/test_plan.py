"""The part of a plan that follows from shapes: against counts by hand and published numbers. The compiled part: tests/plan."""

from __future__ import annotations

import importlib.util
import json

import pytest

from bert_jax import plan
from bert_jax.chips import CHIPS, topology
from configs.errors import UserError
from configs.load import load
from configs.overrides import apply

BASE = 110_106_428
PADDING = 70 * 768 + 70  # 30592 rows for 30522 entries: in the table and in the head's bias


def phase_of(name: str, where: str, *changes: str, predictions: int = 20) -> dict:
    config = apply(load(name), changes)
    return plan.analytic(config, config.phases[0], predictions, topology(where))


def test_state_of_base_on_one_chip():
    memory = phase_of('bert_base', 'v6e:1x1')['memory']
    assert memory['parameters'] == 4 * (BASE + PADDING)
    assert memory['optimizer'] == 2 * memory['parameters'] + 4  # two moments and a count
    assert memory['batch'] == 256 * 4 * (3 * 128 + 3 * 20 + 2)


def test_fsdp_divides_the_matrices_and_nothing_else():
    whole, split = (phase_of('bert_base', 'v5e:4x4', f'runtime.fsdp={n}')['memory'] for n in (1, 16))
    H, F, L = 768, 3072, 12
    matrices = 30592 * H + L * (4 * H * H + 2 * H * F) + 2 * H * H  # word table, layers, pooler and the head's transform
    left = whole['parameters'] / 4 - matrices * 15 / 16
    # What else the rules may split is at most the vectors of the tables.
    assert left - 30592 <= split['parameters'] / 4 <= left
    assert split['optimizer'] == 2 * split['parameters'] + 4
    assert split['batch'] == whole['batch']


def test_flops_and_floors_of_base():
    phase = phase_of('bert_base', 'v5e:4x4')
    assert round(phase['flops_per_step'] / 256e9, 1) == 69.9  # published a sequence, as in test_flops
    assert phase['flops_per_token'] * 128 * 256 == pytest.approx(phase['flops_per_step'])
    assert phase['floor_s']['compute'] == pytest.approx(256 * 69.9e9 / (16 * 197e12), rel=1e-3)
    assert phase['floor_s']['memory'] == pytest.approx(2 * 3 * 4 * BASE / 819e9, rel=2e-3)
    assert phase['batch_per_chip'] == 16


def test_schedule_adds_up():
    phases = [
        {'batch_size': 100, 'seq_len': 128, 'steps': 3600, 'floor_s': {'compute': 0.1, 'memory': 0.05}},
        {'batch_size': 10, 'seq_len': 512, 'steps': 1800, 'floor_s': {'compute': 0.1, 'memory': 0.8}},
    ]
    found = plan.schedule(phases, chips=16, mfu=0.5, price=2.0)
    assert found['floor']['hours'] == pytest.approx(0.1 + 0.4)
    assert found['mfu']['hours'] == pytest.approx(0.2 + 0.4)  # the second phase cannot be faster than its memory
    assert (found['mfu']['chip_hours'], found['mfu']['price']) == (pytest.approx(9.6), pytest.approx(19.2))
    assert found['mfu']['phases'][0]['tokens_per_s'] == pytest.approx(100 * 128 / 0.2)
    assert 'price' not in plan.schedule(phases, 16, 0.5, None)['floor']


def test_masked_positions_default_to_those_of_the_records():
    config = load('bert_base')
    assert plan.predictions_of(config, []) == [20, 77]
    assert plan.predictions_of(config, [20, 76]) == [20, 76]
    for wrong in ([20], [20, 513], [0, 76]):
        with pytest.raises(UserError, match='--max_predictions'):
            plan.predictions_of(config, wrong)


@pytest.mark.parametrize(('name', 'chips'), [('v5e:2x4', 8), ('v6e:16x16', 256), ('v4:2x2x1', 4), ('v5p:8x8x12', 768)])
def test_topologies(name, chips):
    where = topology(name)
    assert (where.name, where.chips) == (name, chips)


@pytest.mark.parametrize('name', ['v5e', 'v5e:3x5', 'v5e:2x2x2', 'v5p:4x4', 'v5p:4x4x6', 'v5p:8x4x4', 'v5p:0x4x4', 'h100:8', ''])
def test_unknown_topologies_are_refused_with_those_that_exist(name):
    with pytest.raises(UserError, match='16x16.*4x4x4') as refused:
        topology(name)
    assert all(chip in str(refused.value) for chip in CHIPS)


def test_a_mesh_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match='8 chips.*fsdp=3'):
        phase_of('bert_tiny', 'v5e:2x4', 'runtime.fsdp=3')
    with pytest.raises(UserError, match=r'phases\.0\.batch_size=100'):
        phase_of('bert_tiny', 'v5e:2x4', 'phases.0.batch_size=100')


def test_the_command_without_compiling(binary, tmp_path):
    result = binary('plan', '--config=bert_large', '--topology=v5e:16x16', '--nocompile', f'--json={tmp_path / "plan.json"}')
    assert (result.returncode, result.stderr) == (0, '')
    assert '336,226,108 parameters' in result.stdout
    assert 'NOT COMPILED' in result.stdout
    found = json.loads((tmp_path / 'plan.json').read_text())
    assert (found['compiled'], found['chips'], found['parameters'], len(found['phases'])) == (False, 256, 336_226_108, 2)
    assert 'collectives' not in found['phases'][0]
    assert [p.name for p in tmp_path.iterdir()] == ['plan.json']


@pytest.mark.skipif(importlib.util.find_spec('libtpu') is not None, reason='libtpu is installed: tests/plan compiles')
def test_without_libtpu_the_command_says_how_to_install_it(binary):
    result = binary('plan', '--config=bert_tiny', '--topology=v5e:2x4')
    assert (result.returncode, result.stderr) == (0, '')
    assert "NOT COMPILED (libtpu is not installed: pip install -c constraints.txt '.[plan]')" in result.stdout


def test_the_command_refuses_in_one_line(binary):
    result = binary('plan', '--config=bert_tiny', '--topology=v5e:3x3')
    assert (result.returncode, result.stdout, result.stderr.count('\n')) == (2, '', 1)
    assert '--topology=v5e:3x3' in result.stderr
