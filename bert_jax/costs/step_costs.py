"""What a train step takes of the devices: memory, rates, model FLOPs and their share of the peak.

Owns the split of the compiler's totals, and the arithmetic from the work of steps and their time to
the figures of a log line. Counts come from flops.py, peaks from chips.py. Must not know what was
compiled, for where, or where steps come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bert_jax.costs import chips
from bert_jax.train.metrics_accumulator import Work

MIB, GIB = 2**20, 2**30


def count_held_bytes(tree: Any) -> int:
    """Return the bytes that one device holds of a tree of arrays, by their shardings.

    An array of numpy has none: a single device holds it whole.
    """
    total = 0
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, np.ndarray):
            total += leaf.nbytes
        else:
            shard = leaf.sharding.shard_shape(leaf.shape)
            total += math.prod(shard) * leaf.dtype.itemsize
    return total


def measure_step(program: jax.stages.Compiled, platform: str) -> dict[str, int]:
    """Return {use: bytes} on one device as the compiler counts; 'total' is the peak.

    platform: 'cpu', 'gpu' or 'tpu'. Outputs that are written over arguments count once. libtpu's
    sum of temporaries counts bytes that are used one after the other twice, by up to a sixth of all
    at the edge of a v5e's memory, and it refuses a step by its peak; of a CPU's the peak leaves
    temporaries out.
    """
    stats = program.memory_analysis()
    if stats is None:
        raise NotImplementedError(
            f'the compiler for {platform} does not tell what memory a program takes'
        )
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    # What is written over an argument is among the outputs and the arguments: counted once.
    arrays = arguments + outputs - stats.alias_size_in_bytes
    # Of a TPU the peak is what counts: what the temporaries take of it is what the rest leaves.
    temporary = stats.temp_size_in_bytes
    if platform == 'tpu':
        temporary = stats.peak_memory_in_bytes - arrays
    program_size = stats.generated_code_size_in_bytes
    return {
        'arguments': arguments,
        'outputs': outputs,
        'outputs_in_place': stats.alias_size_in_bytes,
        'temporary': temporary,
        'program': program_size,
        'total': arrays + temporary + program_size,
    }


def format_memory(program: jax.stages.Compiled, state: Any, batch: Any) -> str:
    """Return a log line on a step's memory on one device, with the device's total if known.

    state, batch: as given to the step.
    """
    # memory_stats is None on a CPU.
    used = measure_step(program, jax.default_backend())
    limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
    of_limit = f' of {format_bytes(limit)}' if limit else ''
    params = count_held_bytes((state.params, state.frozen))
    return (
        f'on each of {jax.device_count()} device(s): parameters {format_bytes(params)},'
        f' optimizer {format_bytes(count_held_bytes(state.opt_state))},'
        f' batch {format_bytes(count_held_bytes(batch))}, activations and workspace'
        f' {format_bytes(used["temporary"])}: {format_bytes(used["total"])} in all{of_limit}'
    )


def format_bytes(count: float) -> str:
    """Return a number of bytes in words: in MiB, or in GiB from a quarter of one on."""
    if abs(count) >= GIB / 4:
        return f'{count / GIB:.2f} GiB'
    return f'{count / MIB:.1f} MiB'


@dataclass
class StepCosts:
    """What the steps of one training take of the devices (see loop.train_steps).

    Attributes:
      flops: the model FLOPs of one row of some tokens, forward and backward; None where they
      are not counted, and figures leave them out.
      memory_bytes: what the compiled step that `memory` was given takes on one device; None
      before.
      sizes: how many examples of each batch count, in the order of the steps; None where all do.
    """

    flops: Callable[[int], float] | None
    memory_bytes: int | None = None
    sizes: Iterator[int] | None = None

    def memory(self, program: jax.stages.Compiled, state: Any, batch: Any) -> str:
        """Return format_memory of a compiled step, whose bytes are noted."""
        self.memory_bytes = measure_step(program, jax.default_backend())['total']
        return format_memory(program, state, batch)

    def work(self, batch: Mapping[str, Any]) -> Work:
        """Return the work of the next batch: input_ids [examples, (rows of one,) tokens]."""
        # Choices have three axes: an example is several rows of the encoder, and FLOPs are of rows.
        examples, *rows, length = batch['input_ids'].shape
        if self.sizes is not None:
            examples = next(self.sizes)
        count = examples * math.prod(rows)
        flops = count * self.flops(length) if self.flops else 0
        return Work(examples, count * length, flops)

    def rates(self, work: Work, seconds: float) -> dict[str, float]:
        """Return figures of steps that do `work` in `seconds`, over all devices of the run.

        sequences_per_s: examples; tokens_per_s (padding counts); where FLOPs are known
        model_tflops, 10^12 FLOP/s for each device, and mfu, their share of the device's bfloat16
        peak, where that is known; memory_gib: the most that one device of this process has held,
        where it says so.
        """
        device = jax.local_devices()[0]

        # Rates first, for they need nothing but a clock; then what needs counted FLOPs; then what
        # only some devices tell.
        rates = {'sequences_per_s': work.examples / seconds, 'tokens_per_s': work.tokens / seconds}
        if work.flops:
            per_device = work.flops / seconds / jax.device_count()
            rates['model_tflops'] = per_device / 1e12
            peak = chips.find_peak_flops(device.device_kind)
            if peak:
                rates['mfu'] = per_device / peak
        stats = device.memory_stats()
        if stats and 'peak_bytes_in_use' in stats:
            rates['memory_gib'] = stats['peak_bytes_in_use'] / GIB
        return rates
