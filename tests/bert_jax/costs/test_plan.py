"""The part of a plan that follows from shapes: against counts by hand and published numbers.

The compiled part: tests/plan.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.load import load, presets
from bert_jax.configs.overrides import apply
from bert_jax.configs.schema import ModelConfig, PretrainConfig
from bert_jax.costs import overheads, plan, search
from bert_jax.costs.chips import CHIPS, topology
from bert_jax.model import partition
from tests.helpers import commands

BASE = 110_106_428
WHOLE = 'runtime.shard_optimizer=false'  # each chip has all of the state
PADDING = 70 * 768 + 70  # 30592 rows for 30522 entries: in the table and in the head's bias


def phase_of(name: str, where: str, *changes: str, predictions: int = 20) -> dict:
    config = apply(load(name), changes)
    return plan.analytic(plan.Task(config, config.phases[0], predictions, topology(where)))


def test_state_flops_and_floors_of_base():
    memory = phase_of('bert_base', 'v6e:1x1')['memory']
    assert memory['parameters'] == 4 * (BASE + PADDING)
    assert memory['optimizer'] == 2 * memory['parameters'] + 4  # two moments and a count
    assert memory['batch'] == 256 * 4 * (3 * 128 + 3 * 20 + 2)
    phase = phase_of('bert_base', 'v5e:4x4', WHOLE)
    # GFLOP a sequence, as published (test_flops.py).
    assert round(phase['flops_per_step'] / 256e9, 1) == 69.9
    assert phase['flops_per_token'] * 128 * 256 == pytest.approx(phase['flops_per_step'])
    assert phase['floor_s']['compute'] == pytest.approx(256 * 69.9e9 / (16 * 197e12), rel=1e-3)
    assert phase['floor_s']['memory'] == pytest.approx(2 * 3 * 4 * BASE / 819e9, rel=2e-3)
    assert phase['batch_per_chip'] == 16


def test_schedule_adds_up():
    phases = [
        {'batch_size': size, 'seq_len': length, 'steps': steps, 'floor_s': floors}
        for size, length, steps, floors in (
            (100, 128, 3600, {'compute': 0.1, 'memory': 0.05}),
            (10, 512, 1800, {'compute': 0.1, 'memory': 0.8}),
        )
    ]
    guesses = plan.schedule(phases, chips=16, mfu=0.5, price=2.0)
    assert guesses['floor']['hours'] == pytest.approx(0.1 + 0.4)
    # The second phase cannot be faster than its memory.
    assert guesses['mfu']['hours'] == pytest.approx(0.2 + 0.4)
    assert guesses['mfu']['price'] == pytest.approx(2 * 9.6)
    assert guesses['mfu']['phases'][0]['tokens_per_s'] == pytest.approx(100 * 128 / 0.2)
    estimated = {'libtpu': {'step_s': 0.3, 'unpriced': {}}}
    assert 'libtpu' not in plan.schedule([phases[0] | estimated, phases[1]], 16, 0.5, None)
    guesses = plan.schedule([phase | estimated for phase in phases], 16, 0.5, None)
    assert [row['step_s'] for row in guesses['libtpu']['phases']] == [0.3, 0.8]


def test_masked_positions_default_to_those_of_the_records():
    config = load('bert_base')
    assert plan.predictions_of(config, []) == [20, 77]
    assert plan.predictions_of(config, [20, 76]) == [20, 76]
    for wrong in ([20], [20, 513], [0, 76]):
        with pytest.raises(UserError, match='--max_predictions'):
            plan.predictions_of(config, wrong)


@pytest.mark.parametrize(
    ('given', 'name', 'chips', 'gcloud'),
    [
        ('v5e:4x2', 'v5e:2x4', 8, '--accelerator-type=v5litepod-8'),
        ('v5litepod-16', 'v5e:4x4', 16, '--accelerator-type=v5litepod-16'),
        # Of v4 and v5p gcloud counts cores.
        ('v4-8', 'v4:2x2x1', 4, '--accelerator-type=v4-8'),
        ('v5p-1536', 'v5p:8x8x12', 768, '--accelerator-type=v5p-1536'),
        ('v5p:4x4x16', 'v5p:4x4x16', 256, '--type=v5p --topology=4x4x16'),  # v5p-512 is 4x8x8
        ('h100:8', 'h100:8', 8, None),
    ],
)
def test_names_of_topologies(given, name, chips, gcloud):
    made = topology(given)
    assert (made.name, made.chips, made.gcloud) == (name, chips, gcloud)


@pytest.mark.parametrize('name', ['v5e', 'v5p:0x4x4', 'h100:3', 'v5p-7', 'v6e-0'])
def test_unknown_topologies_are_refused_with_those_that_exist(name):
    with pytest.raises(UserError, match='4x4x4.*16x16.*1, 2, 4, 8') as refused:
        topology(name)
    assert all(chip in str(refused.value) for chip in CHIPS)


def test_a_mesh_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match='fsdp=3.*8 chips'):
        phase_of('bert_tiny', 'v5e:2x4', 'runtime.fsdp=3')
    with pytest.raises(UserError, match=r'phases\.0\.batch_size=100'):
        phase_of('bert_tiny', 'v5e:2x4', 'phases.0.batch_size=100')


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ('model_parallel=5', 'divides none of model.num_heads=12, .* take 4 or 6'),
        ('fsdp=5', 'divides none of model.hidden_size=768, .* take 4 or 6'),
    ],
)
def test_an_axis_that_would_split_nothing_is_refused_with_what_divides(change, message):
    runtime = apply(PretrainConfig(), [f'runtime.{change}']).runtime
    with pytest.raises(UserError, match=f'runtime.{change} {message}'):
        partition.left_whole(ModelConfig(), runtime)


class Compiler:
    """Stands for the TPU compiler, with a rule for what a step needs.

    The state, its gradients, and 0.3 GB a row of a chip, less where remat is on.
    """

    def __init__(self, monkeypatch, has: float, estimates: bool = False):
        self.has, self.estimates, self.seen = has, estimates, []
        monkeypatch.setattr(search.plan, 'compiled', self.compiled)

    def needs(self, task: plan.Task) -> float:
        memory, runtime = plan.analytic(task)['memory'], task.config.runtime
        rows = task.phase.batch_size / task.topology.chips / runtime.accumulation
        return (
            2 * memory['parameters']
            + memory['optimizer']
            + 3e8 * rows * {'none': 1, 'dots': 0.7, 'full': 0.2}[runtime.remat]
        )

    def compiled(self, task: plan.Task) -> dict:
        self.seen.append(task.config.runtime)
        needs = self.needs(task)
        if needs > self.has:
            raise plan.DoesNotFit(task, needs, self.has)
        floors = {'compute': 1.0, 'memory': needs, 'interconnect': 0.0}
        memory = {'total': needs, 'left': self.has - needs}
        return {
            'memory': memory,
            'floor_s': floors,
            'libtpu': {'step_s': 1e21 / needs} if self.estimates else None,
        }

    def refusal(self, task: plan.Task) -> plan.DoesNotFit:
        return plan.DoesNotFit(task, self.needs(task), self.has)


def large(*changes: str) -> plan.Task:
    config = apply(load('bert_large'), ['phases.0.batch_size=256', WHOLE, *changes])
    return plan.Task(config, config.phases[0], 20, topology('v5e:2x4'))


def test_the_least_change_of_each_setting_that_fits_is_found_by_compiling(monkeypatch):
    # 5.4 GB of state and 9.6 of 32 rows are too much; so are 6.7 with dots.
    compiler = Compiler(monkeypatch, has=11e9)
    rows = search.smallest_changes(large(), compiler.refusal(large()), budget=20)
    alone = [row['changes'] for row in rows if row['fits'] and len(row['changes']) == 1]
    assert sorted(alone, key=str) == [{'accumulation': 2}, {'fsdp': 8}, {'remat': 'full'}]
    # Each is enough by itself.
    assert [row for row in rows if row['fits'] and len(row['changes']) > 1] == []
    assert len(compiler.seen) == len(rows)
    assert {runtime.model_parallel for runtime in compiler.seen} == {1}


def test_a_search_spends_its_budget_on_what_fits_and_puts_the_fastest_first(monkeypatch):
    compiler = Compiler(monkeypatch, has=15.5 * 2**30)
    task = large('phases.0.batch_size=128')._replace(topology=topology('v5e:2x2'))
    rows = search.search(task, budget=5)
    assert len(rows) == len(compiler.seen) == 5 and all(row['fits'] for row in rows)
    assert len({tuple(row['changes'].items()) for row in rows}) == 5
    # Memory is the only floor that differs, and nothing is recomputed where there is no need.
    needs = [row['needs'] for row in rows]
    assert needs == sorted(needs) and {row['remat'] for row in rows} == {'none'}
    Compiler(monkeypatch, has=15.5 * 2**30, estimates=True)  # a longer time for less memory
    again = search.search(task, budget=5)
    assert [row['needs'] for row in again] == needs[::-1]
    assert ", libtpu's estimate " in search.describe(again[0])
    assert 'libtpu' not in search.describe(rows[0])


def test_a_candidate_that_the_compiler_fails_on_is_told_and_counted(monkeypatch):
    import jax

    def failing(task) -> dict:
        raise jax.errors.JaxRuntimeError('INTERNAL: a defect of it')

    monkeypatch.setattr(search.plan, 'compiled', failing)
    rows = search.search(large('phases.0.batch_size=8'), budget=2)
    assert [row['fits'] for row in rows] == [False, False]
    assert all('cannot be compiled' in search.describe(row) for row in rows)


def test_a_refusal_is_told_with_what_was_tried(monkeypatch):
    from bert_jax.runs.pretraining import plan_text

    task, compiler = large(), Compiler(monkeypatch, has=11e9)
    buffers = [{'bytes': 2**30, 'count': 2, 'shape': 'f32[7]', 'origin': 'a/b'}]
    phase = plan.analytic(task) | {'needs': 38e9, 'has': 10e9, 'buffers': buffers}
    phase['estimate'] = search.estimate(task).parts
    phase['changes'] = search.smallest_changes(task, compiler.refusal(task), budget=9)
    report = {
        'config': 'c', 'topology': 'v5e:2x4', 'chips': 8, 'mesh': {'data': 8}, 'hosts': 1,
        'gcloud': None, 'chip': dataclasses.asdict(task.topology.chip), 'parameters': 1,
        'checkpoints': overheads.checkpoints(task.config, [phase], 1, 2e8, None),
        'warnings': [], 'phases': [phase],
    }  # fmt: skip
    text = '\n'.join(plan_text.lines(report))
    assert 'DOES NOT FIT' in text
    assert '2 x f32[7], 1.00 GiB in all: a/b' in text
    assert 'whole run' not in text
    assert '--set runtime.accumulation=2' in text and '--set runtime.remat=full' in text


@pytest.mark.slow
def test_a_step_is_compiled_for_the_devices_that_are_here(monkeypatch):
    """What a machine with GPUs does, with two of the test's own devices as the GPUs."""
    import jax

    monkeypatch.setattr(plan, '_gpus', lambda where: jax.devices()[:2])
    small = 'model.vocab_size=200 model.num_layers=1 model.max_position=16 phases.0.seq_len=16'
    config = apply(load('bert_tiny'), [*small.split(), 'phases.0.batch_size=4'])
    task = plan.Task(config, config.phases[0], 3, topology('h100:2'))
    found = plan.compiled(task)
    assert found['memory']['left'] == 60e9 - found['memory']['total']
    axes = [row['axes'] for row in found['collectives'] if row['kind'] == 'all-reduce']
    assert axes == [['data']]
    chip = dataclasses.replace(CHIPS['h100'], hbm_usable=1e6)
    line = r'does not fit h100:2: it needs [\d.]+ MiB a chip, and there is 1.0 MiB'
    with pytest.raises(plan.DoesNotFit, match=line):
        plan.compiled(task._replace(topology=dataclasses.replace(task.topology, chip=chip)))


def test_the_command_without_compiling(monkeypatch, tmp_path):
    """As on a machine without libtpu."""
    where, missing = topology('v5e:16x16'), "pip install -c constraints.txt '.[plan]'"
    with monkeypatch.context() as patch:
        patch.setattr(plan.importlib.util, 'find_spec', lambda name: None)
        assert plan.obstacle(where) == f'libtpu is not installed: {missing}'
    file = tmp_path / 'plan.json'
    flags = ['--config=bert_large', '--topology=v5e:16x16', f'--set={WHOLE}', f'--json={file}']
    result = commands.run('plan', '--nocompile', *flags)
    assert (result.returncode, result.stderr) == (0, '')
    assert '336,226,108 parameters' in result.stdout
    assert 'NOT COMPILED' in result.stdout
    found = json.loads(file.read_text())
    facts = [found[name] for name in ('compiled', 'chips', 'hosts', 'parameters')]
    assert facts == [False, 256, 64, 336_226_108]
    assert len(found['phases']) == 2 and 'collectives' not in found['phases'][0]
    # Of phase 0: 1.22 ms of FLOPs, and 9.9 ms to read and write the state.
    assert 'at 40% MFU     out of reach: 12% at most' in result.stdout
    assert 'MFU (assumed): out of reach in phase 0, see there' in result.stdout
    assert result.stdout.count('40% MFU') == 3
    # Parameters and two moments in float32, of a model with the rows that pad its word table.
    padding = 70 * 1024 + 70
    assert found['checkpoints']['bytes'] == pytest.approx(12 * (336_226_108 + padding), rel=1e-6)
    assert [p.name for p in tmp_path.iterdir()] == ['plan.json']


@pytest.mark.parametrize('name', presets(PretrainConfig))
def test_every_preset_is_estimated_with_micro_batches_that_it_can_have(name):
    config = load(name)
    tiny = apply(config, ['model.num_layers=1'])
    task = plan.Task(tiny, tiny.phases[0], 8, topology('v5e:2x2'))
    assert search.estimate(task).memory() > 0
    first = tiny.phases[0].batch_warmup_from
    assert task.fewest_parts == (tiny.phases[0].batch_size // first if first else 1)
    parts = {
        e[0].get('accumulation', tiny.runtime.accumulation)
        for e in search.grid(task, ('accumulation',))
    }
    assert {task.fewest_parts} <= parts and all(n % task.fewest_parts == 0 for n in parts)
