"""What a run needs on a topology that is not there: memory, collectives, time; the same step,
compiled for it.

Two parts. `analytic` counts from shapes, the sharding rules and the chip's figures. `compiled`
lowers the very train step of launch.pretrain with abstract arguments for the topology's devices and
has it compiled: by libtpu, which needs no TPU, or for the GPUs of this machine. A floor is what no
program can beat on these chips; all bytes are of one chip.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh

from bert_jax.costs import flops, hlo, memory
from bert_jax.costs.chips import Chip, Topology
from bert_jax.mesh import sharding
from bert_jax.model import splits
from bert_jax.train.program import InputKind, argument_shapes, pretraining_program
from configs.errors import UserError
from configs.schema import Phase, PretrainConfig

INSTALL = "pip install -c constraints.txt '.[plan]'"
# by themselves, not in a fusion
_MOVING = (
    'broadcast',
    'copy',
    'transpose',
    'reshape',
    'bitcast-convert',
)
_MUCH = 0.2  # a share of the step from which moving is worth a warning
_COSTLIEST = 10  # kinds of instruction that are told
# For libtpu where it only compiles: it shall not look for a TPU host's metadata, warn that there is
# none, or keep a second process out by its lock on the TPU.
_COMPILER_ONLY = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_MIN_LOG_LEVEL': '2',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


def predictions_of(config: PretrainConfig, given: Sequence[int]) -> list[int]:
    """Masked positions a sequence, for each phase: those `given`, or launch.preprocess's default,
    15 % of the length rounded up.
    """
    if given and len(given) != len(config.phases):
        raise UserError(
            f'--max_predictions: {len(given)} value(s) for {len(config.phases)} phase(s): give one'
            ' for each, in their order'
        )
    predictions = list(given) or [math.ceil(0.15 * phase.seq_len) for phase in config.phases]
    for count, phase in zip(predictions, config.phases, strict=True):
        if not 0 < count <= phase.seq_len:
            raise UserError(
                f"--max_predictions={count}: must be from 1 to the phase's seq_len={phase.seq_len}"
            )
    return predictions


def abstract_mesh(config: PretrainConfig, topology: Topology) -> AbstractMesh:
    """The mesh that sharding.make_mesh would make of the topology's chips, without devices.
    UserError where the run does not divide.
    """
    runtime = config.runtime
    inner = runtime.fsdp * runtime.model_parallel
    data = runtime.data_parallel or max(topology.chips // inner, 1)
    if data * inner != topology.chips:
        raise UserError(
            f'--topology={topology.name} has {topology.chips} chips, but runtime:'
            f' data_parallel={data} x fsdp={runtime.fsdp} x model_parallel={runtime.model_parallel}'
            f' = {data * inner}: change --set runtime.data_parallel, fsdp or model_parallel'
        )
    splits.left_whole(config.model, runtime)
    mesh = AbstractMesh((data, runtime.fsdp, runtime.model_parallel), ('data', 'fsdp', 'model'))
    for i, phase in enumerate(config.phases):
        sharding.check_divides(
            mesh, phase.batch_size, runtime.accumulation, f'phases.{i}.batch_size'
        )
    return mesh


def rows_at_a_time(config: PretrainConfig, phase: Phase, mesh: Mapping[str, int]) -> int:
    """Sequences that a chip works on at a time: of a step, an accumulation's part, split over
    `data` and `fsdp`.
    """
    return phase.batch_size // (config.runtime.accumulation * mesh['data'] * mesh['fsdp'])


def analytic(
    config: PretrainConfig, phase: Phase, predictions: int, topology: Topology
) -> dict[str, Any]:
    """What shapes alone tell of one phase: FLOPs, bytes of the state on a chip, floors in seconds a
    step.

    Its memory floor: every program reads the state and the batch once and writes the state once.
    """
    mesh, chip = abstract_mesh(config, topology), topology.chip
    inputs = InputKind(phase.seq_len, predictions)
    state, batch, _ = argument_shapes(config, inputs, phase.batch_size, mesh)
    params = memory.held(state.params)
    moments = memory.held(state.opt_state)
    rows = memory.held(batch)
    per_sequence = flops.training_flops_per_sequence(config.model, phase.seq_len, predictions)
    return {
        'seq_len': phase.seq_len,
        'batch_size': phase.batch_size,
        'batch_per_chip': phase.batch_size / topology.chips,
        'max_predictions': predictions,
        'steps': phase.steps,
        'flops_per_token': per_sequence / phase.seq_len,
        'flops_per_step': per_sequence * phase.batch_size,
        'memory': {'parameters': params, 'optimizer': moments, 'batch': rows},
        'floor_s': {
            'compute': per_sequence * phase.batch_size / (topology.chips * chip.peak_flops),
            'memory': (2 * (params + moments) + rows) / chip.hbm_bandwidth,
        },
    }


class DoesNotFit(UserError):
    """A step that is larger than its chip. needs, has: bytes; buffers: the largest
    (hlo.Allocation), where the compiler names them.
    """

    def __init__(self, message: str, needs: float, has: float, buffers: list[hlo.Allocation]):
        super().__init__(message)
        self.needs, self.has, self.buffers = needs, has, buffers


def obstacle(topology: Topology) -> str | None:
    """Why nothing can be compiled for the topology here, and how to mend it; None where it can."""
    if topology.chip.platform == 'tpu':
        return None if importlib.util.find_spec('libtpu') else f'libtpu is not installed: {INSTALL}'
    found = len(_gpus(topology))
    name = topology.chip.name.upper()
    return (
        None
        if found >= topology.chips
        else (
            f'XLA compiles for a GPU where there is one: here are {found} {name}, not'
            f' {topology.chips}'
        )
    )


def _gpus(topology: Topology) -> list[Any]:
    """The GPUs of this machine that are such chips."""
    try:
        return [
            device
            for device in jax.devices('gpu')
            if re.search(topology.chip.kind, device.device_kind)
        ]
    except RuntimeError:  # there is none, or jax is installed without support for it
        return []


def compile_step(
    config: PretrainConfig, phase: Phase, predictions: int, topology: Topology
) -> jax.stages.Compiled:
    """The train step of one phase, compiled for the topology. DoesNotFit with both sizes where
    libtpu refuses it for lack of memory.
    """
    mesh = sharding.make_mesh(config.runtime, devices(topology))
    inputs = InputKind(phase.seq_len, predictions)
    program = pretraining_program(config, inputs, mesh, topology.chip.platform)
    with jax.set_mesh(mesh):
        lowered = program.train_step.lower(*argument_shapes(config, inputs, phase.batch_size, mesh))
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        needs, has = hlo.refused_sizes(str(error)) or (math.nan, topology.chip.hbm_usable)
        raise _refusal(config, phase, topology, needs, has, hlo.allocations(str(error))) from error


def _refusal(
    config: PretrainConfig,
    phase: Phase,
    topology: Topology,
    needs: float,
    has: float,
    buffers: list[hlo.Allocation],
) -> DoesNotFit:
    runtime = config.runtime
    return DoesNotFit(
        f'phases.{config.phases.index(phase)} (seq_len={phase.seq_len},'
        f' {phase.batch_size / topology.chips:g} sequences a chip) does not fit {topology.name}: it'
        f' needs {memory.size(needs)} a chip, and there is {memory.size(has)}: raise'
        f' runtime.accumulation (now {runtime.accumulation}) or runtime.fsdp (now {runtime.fsdp}),'
        f' set runtime.remat=dots or full (now {runtime.remat}), or lower its batch_size',
        needs,
        has,
        buffers,
    )


def devices(topology: Topology) -> list[Any]:
    """The topology's chips as jax devices that can be compiled for, and no more. Sets environment
    variables that libtpu reads.
    """
    if topology.chip.platform == 'gpu':
        return _gpus(topology)[: topology.chips]
    from jax.experimental import topologies

    for name, value in _COMPILER_ONLY.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {}
    if topology.chip.name == 'v4':  # v5p's two cores are one device without it
        options['chip_config_name'] = 'megacore'
    if topology.chips == 1:
        options['chips_per_host_bounds'] = (1, 1, 1)
    try:
        return list(
            topologies.get_topology_desc(
                platform='tpu', topology_name=topology.name, **options
            ).devices
        )
    except jax.errors.JaxRuntimeError as error:
        if 'INVALID_ARGUMENT' not in str(error):
            raise
        raise UserError(
            f'--topology={topology.name}: libtpu does not know it ({str(error).splitlines()[0]}):'
            ' take another one'
        ) from error


def compiled(
    config: PretrainConfig, phase: Phase, predictions: int, topology: Topology
) -> dict[str, Any]:
    """`analytic`, with what the compiler tells: memory by use, collectives, its own count of FLOPs
    and bytes.

    The memory floor grows by the temporaries: what lives at their peak has been written and will be
    read.
    """
    plan = analytic(config, phase, predictions, topology)
    program = compile_step(config, phase, predictions, topology)
    used, chip = memory.of_step(program, topology.chip.platform), topology.chip
    text = program.as_text()
    assert text is not None, 'what has just been compiled has a text'
    limit = (
        (devices(topology)[0].memory_stats() or {}).get('bytes_limit')
        if chip.platform == 'gpu'
        else None
    )
    usable = int(limit or chip.hbm_usable)
    if used['total'] > usable:  # XLA compiles for a GPU what does not fit it
        raise _refusal(config, phase, topology, used['total'], usable, [])
    kept = min(hlo.kept_for_backward(text), used['temporary'])
    plan['memory'] |= used | {
        'activations': kept,
        'workspace': used['temporary'] - kept,
        'left': usable - used['total'],
    }
    mesh = abstract_mesh(config, topology)
    rows: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for c in hlo.collectives(text, dict(mesh.shape)):
        new = {
            'kind': c.kind,
            'axes': list(c.axes),
            'chips': c.size,
            'count': 0,
            'bytes': 0,
            'sent': 0.0,
        }
        row = rows.setdefault((c.kind, c.axes), new)
        row['count'] += c.count
        row['bytes'] += c.count * c.bytes
        row['sent'] += c.count * c.sent
    plan['collectives'] = sorted(rows.values(), key=lambda row: -row['bytes'])
    own = rows_at_a_time(config, phase, mesh.shape)
    plan['warnings'] = random_bits_of_others(text, own)
    cost = program.cost_analysis() or {}
    loops = config.runtime.scan_layers or config.runtime.accumulation > 1
    plan['compiler'] = {
        'flops_per_chip': cost.get('flops', 0.0),
        'bytes_per_chip': cost.get('bytes accessed', 0.0),
        'counts_loops_once': loops,
    } | expected(hlo.costs(text), chip)
    plan['warnings'] += reordering(plan['compiler'])
    traffic = used['arguments'] + used['outputs'] + 2 * used['temporary']
    plan['floor_s'] |= {
        'memory': traffic / chip.hbm_bandwidth,
        'interconnect': sum(row['sent'] for row in rows.values()) / chip.ici,
    }
    return plan


def expected(costs: Sequence[hlo.Cost], chip: Chip) -> dict[str, Any]:
    """What libtpu's estimates come to: seconds a step, the share of it in `moving` data about, and
    the costliest kinds of instruction.
    """
    total = sum(c.cycles for c in costs)
    if not total or not chip.flops_per_cycle:
        return {}
    return {
        'expected_s': total * chip.flops_per_cycle / chip.peak_flops,
        'moving': sum(c.cycles for c in costs if c.opcode in _MOVING) / total,
        'costliest': [{**vars(c), 'share': c.cycles / total} for c in costs[:_COSTLIEST]],
    }


def reordering(compiler: dict[str, Any]) -> list[str]:
    """A warning where much of a step moves data about and computes nothing."""
    if compiler.get('moving', 0.0) < _MUCH:
        return []
    worst = next((c for c in compiler['costliest'] if c['opcode'] in _MOVING), None)
    share = compiler['moving']
    where = f', most of all {worst["shape"]} at {worst["origin"]}' if worst else ''
    return [
        f'the compiler expects {share:.0%} of a step to copy and spread out arrays, computing'
        f' nothing{where}'
    ]


def random_bits_of_others(text: str, own: int) -> list[str]:
    """A warning where the compiled program draws random bits for more rows than the `own` that a
    chip works on at a time.
    """
    larger = [(dims, size) for dims, size in hlo.generators(text) if dims and dims[0] > own]
    if not larger:
        return []
    rows, total = max(dims[0] for dims, _ in larger), sum(size for _, size in larger)
    return [
        f'each chip draws the random bits of {rows} rows and uses those of its own {own}:'
        f' {len(larger)} arrays, {memory.size(total)}; with runtime.dropout_rng=threefry it draws'
        ' its own'
    ]


def schedule(
    phases: Sequence[dict[str, Any]], chips: int, mfu: float, price: float | None
) -> dict[str, Any]:
    """Step time, tokens/s, hours and chip-hours of the whole run, and its price: at the floor, at a
    model FLOPs utilisation, as expected.

    At `mfu` a step takes its compute floor / mfu; as expected, where a compiler said so of all
    phases, what it said; and the highest floor where that is longer. price: of a chip for an hour.
    """
    guesses = {
        'floor': [0.0 for _ in phases],
        'mfu': [phase['floor_s']['compute'] / mfu for phase in phases],
    }
    if all('expected_s' in phase.get('compiler', {}) for phase in phases):
        guesses['expected'] = [phase['compiler']['expected_s'] for phase in phases]
    result = {}
    for name, guessed in guesses.items():
        rows = []
        for phase, guess in zip(phases, guessed, strict=True):
            seconds = max(guess, *phase['floor_s'].values())
            tokens = phase['batch_size'] * phase['seq_len'] / seconds
            rows.append(
                {
                    'step_s': seconds,
                    'tokens_per_s': tokens,
                    'hours': seconds * phase['steps'] / 3600,
                }
            )
        hours = sum(row['hours'] for row in rows)
        result[name] = {'phases': rows, 'hours': hours, 'chip_hours': hours * chips}
        if price is not None:
            result[name]['price'] = hours * chips * price
    return result
