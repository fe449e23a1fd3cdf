"""What a step takes of a chip's memory by estimate, and which settings make it fit.

Owns the rules of thumb for what no shape of an argument tells: gradients, activations, logits. The
result of a run stays as it is: neither the model nor the batch of a step is touched, but how many
sequences a chip works on at a time (accumulation), over which chips arrays are split (fsdp), and
what the backward pass recomputes (remat).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.costs import plan
from bert_jax.costs.plan import Task
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.model.blocks.block import parts_of
from bert_jax.model.embeddings import padded_vocab

_REMAT = ('none', 'dots', 'full')  # in the order of what they recompute
_GUESSED = ('activations', 'logits')  # parts of an estimate that are not exact


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


def estimate(
    task: Task, state: Mapping[str, float] | None = None, weights: float | None = None
) -> dict[str, float]:
    """Estimate what a step takes on one chip: {part: bytes}.

    Raises UserError where the batch does not divide over the chips.

    Args:
      task: a phase on a topology.
      state: its plan.state_memory, where that is known already.
      weights: its plan.whole_parameters likewise.
    """
    if state is None or weights is None:
        state, weights = plan.state_memory(task), plan.whole_parameters(task)
    config, phase, predictions, topology = task
    model, runtime, mesh = config.model, config.runtime, task.mesh.shape
    width = 2 if runtime.compute_dtype == 'bfloat16' else 4  # bytes of an activation
    tokens, split = task.rows * phase.seq_len, mesh['model']

    # What the layers keep of the tokens at hand, one layer in full where it is made again, the
    # embeddings with their norm's input in float32, and the logits in float32 and in `width`.
    scores = 0.0
    if choose_kernel(runtime, model, phase.seq_len, platform=topology.chip.platform) == 'xla':
        blocks = [parts_of(model, number) for number in range(model.num_layers)]
        of_blocks = sum(part.scores(phase.seq_len) for parts in blocks for part in parts)
        scores = of_blocks / model.num_layers
    of_all = model.num_layers * kept(model, scores, runtime.remat, width, runtime.scan_layers)
    if runtime.remat != 'none':
        of_all += kept(model, scores, 'none', width, runtime.scan_layers)
    activations = tokens * (of_all / split + (5 + width) * model.hidden_size)
    logits = task.rows * predictions * padded_vocab(model.vocab_size) * (4 + width) / split

    # A sharded update keeps a share of the weights; the step has all of them nevertheless,
    # gathered in the dtype of the arithmetic.
    gradients = weights * (2 if runtime.accumulation > 1 else 1)
    if weights > state['parameters']:
        gradients += weights * width / 4
    return {**state, 'gradients': gradients, 'activations': activations, 'logits': logits}


def likely_change(task: Task, usable: float, needs: float | None = None) -> dict[str, Any] | None:
    """Return the least change of `runtime` after which the estimate fits `usable` bytes.

    {} where it does now; None where no change is enough. Few settings come first, then those that
    recompute least, then those that split arrays least.

    Args:
      task: the phase that may not fit.
      usable: bytes of a chip.
      needs: bytes that the compiler says it takes as it is, by which all estimates are corrected.
    """
    now = estimate(task)
    guessed = sum(now[part] for part in _GUESSED)
    scale = 1.0
    if needs is not None and math.isfinite(needs):
        scale = (needs - sum(now.values()) + guessed) / guessed
    held: dict[int, tuple[dict[str, float], float]] = {}  # of each fsdp, which alone changes it
    for changes in sorted(_savings(task), key=_order):
        try:
            changed = task.changed(changes)
            fsdp = changed.config.runtime.fsdp
            if fsdp not in held:
                held[fsdp] = plan.state_memory(changed), plan.whole_parameters(changed)
            estimated = estimate(changed, *held[fsdp])
        except UserError:  # the batch does not divide so, or no batch could grow so
            continue
        total = 0.0
        for part, size in estimated.items():
            total += scale * size if part in _GUESSED else size
        if total <= usable:
            return changes
    return None


def _savings(task: Task) -> list[dict[str, Any]]:
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


def _order(changes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what changes are sorted by: the least first."""
    remat = _REMAT.index(changes.get('remat', 'none'))
    return len(changes), remat, changes.get('fsdp', 1), changes.get('accumulation', 1)


def settings(changes: Mapping[str, Any]) -> str:
    """Return changes of `runtime` as flags: '--set runtime.fsdp=4 --set runtime.remat=full'."""
    return ' '.join(f'--set runtime.{name}={value}' for name, value in changes.items())
