"""What the log says of a step: memory, rates, model FLOPs and their share of the devices' peak.

Owns the arithmetic from the work of steps and their time to those figures. Counts come from
flops.py, peaks from chips.py, bytes from memory.py; it must not know where steps come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from bert_jax.costs import chips, memory
from bert_jax.train.metrics_accumulator import Work


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
        """Return memory.line of a compiled step, whose bytes are noted."""
        self.memory_bytes = memory.of_step(program, jax.default_backend())['total']
        return memory.line(program, state, batch)

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
            if peak := chips.peak_flops(device.device_kind):
                rates['mfu'] = per_device / peak
        if (stats := device.memory_stats()) and 'peak_bytes_in_use' in stats:
            rates['memory_gib'] = stats['peak_bytes_in_use'] / memory.GIB
        return rates
