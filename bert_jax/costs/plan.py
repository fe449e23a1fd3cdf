"""What a run needs on a topology that is not here: memory, collectives, time.

Two parts. `analytic` counts from shapes, the sharding rules and the chip's figures. `compiled`
lowers the very train step of bert-pretrain with abstract arguments for the topology's devices and
has it compiled: by libtpu, which needs no TPU, or for the GPUs of this machine. A floor is what no
program can beat on these chips; all bytes are of one chip.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, Phase, PretrainConfig
from bert_jax.costs import flops, hlo, memory, reading
from bert_jax.costs.chips import Topology
from bert_jax.mesh import construction, sharding
from bert_jax.model import partition
from bert_jax.train.program import InputKind, argument_shapes, pretraining_program
from bert_jax.train.state import checkpoint_bytes

INSTALL = "pip install -c constraints.txt '.[plan]'"
# Of how many layers the two programs are from which deeper ones follow. One alone is another
# program than the rest: what its forward pass leaves is still in the fast memory for the backward.
_SHALLOW = (2, 4)
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


class Task(NamedTuple):
    """One phase of a run, on a topology.

    predictions: masked positions a sequence.
    """

    config: PretrainConfig
    phase: Phase
    predictions: int
    topology: Topology

    @property
    def mesh(self) -> AbstractMesh:
        """Return the mesh of the run, as `abstract_mesh` makes it."""
        return abstract_mesh(self.config, self.topology)

    @property
    def rows(self) -> int:
        """Return the sequences that a chip works on at a time: its share of one micro-batch."""
        mesh = self.mesh.shape
        split = self.config.runtime.accumulation * mesh['data'] * mesh['fsdp']
        return self.phase.batch_size // split

    @property
    def fewest_parts(self) -> int:
        """Return the fewest micro-batches of a step: 1, or as many sizes as a growing batch has."""
        phases = self.config.phases
        return math.lcm(*(p.batch_size // (p.batch_warmup_from or p.batch_size) for p in phases))

    @property
    def inputs(self) -> InputKind:
        """Return what the batches of the step are."""
        return InputKind(self.phase.seq_len, self.predictions)

    def changed(self, changes: Mapping[str, Any]) -> Task:
        """Return the same task with `changes` of `runtime`.

        Where these change the size of another axis, `data` takes the chips that are left.
        """
        if {'fsdp', 'model_parallel'} & changes.keys():
            changes = {**changes, 'data_parallel': None}
        runtime = dataclasses.replace(self.config.runtime, **changes)
        return self._replace(config=dataclasses.replace(self.config, runtime=runtime))


def predictions_of(config: PretrainConfig, given: Sequence[int]) -> list[int]:
    """Return masked positions a sequence by phase; UserError if `given` do not fit.

    given: one for each phase, or none for bert-preprocess's default, 15 % of the length rounded
    up.
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
    """Make the mesh of a run on the topology's chips, without devices.

    UserError where the chips do not divide by the axes, or a batch does not divide over them.
    """
    runtime, chip = config.runtime, topology.chip
    device = AbstractDevice(chip.name, None, chip.platform)
    mesh = construction.abstract_mesh(runtime, topology.name, topology.chips, device)
    # Raises where an axis would split nothing. What it warns of the run itself says.
    partition.left_whole(config.model, runtime)
    for i, phase in enumerate(config.phases):
        sharding.check_divides(
            mesh, phase.batch_size, runtime.accumulation, f'phases.{i}.batch_size'
        )
    return mesh


def analytic(task: Task) -> dict[str, Any]:
    """Return what shapes alone tell of one phase: FLOPs, bytes of the state, floors in seconds.

    memory is of one chip, checkpoint_bytes of the whole state. The floors are of a step. That of
    memory: every program reads the state and the batch once and writes the state once.
    """
    config, phase, predictions, topology = task
    chip = topology.chip

    # Everything from abstract arguments: nothing is compiled or placed here, so this works for any
    # topology, also where no compiler for it is installed.
    state, batch, _ = argument_shapes(config, task.inputs, phase.batch_size, task.mesh)
    params = memory.held(state.params)
    moments = memory.held(state.opt_state)
    rows = memory.held(batch)
    per_sequence = flops.training_flops_per_sequence(config.encoder, phase.seq_len, predictions)
    return {
        'seq_len': phase.seq_len,
        'batch_size': phase.batch_size,
        'batch_per_chip': phase.batch_size / topology.chips,
        'max_predictions': predictions,
        'steps': phase.steps,
        'flops_per_token': per_sequence / phase.seq_len,
        'flops_per_step': per_sequence * phase.batch_size,
        'memory': {'parameters': params, 'optimizer': moments, 'batch': rows},
        'checkpoint_bytes': checkpoint_bytes(state),
        'floor_s': {
            'compute': per_sequence * phase.batch_size / (topology.chips * chip.peak_flops),
            # Read the state, write it: twice; the batch is read alone.
            'memory': (2 * (params + moments) + rows) / chip.hbm_bandwidth,
        },
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
            f' {topology.name}: it needs {memory.size(needs)} a chip, and there is'
            f' {memory.size(has)}: raise runtime.accumulation (now {runtime.accumulation}) or'
            f' runtime.fsdp (now {runtime.fsdp}), set runtime.remat=dots or full (now'
            f' {runtime.remat}), or lower its batch_size'
        )
        self.needs, self.has, self.buffers = needs, has, list(buffers)


def obstacle(topology: Topology) -> str | None:
    """Return why nothing can be compiled for the topology here; None where it can."""
    # For a TPU the compiler is a package; for a GPU it is in jax, but asks the GPU itself.
    if topology.chip.platform == 'tpu':
        return None if importlib.util.find_spec('libtpu') else f'libtpu is not installed: {INSTALL}'
    present, name = len(_gpus(topology)), topology.chip.name.upper()
    if present >= topology.chips:
        return None
    return (
        f'XLA compiles for a GPU where there is one: here are {present} {name}, not'
        f' {topology.chips}'
    )


def _gpus(topology: Topology) -> list[Any]:
    """Return the GPUs of this machine that are chips of the topology's kind, as jax devices."""
    try:
        return [
            device
            for device in jax.devices('gpu')
            if re.search(topology.chip.kind, device.device_kind)
        ]
    except RuntimeError:  # there is none, or jax is installed without support for it
        return []


@contextlib.contextmanager
def _kept_nowhere() -> Iterator[None]:
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
    config, inputs, chip = task.config, task.inputs, task.topology.chip
    mesh = construction.make_mesh(config.runtime, devices(task.topology))
    program = pretraining_program(config, inputs, mesh, chip.platform)
    shapes = argument_shapes(config, inputs, task.phase.batch_size, mesh)
    with jax.set_mesh(mesh):
        lowered = program.train_step.lower(*shapes)
    try:
        with _kept_nowhere():
            return lowered.compile()
    # Only a lack of memory is an answer; whatever else the compiler says is an error of ours.
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        needs, has = hlo.refused_sizes(str(error)) or (math.nan, chip.hbm_usable)
        raise DoesNotFit(task, needs, has, hlo.allocations(str(error))) from error


def devices(topology: Topology) -> list[Any]:
    """Return the topology's chips as jax devices; UserError where libtpu does not know it.

    Sets environment variables that libtpu reads.
    """
    if topology.chip.platform == 'gpu':
        return _gpus(topology)[: topology.chips]
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


def compiled(task: Task, all_layers: bool = False) -> dict[str, Any]:
    """Add to `analytic` what the compiler tells of memory, collectives, FLOPs and time.

    Of an unrolled model of many layers two of fewer are compiled for a TPU, and the rest
    follows (reading.py); with `all_layers` it is compiled as it is. Raises DoesNotFit where the
    step does not fit a chip. The memory floor grows by the temporaries: what lives at their peak
    has been written and will be read.
    """
    plan, step = analytic(task), _read(task, all_layers)
    config, chip, used = task.config, task.topology.chip, step.memory

    # Memory first, for a step that does not fit has no plan. libtpu has refused it by now; XLA
    # compiles for a GPU what does not fit it, and the GPU itself tells what it has.
    limit = None
    if chip.platform == 'gpu':
        limit = (devices(task.topology)[0].memory_stats() or {}).get('bytes_limit')
    usable = int(limit or chip.hbm_usable)
    if used['total'] > usable:
        raise DoesNotFit(task, used['total'], usable)
    plan['memory'] |= used | {'left': usable - used['total']}
    plan['layers_compiled'] = list(step.layers)
    plan['collectives'] = step.collectives

    # Then time: the compiler's own counts and estimate, and floors that are now known better.
    plan['compiler'] = {
        'flops_per_chip': step.flops,
        'bytes_per_chip': step.moved,
        'counts_loops_once': config.runtime.scan_layers or config.runtime.accumulation > 1,
    }
    plan['libtpu'] = step.libtpu
    plan['warnings'] = []
    # XLA draws those of `rbg` for a whole micro-batch on every chip.
    rows = task.phase.batch_size // config.runtime.accumulation
    drops = config.model.hidden_dropout or config.model.attention_dropout
    if config.runtime.dropout_rng == 'rbg' and drops and rows > task.rows:
        plan['warnings'].append(
            f'each chip draws the random bits of {rows} rows and uses those of its own {task.rows};'
            ' with runtime.dropout_rng=threefry it draws its own'
        )
    if len(step.layers) > 1 and used['total'] > (1 - _MARGIN) * usable:
        shallow = ' and '.join(map(str, step.layers))
        plan['warnings'].append(
            f'the memory of {config.model.num_layers} layers follows from that of {shallow}, and is'
            f' within {_MARGIN:.0%} of what there is: --all_layers compiles them all'
        )

    # What any program must move: arguments read, outputs written, temporaries both.
    traffic = used['arguments'] + used['outputs'] + 2 * used['temporary']
    plan['floor_s'] |= {
        'memory': traffic / chip.hbm_bandwidth,
        'interconnect': sum(row['sent'] for row in step.collectives) / chip.ici,
    }
    return plan


def _read(task: Task, all_layers: bool) -> reading.Reading:
    """Return what the compiled step tells; of many unrolled layers as it follows from fewer."""
    config, layers = task.config, task.config.model.num_layers

    def read(model: ModelConfig) -> reading.Reading:
        program = compile_step(task._replace(config=dataclasses.replace(config, model=model)))
        return reading.read(program, dict(task.mesh.shape), task.topology, model.num_layers)

    # A loop holds one layer whatever their number. Frozen layers cost less than the others, and the
    # first of a group that shares its weights costs more.
    runtime, groups = config.runtime, config.model.num_groups or 1
    as_it_is = (
        runtime.scan_layers
        or layers < sum(_SHALLOW)
        or config.optimizer.freeze_layers
        or groups > 1
    )
    if all_layers or as_it_is or task.topology.chip.platform != 'tpu':
        return read(config.model)
    few, more = (read(config.model.of_depth(depth)) for depth in _SHALLOW)
    return reading.deeper(few, more, layers)


def schedule(
    phases: Sequence[dict[str, Any]], chips: int, mfu: float, price: float | None
) -> dict[str, Any]:
    """Return time, tokens/s, chip-hours and price of the whole run, by several guesses.

    phases: those of `analytic` or `compiled`; price: of a chip for an hour. The guesses are
    'floor'; 'mfu', where a step takes its compute floor / mfu; and, where all phases have it,
    'libtpu', its estimate. A step takes at least its highest floor in each of them.
    """
    # Each guess gives seconds a step, phase by phase; no step is faster than its highest floor.
    guesses = {
        'floor': [0.0 for _ in phases],
        'mfu': [phase['floor_s']['compute'] / mfu for phase in phases],
    }
    if all(phase.get('libtpu') for phase in phases):
        guesses['libtpu'] = [phase['libtpu']['step_s'] for phase in phases]
    result = {}
    for name, guessed in guesses.items():
        rows = []
        for phase, guess in zip(phases, guessed, strict=True):
            seconds = max(guess, *phase['floor_s'].values())
            tokens = phase['batch_size'] * phase['seq_len'] / seconds
            hours = seconds * phase['steps'] / 3600
            rows.append({'step_s': seconds, 'tokens_per_s': tokens, 'hours': hours})
        hours = sum(row['hours'] for row in rows)
        result[name] = {'phases': rows, 'hours': hours, 'chip_hours': hours * chips}
        if price is not None:
            result[name]['price'] = hours * chips * price
    return result
