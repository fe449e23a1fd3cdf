"""Which settings of `runtime` make a run fit a topology, and which make it fast there.

Candidates are ordered by an estimate, then compiled: what counts is what the compiler says of each.
The result of a run stays as it is: neither the model nor the batch of a step is touched, but how
many sequences a chip works on at a time (accumulation), what the backward pass recomputes (remat),
and over which chips arrays are split (fsdp, model_parallel, shard_optimizer).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.costs import flops, memory, plan
from bert_jax.costs.plan import Task
from bert_jax.mesh import sharding
from bert_jax.model.blocks import attend
from bert_jax.model.blocks.block import parts_of
from bert_jax.model.embeddings import padded_vocab

_REMAT = ('none', 'dots', 'full')  # in the order of what they recompute
_GUESSED = ('activations', 'logits')  # parts of an estimate that are not exact
_HOPEFUL = 1.2  # share of a chip's memory by estimate up to which a candidate is compiled


class Estimate(NamedTuple):
    """What a step is estimated to take on one chip.

    parts: {what: bytes}; floors: {'compute', 'memory', 'interconnect': seconds a step}, with what
    remat computes again.
    """

    parts: dict[str, float]
    floors: dict[str, float]

    def time(self) -> tuple[float, float]:
        """Return seconds that order candidates: (the highest floor, the sum of all floors).

        The sum is that of a step in which nothing overlaps.
        """
        return max(self.floors.values()), sum(self.floors.values())

    def memory(self, scale: float = 1.0) -> float:
        """Return bytes in all; `scale` corrects what is guessed, as another compilation showed."""
        return sum(scale * size if name in _GUESSED else size for name, size in self.parts.items())

    def scale(self, needs: float) -> float:
        """Return the `scale` at which `memory` is what the compiler says; 1 if it says none."""
        exact = self.memory(0)
        return (needs - exact) / (self.memory() - exact) if math.isfinite(needs) else 1.0


def kept(model: ModelConfig, scores: float, remat: str, width: int, scanned: bool = False) -> float:
    """Return bytes that a layer keeps of one token for the backward pass.

    width: bytes of an activation; scores: numbers of attention scores that are kept of a token. As
    libtpu compiles the step: with 'none' query, key, value, context, the outputs of the other
    products, probabilities, and, where layers are not scanned, masks of a byte for two dropouts and
    the probabilities'; what is between is made again. With 'dots' the products' outputs, with
    'full' the layer's input.
    """
    parts, H = parts_of(model), model.hidden_size
    outputs = sum(part.kept() for part in parts)
    # A sub-layer's dropout has a mask for each number of its output.
    masks = 0 if scanned else len(parts) * H + scores
    return {
        'none': width * (outputs + scores) + masks,
        'dots': width * outputs,
        'full': width * H,
    }[remat]


# Kept, for the search asks again and again.
_analytic = functools.lru_cache(maxsize=256)(plan.analytic)


def estimate(task: Task) -> Estimate:
    """Estimate what compiling the task would tell; UserError where the batch does not divide.

    Good enough for the order in which settings are tried.
    """
    config, phase, predictions, topology = task
    model, runtime, chip = config.model, config.runtime, topology.chip
    mesh = task.mesh.shape
    # Remat and accumulation change nothing of what shapes alone tell: counted once for all of them.
    plain = {'remat': 'none', 'accumulation': task.fewest_parts}
    counted = _analytic(task.changed(plain))
    state = counted['memory']
    # A sharded update keeps a share of the weights; the step has all of them nevertheless.
    weights = _analytic(task.changed(plain | {'shard_optimizer': False}))['memory']['parameters']
    width = 2 if runtime.compute_dtype == 'bfloat16' else 4  # bytes of an activation
    tokens, split = task.rows * phase.seq_len, mesh['model']

    # Memory: what the layers keep of the tokens at hand, one layer in full where it is made again,
    # the embeddings with their norm's input in float32, and the logits in float32 and in `width`.
    fused = attend.choose(runtime, model, phase.seq_len, platform=chip.platform) != 'xla'
    blocks = [parts_of(model, number) for number in range(model.num_layers)]
    of_blocks = sum(part.scores(phase.seq_len) for parts in blocks for part in parts)
    scores = 0 if fused else of_blocks / model.num_layers
    of_all = model.num_layers * kept(model, scores, runtime.remat, width, runtime.scan_layers)
    if runtime.remat != 'none':
        of_all += kept(model, scores, 'none', width, runtime.scan_layers)
    activations = tokens * (of_all / split + (5 + width) * model.hidden_size)
    logits = task.rows * predictions * padded_vocab(model.vocab_size) * (4 + width) / split
    gradients = weights * (2 if runtime.accumulation > 1 else 1)
    if weights > state['parameters']:  # gathered, in the dtype of the arithmetic
        gradients += weights * width / 4

    # The chip's own memory: all of it is written once and read once.
    traffic = 2 * (state['parameters'] + state['optimizer'])
    traffic += 2 * runtime.accumulation * (activations + logits)
    floors = {
        'compute': counted['floor_s']['compute'] + _repeated_s(task),
        'memory': traffic / chip.hbm_bandwidth,
        'interconnect': _sent(task, mesh, weights, tokens, width) / chip.ici,
    }
    estimated = {'gradients': gradients, 'activations': activations, 'logits': logits}
    return Estimate(state | estimated, floors)


def _repeated_s(task: Task) -> float:
    """Return the seconds of what remat computes again, at the peak of all chips."""
    # Repeats of the forward pass, a third of all, of what is not kept.
    of_sequence = flops.training_flops(task.config.model, task.phase.seq_len, task.predictions)
    repeated = {
        'none': 0,
        'dots': of_sequence['attention'] / 3,
        'full': (of_sequence['layers'] + of_sequence['attention']) / 3,
    }[task.config.runtime.remat]
    topology = task.topology
    return repeated * (task.phase.batch_size / (topology.chips * topology.chip.peak_flops))


def _sent(task: Task, mesh: Mapping[str, int], weights: float, tokens: int, width: int) -> float:
    """Return the bytes that a chip sends in a step.

    Over `data` it reduces the gradients; over `fsdp` it scatters them, and gathers the parameters
    forward and backward; over `model` it reduces the outputs of a product a sub-layer, forward and
    backward.

    Args:
      task: its settings.
      mesh: {axis: chips}.
      weights: bytes of the parameters.
      tokens: that a chip works on at a time.
      width: bytes of an activation.
    """
    model, accumulation = task.config.model, task.config.runtime.accumulation
    # Of n chips in a ring each sends (n - 1) / n of an array to scatter or to gather it.
    ring = lambda n: (n - 1) / n
    of_fsdp = weights * mesh['fsdp']  # parameters of one part of `model`
    summed = sum(part.shapes()[name][1] for part in parts_of(model) for name in part.rows)
    of_layer = 2 * 2 * ring(mesh['model']) * tokens * summed * width
    return (
        2 * ring(mesh['data']) * weights
        + ring(mesh['fsdp']) * of_fsdp * (1 + 2 * accumulation * width / 4)
        + accumulation * model.num_layers * of_layer
    )


def grid(task: Task, knobs: Sequence[str]) -> Iterator[tuple[dict[str, Any], Estimate]]:
    """Yield (changes of `runtime`, estimate) for all combinations of `knobs` that divide.

    knobs: names of 'accumulation', 'remat', 'fsdp', 'model_parallel', 'shard_optimizer'.
    """
    chips, runtime = task.topology.chips, task.config.runtime
    is_sharded = sharding.shards_update(runtime, task.mesh)
    # Powers of two alone: they divide most topologies and the widths of most models. So do parts of
    # a growing batch, times the fewest that it can have.
    powers = [2**i for i in range(chips.bit_length()) if chips % 2**i == 0]
    choices = {
        'accumulation': [
            task.fewest_parts * 2**i for i in range(task.phase.batch_size.bit_length())
        ],
        'remat': _REMAT,
        'fsdp': powers,
        # Above 8 the products of one chip are narrow even in BERT-large.
        'model_parallel': [n for n in powers if n <= 8 and task.config.model.num_heads % n == 0],
        'shard_optimizer': [runtime.shard_optimizer, not is_sharded],
    }
    for values in itertools.product(*(choices[knob] for knob in knobs)):
        changes = {
            knob: value
            for knob, value in zip(knobs, values, strict=True)
            if value != getattr(runtime, knob)
        }
        try:
            yield changes, estimate(task.changed(changes))
        except UserError:  # the batch does not divide so
            continue


def tried(task: Task, changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Compile once; return changes, whether it fits, bytes needed and left, floors in s.

    None, with a warning, where there is no such mesh: nothing was compiled, another one is next.
    What the compiler fails on, or refuses without a figure, needs NaN bytes.
    """
    other = task.changed(changes)
    logging.info(
        'compiling with %s',
        ', '.join(f'{k}={v}' for k, v in changes.items()) or 'the settings given',
    )
    row = {
        'changes': changes,
        'mesh': dict(other.mesh.shape),
        'rows': other.rows,
        'remat': other.config.runtime.remat,
    }
    # What does not fit, or what this compiler cannot make, is a result too: the search goes on.
    try:
        compiled = plan.compiled(other)
    except plan.DoesNotFit as refused:
        return row | {'fits': False, 'needs': refused.needs, 'left': refused.has - refused.needs}
    except (UserError, NotImplementedError) as error:
        logging.warning('%s: left out, for it cannot be made: %s', settings(changes), error)
        return None
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition('\n')[0]
        logging.warning('%s: the compiler failed: %s', settings(changes), reason)
        return row | {'fits': False, 'needs': math.nan, 'left': math.nan}
    # The plan's floors, but for compute, to which the estimate adds what remat computes again.
    floors = compiled['floor_s'] | {'compute': estimate(other).floors['compute']}
    return row | {
        'fits': True,
        'needs': compiled['memory']['total'],
        'left': compiled['memory']['left'],
        'floor_s': floors,
        'libtpu_s': compiled['libtpu']['step_s'] if compiled['libtpu'] else None,
    }


def smallest_changes(task: Task, refused: plan.DoesNotFit, budget: int) -> list[dict[str, Any]]:
    """Compile the least changes after which a refused step fits; return rows of `tried`.

    One setting is changed, or several where one is not enough; at most `budget` rows. The estimates
    are scaled to what the compiler said of the refused step.
    """
    # One factor for all candidates: if the estimate was too low for this step, it is so for its
    # neighbours.
    scale = estimate(task).scale(refused.needs)
    rows: list[dict[str, Any]] = []
    enough: list[set[str]] = []  # settings whose change was seen to be enough
    for changes, estimated in _savings(task):
        if len(rows) == budget:
            break
        # What changes more than is enough is not asked for; nor what has no hope to fit.
        is_enough = any(changes.keys() >= fewer for fewer in enough)
        if is_enough or estimated.memory(scale) > _HOPEFUL * refused.has:
            continue
        if row := tried(task, changes):
            rows.append(row)
            if row['fits']:
                enough.append(set(changes))
    return rows


def likely_change(task: Task) -> dict[str, Any] | None:
    """Return the least change after which the estimate fits; {} if it does now, None if none."""
    # The settings as they are come first: then there is nothing to change.
    candidates = [({}, estimate(task)), *_savings(task)]
    usable = task.topology.chip.hbm_usable
    return next((changes for changes, e in candidates if e.memory() <= usable), None)


def _savings(task: Task) -> list[tuple[dict[str, Any], Estimate]]:
    """Return all changes that save memory, with estimates: few settings first, then by time."""
    # accumulation and fsdp save by their size, remat by its place in the order; None counts as 0.
    degree = lambda knob, value: _REMAT.index(value) if knob == 'remat' else value or 0
    saves = lambda knob, value: (
        degree(knob, value) > degree(knob, getattr(task.config.runtime, knob))
    )
    candidates = [
        (changes, estimated)
        for changes, estimated in grid(task, ('accumulation', 'remat', 'fsdp'))
        if changes and all(itertools.starmap(saves, changes.items()))
    ]
    return sorted(candidates, key=lambda candidate: (len(candidate[0]), candidate[1].time()))


def search(task: Task, budget: int) -> list[dict[str, Any]]:
    """Compile the `budget` settings of the shortest estimated step; return rows, best first.

    Best is what has the lowest of its highest floor and libtpu's estimate, whichever is larger,
    then the lowest sum of floors. A refusal corrects the estimate of what is left to try.
    """
    usable, scale = task.topology.chip.hbm_usable, 1.0
    knobs = ('accumulation', 'remat', 'fsdp', 'model_parallel', 'shard_optimizer')
    by_time = lambda candidate: (candidate[1].time(), candidate[1].memory())
    rows: list[dict[str, Any]] = []
    for changes, estimated in sorted(grid(task, knobs), key=by_time):
        if len(rows) == budget:
            break
        # Until a refusal has corrected the estimate, what it finds a little too large is tried too.
        if estimated.memory(scale) > usable * (_HOPEFUL if scale == 1.0 else 1.0):
            continue
        if row := tried(task, changes):
            rows.append(row)
            # Only refusals teach: a step that fits may have been estimated too high without harm.
            if not row['fits']:
                scale = max(scale, estimated.scale(row['needs']))

    # Those that fit first, by their times; those that do not by what they need.
    def rank(row: Mapping[str, Any]) -> tuple[float, ...]:
        if not row['fits']:
            return math.inf, 0.0, row['needs']
        floors = row['floor_s'].values()
        return max(row['libtpu_s'] or 0.0, *floors), sum(floors), row['needs']

    return sorted(rows, key=rank)


def settings(changes: Mapping[str, Any]) -> str:
    """Return changes of `runtime` as flags: '--set runtime.fsdp=4 --set runtime.remat=full'."""
    return ' '.join(f'--set runtime.{knob}={str(value).lower()}' for knob, value in changes.items())


def describe(row: Mapping[str, Any]) -> str:
    """Return a row of `tried` as a line of text."""
    changes = settings(row['changes']) or 'as given'
    mesh = 'x'.join(str(n) for n in row['mesh'].values())
    if not row['fits']:
        outcome = 'cannot be compiled'
        if math.isfinite(row['needs']):
            outcome = f'needs {memory.size(row["needs"])}, does not fit'
        return f'{row["rows"]:5} a chip  {row["remat"]:<5} {mesh:<10} {outcome}: {changes}'
    floors = row['floor_s']
    times = f'{1e3 * max(floors.values()):.3g} to {1e3 * sum(floors.values()):.3g} ms'
    if row['libtpu_s']:
        times += f", libtpu's estimate {1e3 * row['libtpu_s']:.3g} ms"
    return (
        f'{row["rows"]:5} a chip  {row["remat"]:<5} {mesh:<10} needs {memory.size(row["needs"])},'
        f' step {times}: {changes}'
    )
