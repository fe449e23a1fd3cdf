"""What a log line says of speed: sequences and model FLOP/s, their share of the peak, and memory.

Owns the arithmetic from the time of a step to those figures. Counts come from flops.py, peaks from
chips.py; it must not know where steps come from.
"""

from __future__ import annotations

import jax

from bert_jax.costs import chips, flops
from bert_jax.costs.memory import GIB
from configs.schema import ModelConfig


def figures(
    model: ModelConfig, seq_len: int, predictions: int, batch_size: int, step_ms: float
) -> dict[str, float]:
    """Figures of steps that take `step_ms` milliseconds each, over all devices of the run.

    sequences_per_s, tokens_per_s (padding counts); model_tflops: 10^12 FLOP/s for each device
    (flops.training_flops); mfu: their share of the device's bfloat16 peak, where that is known;
    memory_gib: the most that one device of this process has held, where it says so.
    """
    rate = 1e3 * batch_size / step_ms
    device = jax.local_devices()[0]
    per_device = (
        rate * flops.training_flops_per_sequence(model, seq_len, predictions) / jax.device_count()
    )
    shown = {'sequences_per_s': rate, 'tokens_per_s': rate * seq_len}
    shown['model_tflops'] = per_device / 1e12
    if peak := chips.peak_flops(device.device_kind):
        shown['mfu'] = per_device / peak
    if (memory := device.memory_stats()) and 'peak_bytes_in_use' in memory:
        shown['memory_gib'] = memory['peak_bytes_in_use'] / GIB
    return shown
