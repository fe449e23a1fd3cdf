"""What the compiler says of a step's memory, on chips that need not be here.

Lowers the very train step of bert-pretrain with abstract arguments for the topology's devices and
has it compiled: by libtpu, which needs no TPU, or for the GPUs of this machine. Owns the reading of
the compiler's refusal. All bytes are of one chip.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from bert_jax.configs.errors import UserError
from bert_jax.costs.chips import Topology
from bert_jax.costs.estimate import Task
from bert_jax.costs.step_costs import format_bytes, measure_step
from bert_jax.mesh import construction

INSTALL = "pip install -c constraints.txt '.[plan]'"
# Of how many layers the two programs are from which deeper ones follow. One alone is another
# program than the rest: what its forward pass leaves is still in the fast memory for the backward.
_FEW, _MORE = 2, 4
_MARGIN = 0.1  # of a chip's memory, by which what follows from shallow programs may be wrong
# For libtpu where it only compiles: it shall not look for a TPU host's metadata, warn that there is
# none, or keep a second process out by its lock on the TPU.
_COMPILER_ONLY = {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_MIN_LOG_LEVEL': '2',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


class DoesNotFit(UserError):
    """A step needs more memory than its chip has.

    needs, has: bytes of one chip, `needs` NaN where the compiler does not tell; buffers: the
    largest ones, where it lists them.
    """

    def __init__(
        self, task: Task, needs: float, has: float, buffers: Sequence[dict[str, Any]] = ()
    ):
        config, phase, _, topology = task
        runtime = config.runtime
        super().__init__(
            f'phases.{config.phases.index(phase)} (seq_len={phase.seq_len},'
            f' {phase.batch_size / topology.chips:g} sequences a chip) does not fit'
            f' {topology.name}: it needs {format_bytes(needs)} a chip, and there is'
            f' {format_bytes(has)}: raise runtime.accumulation (now {runtime.accumulation}) or'
            f' runtime.fsdp (now {runtime.fsdp}), set runtime.remat=dots or full (now'
            f' {runtime.remat}), or lower its batch_size'
        )
        self.needs, self.has, self.buffers = needs, has, list(buffers)


def find_obstacle(topology: Topology) -> str | None:
    """Return why nothing can be compiled for the topology here; None where it can."""
    # For a TPU the compiler is a package; for a GPU it is in jax, but asks the GPU itself.
    if topology.chip.platform == 'tpu':
        if importlib.util.find_spec('libtpu'):
            return None
        return f'libtpu is not installed: {INSTALL}'
    present, name = len(_find_gpus(topology)), topology.chip.name.upper()
    if present >= topology.chips:
        return None
    return (
        f'XLA compiles for a GPU where there is one: here are {present} {name}, not'
        f' {topology.chips}'
    )


def _find_gpus(topology: Topology) -> list[Any]:
    """Return the GPUs of this machine that are chips of the topology's kind, as jax devices."""
    try:
        devices = jax.devices('gpu')
    except RuntimeError:  # there is none, or jax is installed without support for it
        return []
    kind = topology.chip.kind
    return [device for device in devices if re.search(kind, device.device_kind)]


@contextlib.contextmanager
def _bypass_cache() -> Iterator[None]:
    """Keep programs out of jax's cache, which cannot read those of TPUs that are absent."""
    name = 'jax_persistent_cache_min_compile_time_secs'
    seconds = jax.config.values[name]
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, seconds)


def compile_step(task: Task) -> jax.stages.Compiled:
    """Return the train step of one phase, compiled for the topology.

    DoesNotFit with both sizes where libtpu refuses it for lack of memory.
    """
    # The same program as a run's, with abstract arguments: what is planned is what would run.
    setup, inputs, chip = task.setup, task.inputs, task.topology.chip
    mesh = construction.make_mesh(setup.runtime, list_devices(task.topology))
    program = setup.make_program(inputs, mesh, chip.platform)
    shapes = setup.argument_shapes(inputs, task.phase.batch_size, mesh)
    with jax.set_mesh(mesh):
        lowered = program.train_step.lower(*shapes)
    try:
        with _bypass_cache():
            return lowered.compile()
    # Only a lack of memory is an answer; whatever else the compiler says is an error of ours.
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        needs, has = parse_refusal(str(error)) or (math.nan, chip.hbm_usable)
        raise DoesNotFit(task, needs, has, list_largest_buffers(str(error))) from error


def list_devices(topology: Topology) -> list[Any]:
    """Return the topology's chips as jax devices; UserError where libtpu does not know it.

    Sets environment variables that libtpu reads.
    """
    if topology.chip.platform == 'gpu':
        return _find_gpus(topology)[: topology.chips]
    from jax.experimental import topologies

    for name, value in _COMPILER_ONLY.items():
        # setdefault: what the user has set for libtpu stays.
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {}
    if topology.chip.name == 'v4':  # v5p's two cores are one device without it
        options['chip_config_name'] = 'megacore'
    # Without it libtpu describes a whole host, and a host has four chips or eight.
    if topology.chips == 1:
        options['chips_per_host_bounds'] = (1, 1, 1)
    try:
        # The topology's chips, as devices that can be compiled for and not run on.
        description = topologies.get_topology_desc(
            platform='tpu', topology_name=topology.name, **options
        )
        return list(description.devices)
    except jax.errors.JaxRuntimeError as error:
        if 'INVALID_ARGUMENT' not in str(error):
            raise
        raise UserError(
            f'--topology={topology.name}: libtpu does not know it ({str(error).splitlines()[0]}):'
            ' take another one'
        ) from error


def compile_for_memory(task: Task, all_layers: bool = False) -> dict[str, Any]:
    """Return what a step takes by the compiler's word; raises DoesNotFit where it is too much.

    'memory': as measure_step, and what is left; 'layers_compiled'; 'warnings'. Of an unrolled
    model of many layers two of fewer are compiled for a TPU, and the rest follows; with
    `all_layers` it is compiled as it is.
    """
    config, chip = task.config, task.topology.chip
    layers = [config.model.num_layers]
    # An unrolled program holds each layer by itself, so what it keeps is affine in their number. A
    # loop holds one layer whatever their number. Frozen layers cost less than the others, and the
    # first of a group that shares its weights costs more.
    is_one_loop = config.runtime.scan_layers or (config.model.num_groups or 1) > 1
    if chip.platform == 'tpu' and not (
        all_layers or is_one_loop or config.optimizer.freeze_layers or layers[0] < _FEW + _MORE
    ):
        layers = [_FEW, _MORE]
    of_depths = []
    for depth in layers:
        shallow = dataclasses.replace(config, model=config.model.of_depth(depth))
        program = compile_step(task._replace(config=shallow))
        of_depths.append(measure_step(program, chip.platform))
    used = of_depths[0]
    if len(of_depths) > 1:
        for use, few in of_depths[0].items():
            of_a_layer = (of_depths[1][use] - few) / (_MORE - _FEW)
            used[use] = round(few + (config.model.num_layers - _FEW) * of_a_layer)

    # libtpu has refused by now what does not fit; XLA compiles for a GPU what does not fit it, and
    # the GPU itself tells what it has.
    limit = None
    if chip.platform == 'gpu':
        limit = (list_devices(task.topology)[0].memory_stats() or {}).get('bytes_limit')
    usable = int(limit or chip.hbm_usable)
    if used['total'] > usable:
        raise DoesNotFit(task, used['total'], usable)
    warnings = []
    # XLA draws the bits of `rbg` for a whole micro-batch on every chip.
    rows = task.phase.batch_size // config.runtime.accumulation
    drops = config.model.hidden_dropout or config.model.attention_dropout
    if config.runtime.dropout_rng == 'rbg' and drops and rows > task.rows:
        warnings.append(
            f'each chip draws the random bits of {rows} rows and uses those of its own {task.rows};'
            ' with runtime.dropout_rng=threefry it draws its own'
        )
    if len(of_depths) > 1 and used['total'] > (1 - _MARGIN) * usable:
        warnings.append(
            f'the memory of {config.model.num_layers} layers follows from that of {_FEW} and'
            f' {_MORE}, and is within {_MARGIN:.0%} of what there is: --all_layers compiles them'
            ' all'
        )
    return {
        'memory': used | {'left': usable - used['total']},
        'layers_compiled': layers,
        'warnings': warnings,
    }


def parse_refusal(text: str) -> tuple[float, float] | None:
    """Return the bytes needed and there in libtpu's refusal of a program; None if it has none."""
    match = re.search(r'Used (\S+?) of (\S+?) hbm|\((\S+)\) exceeds available HBM \((\S+)\)', text)
    # Two wordings, of different places in libtpu; the groups of the other are None.
    if match is None:
        return None
    needed, there = (_parse_size(size) for size in match.groups() if size)
    return needed, there


def list_largest_buffers(text: str) -> list[dict[str, Any]]:
    """Return the largest buffers in libtpu's refusal, summed by shape and origin, largest first.

    'bytes': of all 'count' of them together, padded to tiles; 'shape'; 'origin'.
    """
    # Entries look like "  1. Size: 1.5G\n  Shape: ...\n  ... op_name=...".
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in re.split(r'\n\s+\d+\. Size: ', text)[1:]:
        shape = re.search(r'Shape: ([^{\n]+)', entry)
        origin = re.search(r'op_name="([^"]*)"', entry)
        key = shape[1].strip() if shape else '?', origin[1] if origin else ''
        row = sums.setdefault(key, {'bytes': 0.0, 'count': 0, 'shape': key[0], 'origin': key[1]})
        row['bytes'] += _parse_size(entry.split()[0])
        row['count'] += 1
    return sorted(sums.values(), key=lambda row: -row['bytes'])


def _parse_size(text: str) -> float:
    """Return bytes of XLA's '24.50G', '512.0K', '96B' or '96'; its letters are powers of 1024."""
    match = re.fullmatch(r'([\d.]+)B?([KMGT]?)', text)
    if match is None:
        raise ValueError(f'{text!r}: no size in the notation of XLA that is known here')
    return float(match[1]) * 1024 ** ' KMGT'.index(match[2] or ' ')
