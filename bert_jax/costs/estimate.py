"""What the shapes of a run tell before it begins: FLOPs, memory, floors, time, price.

Owns that arithmetic, from the sharding rules and the chip's figures, and the rules of thumb for
what no shape of an argument tells: gradients, activations, logits. Nothing is compiled here. A
floor is what no program can beat on these chips; all bytes are of one chip.

Which settings make a step fit is found here too. The result of a run stays as it is: neither the
model nor the batch of a step is touched, but how many sequences a chip works on at a time
(accumulation), over which chips arrays are split (fsdp), and what the backward pass recomputes
(remat).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, Phase, PretrainConfig
from bert_jax.costs import flops
from bert_jax.costs.chips import Topology
from bert_jax.costs.step_costs import count_held_bytes
from bert_jax.mesh import construction, sharding
from bert_jax.model import partition
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.model.blocks.block import make_parts
from bert_jax.model.embeddings import pad_vocab
from bert_jax.train.pretraining_program import InputKind, PretrainingSetup
from bert_jax.train.state import count_checkpoint_bytes


class Task(NamedTuple):
    """One phase of a run, on a topology.

    predictions: masked positions a sequence.
    """

    config: PretrainConfig
    phase: Phase
    predictions: int
    topology: Topology

    @property
    def setup(self) -> PretrainingSetup:
        """Return what the run trains."""
        return PretrainingSetup.from_config(self.config)

    @property
    def mesh(self) -> AbstractMesh:
        """Return the mesh of the run, as `make_abstract_mesh` makes it."""
        return make_abstract_mesh(self.config, self.topology)

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


def choose_predictions(config: PretrainConfig, given: Sequence[int]) -> list[int]:
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


def make_abstract_mesh(config: PretrainConfig, topology: Topology) -> AbstractMesh:
    """Make the mesh of a run on the topology's chips, without devices.

    UserError where the chips do not divide by the axes, or a batch does not divide over them.
    """
    runtime, chip = config.runtime, topology.chip
    device = AbstractDevice(chip.name, None, chip.platform)
    mesh = construction.describe_mesh(runtime, topology.name, topology.chips, device)
    # Raises where an axis would split nothing. What it warns of the run itself says.
    partition.list_unsplit(config.model, runtime)
    for i, phase in enumerate(config.phases):
        sharding.check_divides(
            mesh, phase.batch_size, runtime.accumulation, f'phases.{i}.batch_size'
        )
    return mesh


def count_whole_parameters(task: Task) -> float:
    """Return the bytes of the parameters that a chip computes with.

    A sharded update keeps less of them between steps.
    """
    setup = task.changed({'shard_optimizer': False}).setup
    return count_held_bytes(setup.state_shapes(task.mesh).params)


def count_state_memory(task: Task) -> dict[str, float]:
    """Return the bytes that a chip holds of a step's arguments, by the sharding rules."""
    state, batch, _ = task.setup.argument_shapes(task.inputs, task.phase.batch_size, task.mesh)
    return {
        'parameters': count_held_bytes(state.params),
        'optimizer': count_held_bytes(state.opt_state),
        'batch': count_held_bytes(batch),
    }


def analyse(task: Task) -> dict[str, Any]:
    """Return what shapes alone tell of one phase: FLOPs, bytes of the state, floors in seconds.

    memory is of one chip, checkpoint_bytes of the whole state. The floors are of a step. That of
    memory: every program reads the state and the batch once and writes the state once.
    """
    config, phase, predictions, topology = task
    chip = topology.chip
    used = count_state_memory(task)
    traffic = 2 * (used['parameters'] + used['optimizer']) + used['batch']
    shapes = task.setup.objective.list_shapes(config.encoder)
    per_sequence = flops.count_models_flops(shapes, phase.seq_len, predictions)
    per_step = per_sequence * phase.batch_size
    return {
        'seq_len': phase.seq_len,
        'batch_size': phase.batch_size,
        'batch_per_chip': phase.batch_size / topology.chips,
        'max_predictions': predictions,
        'steps': phase.steps,
        # of a batch that grows, steps of the whole one that read as much
        'whole_steps': phase.count_rows(phase.steps) / phase.batch_size,
        'flops_per_token': per_sequence / phase.seq_len,
        'flops_per_step': per_step,
        'memory': used,
        'checkpoint_bytes': count_checkpoint_bytes(task.setup.state_shapes(task.mesh)),
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
    weights = count_whole_parameters(task)

    data, fsdp, split = ((n - 1) / n for n in (mesh['data'], mesh['fsdp'], mesh['model']))
    narrow = weights * width / 4
    # Over micro-batches gradients are added up in float32 before they are sent.
    summed = narrow if runtime.accumulation == 1 else weights
    gathered = narrow if sharding.shards_update(runtime, task.mesh) else summed
    of_data = data * (summed + gathered)
    # Weights are those of one part of `fsdp`.
    of_fsdp = fsdp * mesh['fsdp'] * (summed + narrow)

    # An all-reduce of each output is a scatter and a gather.
    outputs = 0
    for part in make_parts(model):
        outputs += sum(part.shapes()[name][1] for name in part.rows)
    tokens = runtime.accumulation * task.rows * task.phase.seq_len
    of_model = 2 * 2 * split * tokens * outputs * width * model.num_layers
    return of_data + of_fsdp + of_model


def make_schedule(
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
            hours = seconds * phase['whole_steps'] / 3600
            rows.append({'step_s': seconds, 'tokens_per_s': tokens, 'hours': hours})
        hours = sum(row['hours'] for row in rows)
        result[name] = {'phases': rows, 'hours': hours, 'chip_hours': hours * chips}
        if price is not None:
            result[name]['price'] = hours * chips * price
    return result


_REMAT = ('none', 'dots', 'full')  # in the order of what they recompute
_GUESSED = ('activations', 'logits')  # parts of an estimate that are not exact


def count_kept(
    model: ModelConfig, scores: float, remat: str, width: int, scanned: bool = False
) -> float:
    """Return the bytes that a layer keeps of one token for the backward pass.

    width: bytes of an activation; scores: numbers of attention scores that are kept of a token. As
    libtpu compiles the step: with 'none' query, key, value, context, the outputs of the other
    products, probabilities, and, where layers are not scanned, masks of a byte for two dropouts and
    the probabilities'; what is between is made again. With 'dots' the products' outputs, with
    'full' the layer's input.
    """
    parts, H = make_parts(model), model.hidden_size
    outputs = sum(part.kept() for part in parts)
    # A sub-layer's dropout has a mask for each number of its output.
    masks = 0 if scanned else len(parts) * H + scores
    return {
        'none': width * (outputs + scores) + masks,
        'dots': width * outputs,
        'full': width * H,
    }[remat]


def estimate_memory(
    task: Task, state: Mapping[str, float] | None = None, weights: float | None = None
) -> dict[str, float]:
    """Estimate what a step takes on one chip: {part: bytes}.

    Raises UserError where the batch does not divide over the chips.

    Args:
      task: a phase on a topology.
      state: its count_state_memory, where that is known already.
      weights: its count_whole_parameters likewise.
    """
    if state is None or weights is None:
        state, weights = count_state_memory(task), count_whole_parameters(task)
    config, phase, predictions, topology = task
    model, runtime, mesh = config.model, config.runtime, task.mesh.shape
    width = 2 if runtime.compute_dtype == 'bfloat16' else 4  # bytes of an activation
    tokens, split = task.rows * phase.seq_len, mesh['model']

    # What the layers keep of the tokens at hand, one layer in full where it is made again, the
    # embeddings with their norm's input in float32, and the logits in float32 and in `width`.
    scores = 0.0
    if choose_kernel(runtime, model, phase.seq_len, platform=topology.chip.platform) == 'xla':
        for number in range(model.num_layers):
            scores += sum(part.scores(phase.seq_len) for part in make_parts(model, number))
        scores /= model.num_layers
    of_all = model.num_layers * count_kept(model, scores, runtime.remat, width, runtime.scan_layers)
    if runtime.remat != 'none':
        of_all += count_kept(model, scores, 'none', width, runtime.scan_layers)
    activations = tokens * (of_all / split + (5 + width) * model.hidden_size)
    logits = task.rows * predictions * pad_vocab(model.vocab_size) * (4 + width) / split

    # A sharded update keeps a share of the weights; the step has all of them nevertheless,
    # gathered in the dtype of the arithmetic.
    gradients = weights * (2 if runtime.accumulation > 1 else 1)
    if weights > state['parameters']:
        gradients += weights * width / 4
    return {**state, 'gradients': gradients, 'activations': activations, 'logits': logits}


def find_likely_change(
    task: Task, usable: float, needs: float | None = None
) -> dict[str, Any] | None:
    """Return the least change of `runtime` after which the estimate fits `usable` bytes.

    {} where it does now; None where no change is enough. Few settings come first, then those that
    recompute least, then those that split arrays least.

    Args:
      task: the phase that may not fit.
      usable: bytes of a chip.
      needs: bytes that the compiler says it takes as it is, by which all estimates are corrected.
    """
    now = estimate_memory(task)
    guessed = sum(now[part] for part in _GUESSED)
    scale = 1.0
    if needs is not None and math.isfinite(needs):
        scale = (needs - sum(now.values()) + guessed) / guessed
    held: dict[int, tuple[dict[str, float], float]] = {}  # of each fsdp, which alone changes it
    for changes in sorted(_list_savings(task), key=_rank):
        try:
            changed = task.changed(changes)
            fsdp = changed.config.runtime.fsdp
            if fsdp not in held:
                held[fsdp] = count_state_memory(changed), count_whole_parameters(changed)
            estimated = estimate_memory(changed, *held[fsdp])
        except UserError:  # the batch does not divide so, or no batch could grow so
            continue
        total = 0.0
        for part, size in estimated.items():
            total += scale * size if part in _GUESSED else size
        if total <= usable:
            return changes
    return None


def _list_savings(task: Task) -> list[dict[str, Any]]:
    """Return all changes that save memory; {} is the first."""
    runtime, chips = task.config.runtime, task.topology.chips
    multiples = [2**i for i in range(task.phase.batch_size.bit_length())]
    choices = {
        'accumulation': [runtime.accumulation * n for n in multiples],
        # Powers of two alone: they divide most topologies and the widths of most models.
        'fsdp': [runtime.fsdp * n for n in multiples if runtime.fsdp * n <= chips],
        'remat': _REMAT[_REMAT.index(runtime.remat) :],
    }
    now = dataclasses.asdict(runtime)
    savings = []
    for values in itertools.product(*choices.values()):
        changes = dict(zip(choices, values, strict=True))
        savings.append({name: value for name, value in changes.items() if value != now[name]})
    return savings


def _rank(changes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what changes are sorted by: the least first."""
    remat = _REMAT.index(changes.get('remat', 'none'))
    return len(changes), remat, changes.get('fsdp', 1), changes.get('accumulation', 1)


def format_settings(changes: Mapping[str, Any]) -> str:
    """Return changes of `runtime` as flags: '--set runtime.fsdp=4 --set runtime.remat=full'."""
    return ' '.join(f'--set runtime.{name}={value}' for name, value in changes.items())
