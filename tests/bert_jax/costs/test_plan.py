"""The part of a plan that follows from shapes: against counts by hand and published numbers.

The compiled part: tests/plan.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from bert_jax.configs.load import list_presets, load
from bert_jax.configs.overrides import apply
from bert_jax.configs.schema import ModelConfig, PretrainConfig
from bert_jax.costs import compiled, estimate
from bert_jax.costs.chips import CHIPS, parse_topology
from bert_jax.model import partition
from tests.helpers import commands
from tests.helpers.refusals import refused

BASE = 110_106_428
WHOLE = 'runtime.shard_optimizer=false'  # each chip has all of the state
PADDING = 70 * 768 + 70  # 30592 rows for 30522 entries: in the table and in the head's bias


def phase_of(name: str, where: str, *changes: str, predictions: int = 20) -> dict:
    config = apply(load(name), changes)
    return estimate.analyse(
        estimate.Task(config, config.phases[0], predictions, parse_topology(where))
    )


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
        {
            'batch_size': size,
            'seq_len': length,
            'steps': steps,
            'whole_steps': steps,
            'floor_s': floors,
        }
        for size, length, steps, floors in (
            (100, 128, 3600, {'compute': 0.1, 'memory': 0.05}),
            (10, 512, 1800, {'compute': 0.1, 'memory': 0.8}),
        )
    ]
    guesses = estimate.make_schedule(phases, chips=16, mfu=0.5, price=2.0)
    assert guesses['floor']['hours'] == pytest.approx(0.1 + 0.4)
    # The second phase cannot be faster than its memory.
    assert guesses['mfu']['hours'] == pytest.approx(0.2 + 0.4)
    assert guesses['mfu']['price'] == pytest.approx(2 * 9.6)
    assert guesses['mfu']['phases'][0]['tokens_per_s'] == pytest.approx(100 * 128 / 0.2)


def test_masked_positions_default_to_those_of_the_records():
    config = load('bert_base')
    assert estimate.choose_predictions(config, []) == [20, 77]
    assert estimate.choose_predictions(config, [20, 76]) == [20, 76]
    for wrong in ([20], [20, 513], [0, 76]):
        with refused('--max_predictions'):
            estimate.choose_predictions(config, wrong)


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
    made = parse_topology(given)
    assert (made.name, made.chips, made.gcloud) == (name, chips, gcloud)


@pytest.mark.parametrize('name', ['v5e', 'v5p:0x4x4', 'h100:3', 'v5p-7', 'v6e-0'])
def test_unknown_topologies_are_refused_with_those_that_exist(name):
    with refused('4x4x4.*16x16.*1, 2, 4, 8') as caught:
        parse_topology(name)
    assert all(chip in str(caught.value) for chip in CHIPS)


@pytest.mark.parametrize(
    ('change', 'message'),
    [('runtime.fsdp=3', 'fsdp=3.*8 chips'), ('phases.0.batch_size=100', 'batch_size=100')],
)
def test_a_mesh_that_does_not_divide_is_refused(change, message):
    with refused(message):
        phase_of('bert_tiny', 'v5e:2x4', change)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ('model_parallel=5', 'divides none of model.num_heads=12, .* take 4 or 6'),
        ('fsdp=5', 'divides none of model.hidden_size=768, .* take 4 or 6'),
    ],
)
def test_an_axis_that_would_split_nothing_is_refused_with_what_divides(change, message):
    runtime = apply(PretrainConfig(), [f'runtime.{change}']).runtime
    with refused(message):
        partition.list_unsplit(ModelConfig(), runtime)


def large(*changes: str) -> estimate.Task:
    config = apply(load('bert_large'), ['phases.0.batch_size=256', WHOLE, *changes])
    return estimate.Task(config, config.phases[0], 20, parse_topology('v5e:2x4'))


@pytest.mark.parametrize(
    ('usable', 'needs', 'change'),
    [
        (9e9, None, {}),
        # As it is 8.4 GB, and with 2 micro-batches 8.2: their sums are as large as the gradients.
        (8e9, None, {'accumulation': 4}),
        # The compiler found activations to be more than twice what was estimated.
        (8e9, 12e9, {'accumulation': 8}),
        # No accumulation makes room for 5.4 GB of state and gradients, nor does remat.
        (5e9, None, {'fsdp': 4}),
        (3e9, None, {'accumulation': 4, 'fsdp': 4}),
        (1e8, None, None),
    ],
)
def test_the_least_change_that_fits_by_estimate(usable, needs, change):
    assert estimate.find_likely_change(large(), usable, needs) == change


@pytest.mark.parametrize('name', ['modernbert_base', 'ettin_17m', 'mmbert_small'])
def test_a_batch_that_grows_is_planned_with_the_accumulation_that_it_has(name):
    config = load(name)
    task = estimate.Task(config, config.phases[0], 154, parse_topology('v5e:4x4'))
    change = estimate.find_likely_change(task, sum(estimate.estimate_memory(task).values()) * 0.9)
    assert change['accumulation'] % config.runtime.accumulation == 0
    assert estimate.estimate_memory(task.changed(change))['batch'] > 0


def test_a_floor_of_the_links_is_what_each_axis_sends():
    """Of BERT-large on 8 chips in bfloat16; sums of several micro-batches are in float32."""
    sent, once = estimate.count_sent, 7 / 8 * 4 * (336_226_108 + 70 * 1024 + 70)
    assert sent(large()) == pytest.approx(once)
    assert sent(large('runtime.accumulation=2')) == pytest.approx(2 * once)
    sharded = large('runtime.shard_optimizer=true', 'runtime.accumulation=2')
    assert sent(sharded) == pytest.approx(1.5 * once)
    split = large('runtime.fsdp=8')  # what is small is whole on each chip
    assert sent(split) == pytest.approx(once, rel=0.03)
    # Four times the outputs of two products a block, of 256 rows of 128 tokens, over 8 parts.
    parts = large('runtime.model_parallel=8', 'phases.0.batch_size=8')
    outputs = 4 * 7 / 8 * 24 * 2 * 1024 * 8 * 128 * 2
    assert sent(parts) == pytest.approx(outputs)


def test_a_refusal_is_told_with_what_would_do():
    from bert_jax.runs.pretraining import planning

    task = large()
    buffers = [{'bytes': 2**30, 'count': 2, 'shape': 'f32[7]', 'origin': 'a/b'}]
    phase = estimate.analyse(task) | {'needs': 38e9, 'has': 10e9, 'buffers': buffers}
    phase |= {
        'estimate': estimate.estimate_memory(task),
        'likely_change': {'accumulation': 8, 'fsdp': 2},
    }
    report = {
        'config': 'c', 'topology': 'v5e:2x4', 'chips': 8, 'mesh': {'data': 8}, 'hosts': 1,
        'gcloud': None, 'chip': dataclasses.asdict(task.topology.chip), 'parameters': 1,
        'checkpoints': {'bytes': 1, 'kept': 5}, 'warnings': [], 'phases': [phase], 'mfu': 0.4,
        'tokens': 3.3e9,
    }  # fmt: skip
    text = '\n'.join(planning.format_plan(report))
    assert 'DOES NOT FIT' in text
    assert '2 x f32[7], 1.00 GiB in all: a/b' in text
    assert 'whole run' not in text
    assert 'this fits: --set runtime.accumulation=8 --set runtime.fsdp=2' in text
    phase['likely_change'] = None
    assert 'no change of these settings is enough' in '\n'.join(planning.format_plan(report))


def test_a_budget_is_planned_as_it_is_bought():
    from bert_jax.runs.pretraining import planning

    chips, preset = parse_topology('v5e:2x4'), load('modernbert_base_recipe')
    options = planning.PlanOptions(topology='v5e:2x4', compile=False, hours=24.0, mfu=0.3)
    config = planning.fit_budget(preset, chips, options)
    report, _ = planning.make_plan(config, chips, options)
    # The smaller batches of the first steps are counted as whole ones by the plan alone.
    assert report['schedule']['mfu']['hours'] == pytest.approx(24.0, rel=0.02)
    options = dataclasses.replace(options, hours=None, tokens=5e9)
    report, _ = planning.make_plan(planning.fit_budget(preset, chips, options), chips, options)
    assert report['tokens'] == pytest.approx(5e9, rel=0.01)
    assert 'tokens         5' in '\n'.join(planning.format_plan(report))


def test_memory_of_many_layers_follows_from_that_of_few(monkeypatch):
    """By arithmetic, where the head takes 5 bytes and each layer 3. For TPUs: tests/plan."""
    depths = []

    def of_step(model, platform):
        depths.append(model.num_layers)
        return {'total': 5 + 3 * model.num_layers, 'temporary': 2 * model.num_layers}

    monkeypatch.setattr(compiled, 'compile_step', lambda task: task.config.model)
    monkeypatch.setattr(compiled, 'measure_step', of_step)
    found = compiled.compile_for_memory(large())
    assert (found['layers_compiled'], depths) == ([2, 4], [2, 4])
    left = int(15.75 * 2**30) - 77
    assert found['memory'] == {'total': 77, 'temporary': 48, 'left': left}
    compiled.compile_for_memory(large('runtime.scan_layers=true'))
    compiled.compile_for_memory(large(), all_layers=True)
    assert depths == [2, 4, 24, 24]


@pytest.mark.slow
def test_a_step_is_compiled_for_the_devices_that_are_here(monkeypatch):
    """What a machine with GPUs does, with two of the test's own devices as the GPUs."""
    import jax

    monkeypatch.setattr(compiled, '_find_gpus', lambda where: jax.devices()[:2])
    small = 'model.vocab_size=200 model.num_layers=1 model.max_position=16 phases.0.seq_len=16'
    config = apply(load('bert_tiny'), [*small.split(), 'phases.0.batch_size=4'])
    task = estimate.Task(config, config.phases[0], 3, parse_topology('h100:2'))
    found = compiled.compile_for_memory(task)
    assert found['memory']['left'] == 60e9 - found['memory']['total']
    chip = dataclasses.replace(CHIPS['h100'], hbm_usable=1e6)
    line = r'does not fit h100:2: it needs [\d.]+ MiB a chip, and there is 1.0 MiB'
    with pytest.raises(compiled.DoesNotFit, match=line):
        compiled.compile_for_memory(
            task._replace(topology=dataclasses.replace(task.topology, chip=chip))
        )


def test_the_command_without_compiling(monkeypatch, tmp_path):
    """As on a machine without libtpu."""
    where, missing = parse_topology('v5e:16x16'), "pip install -c constraints.txt '.[plan]'"
    with monkeypatch.context() as patch:
        patch.setattr(compiled.importlib.util, 'find_spec', lambda name: None)
        assert compiled.find_obstacle(where) == f'libtpu is not installed: {missing}'
    file = tmp_path / 'plan.json'
    flags = ['--config=bert_large', '--topology=v5e:16x16', f'--set={WHOLE}', f'--json={file}']
    result = commands.run('plan', '--nocompile', *flags)
    assert (result.returncode, result.stderr) == (0, '')
    assert '336,226,108 parameters' in result.stdout
    assert 'NOT COMPILED' in result.stdout
    found = json.loads(file.read_text())
    facts = [found[name] for name in ('compiled', 'chips', 'hosts', 'parameters')]
    assert facts == [False, 256, 64, 336_226_108]
    assert len(found['phases']) == 2 and 'layers_compiled' not in found['phases'][0]
    # Of phase 0: 1.22 ms of FLOPs, and 9.9 ms to read and write the state.
    assert 'at 40% MFU     out of reach: 12% at most' in result.stdout
    assert 'MFU (assumed): out of reach in phase 0, see there' in result.stdout
    assert result.stdout.count('40% MFU') == 3
    # Parameters and two moments in float32, of a model with the rows that pad its word table.
    padding = 70 * 1024 + 70
    assert found['checkpoints']['bytes'] == pytest.approx(12 * (336_226_108 + padding), rel=1e-6)
    assert [p.name for p in tmp_path.iterdir()] == ['plan.json']
    for flag in ('search=3', 'tries=0', 'write_rate=1e9'):
        result = commands.run('plan', *flags, f'--{flag}')
        assert (result.returncode, result.stdout) == (2, '')
        assert f'error: --{flag.partition("=")[0]} is gone: ' in result.stderr


@pytest.mark.parametrize('name', list_presets(PretrainConfig))
def test_every_preset_is_estimated_with_micro_batches_that_it_can_have(name):
    config = load(name)
    tiny = apply(config, ['model.num_layers=1'])
    task = estimate.Task(tiny, tiny.phases[0], 8, parse_topology('v5e:2x2'))
    needed = sum(estimate.estimate_memory(task).values())
    assert needed > 0 and estimate.find_likely_change(task, needed) == {}
