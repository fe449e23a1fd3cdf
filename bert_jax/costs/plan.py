"""What the shapes of a run tell before it begins: FLOPs, memory of the state, floors, time, price.

Owns that arithmetic, from the sharding rules and the chip's figures. Nothing is compiled here. A
floor is what no program can beat on these chips; all bytes are of one chip.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import Phase, PretrainConfig
from bert_jax.costs import flops, memory
from bert_jax.costs.chips import Topology
from bert_jax.mesh import construction, sharding
from bert_jax.model import partition
from bert_jax.model.blocks.block import parts_of
from bert_jax.train.pretraining_program import InputKind, argument_shapes, state_shapes
from bert_jax.train.state import checkpoint_bytes


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


def whole_parameters(task: Task) -> float:
    """Return the bytes of the parameters that a chip computes with.

    A sharded update keeps less of them between steps.
    """
    config = task.changed({'shard_optimizer': False}).config
    return memory.held(state_shapes(config, task.mesh).params)


def state_memory(task: Task) -> dict[str, float]:
    """Return the bytes that a chip holds of a step's arguments, by the sharding rules."""
    state, batch, _ = argument_shapes(task.config, task.inputs, task.phase.batch_size, task.mesh)
    return {
        'parameters': memory.held(state.params),
        'optimizer': memory.held(state.opt_state),
        'batch': memory.held(batch),
    }


def analyse(task: Task) -> dict[str, Any]:
    """Return what shapes alone tell of one phase: FLOPs, bytes of the state, floors in seconds.

    memory is of one chip, checkpoint_bytes of the whole state. The floors are of a step. That of
    memory: every program reads the state and the batch once and writes the state once.
    """
    config, phase, predictions, topology = task
    chip = topology.chip
    used = state_memory(task)
    traffic = 2 * (used['parameters'] + used['optimizer']) + used['batch']
    per_sequence = flops.training_flops_per_sequence(config.encoder, phase.seq_len, predictions)
    per_step = per_sequence * phase.batch_size
    return {
        'seq_len': phase.seq_len,
        'batch_size': phase.batch_size,
        'batch_per_chip': phase.batch_size / topology.chips,
        'max_predictions': predictions,
        'steps': phase.steps,
        'flops_per_token': per_sequence / phase.seq_len,
        'flops_per_step': per_step,
        'memory': used,
        'checkpoint_bytes': checkpoint_bytes(state_shapes(config, task.mesh)),
        'floor_s': {
            'compute': per_step / (topology.chips * chip.peak_flops),
            'memory': traffic / chip.hbm_bandwidth,
            'interconnect': count_sent(task) / chip.ici,
        },
    }


def count_sent(task: Task) -> float:
    """Return the least bytes that a chip sends in a step.

    Of n chips in a ring each sends (n - 1) / n of an array to scatter or to gather it. Over `data`
    gradients are scattered and their sums, or the new weights, gathered. Over `fsdp` gradients are
    scattered and parameters gathered, once at least. Over `model` the outputs of a product a
    sub-layer are added up, forward and backward. What may go in the dtype of the arithmetic counts
    in that.
    """
    model, runtime, mesh = task.config.model, task.config.runtime, task.mesh.shape
    width = 2 if runtime.compute_dtype == 'bfloat16' else 4
    weights = whole_parameters(task)

    data, fsdp, split = ((n - 1) / n for n in (mesh['data'], mesh['fsdp'], mesh['model']))
    narrow = weights * width / 4
    # Over micro-batches gradients are added up in float32 before they are sent.
    summed = narrow if runtime.accumulation == 1 else weights
    is_sharded = sharding.shards_update(runtime, task.mesh)
    of_data = data * (summed + (narrow if is_sharded else summed))
    # Weights are those of one part of `fsdp`.
    of_fsdp = fsdp * mesh['fsdp'] * (summed + narrow)

    # An all-reduce of each output is a scatter and a gather.
    outputs = sum(part.shapes()[name][1] for part in parts_of(model) for name in part.rows)
    tokens = runtime.accumulation * task.rows * task.phase.seq_len
    of_model = 2 * 2 * split * tokens * outputs * width * model.num_layers
    return of_data + of_fsdp + of_model


def schedule(
    phases: Sequence[Mapping[str, Any]], chips: int, mfu: float, price: float | None
) -> dict[str, Any]:
    """Return time, tokens/s, chip-hours and price of the whole run, at the floor and at an MFU.

    At 'mfu' a step takes its compute floor / mfu, and at least its highest floor.

    Args:
      phases: of `analyse`, in their order.
      chips: how many.
      mfu: the share of the chips' peak that is assumed.
      price: of a chip for an hour, if it is known.
    """
    result = {}
    for name, share in (('floor', 1.0), ('mfu', mfu)):
        rows = []
        for phase in phases:
            floors = phase['floor_s']
            seconds = max(floors['compute'] / share, *floors.values())
            tokens = phase['batch_size'] * phase['seq_len'] / seconds
            hours = seconds * phase['steps'] / 3600
            rows.append({'step_s': seconds, 'tokens_per_s': tokens, 'hours': hours})
        hours = sum(row['hours'] for row in rows)
        result[name] = {'phases': rows, 'hours': hours, 'chip_hours': hours * chips}
        if price is not None:
            result[name]['price'] = hours * chips * price
    return result
