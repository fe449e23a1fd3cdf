"""What a log line says of speed: rates, model FLOPs and their share of the devices' peak, memory.

Owns the arithmetic from steps and seconds to those figures. Counts come from flops.py, peaks from
chips.py; it must not know where steps come from.
"""

from __future__ import annotations

import jax

from bert_jax import chips, flops
from bert_jax.memory import GIB
from configs.schema import ModelConfig


def figures(model: ModelConfig, seq_len: int, predictions: int, batch_size: int, steps: float, seconds: float) -> dict[str, float]:
    """Figures of `steps` steps in `seconds` seconds, over all devices of the run.

    sequences_per_s, tokens_per_s (padding counts), step_ms; model_tflops: 10^12 FLOP/s for each
    device (flops.training_flops); mfu: their share of the device's bfloat16 peak, where that is known;
    memory_gib: the most that one device of this process has held, where it says so.
    """
    rate = steps * batch_size / seconds
    device = jax.local_devices()[0]
    per_device = rate * flops.training_flops_per_sequence(model, seq_len, predictions) / jax.device_count()
    found = {'sequences_per_s': rate, 'tokens_per_s': rate * seq_len, 'step_ms': 1e3 * seconds / steps, 'model_tflops': per_device / 1e12}
    if peak := chips.peak_flops(device.device_kind):
        found['mfu'] = per_device / peak
    if (memory := device.memory_stats()) and 'peak_bytes_in_use' in memory:
        found['memory_gib'] = memory['peak_bytes_in_use'] / GIB
    return found
