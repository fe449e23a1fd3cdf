"""What the presets of ModernBERT's architecture share: its shape, and its recipe."""

from __future__ import annotations

from typing import Any

from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)


def shape(num_layers: int, hidden_size: int, intermediate_size: int, **others: Any) -> ModelConfig:
    """Return an encoder of ModernBERT with heads of 64, but for `others`.

    Dropout is that of training: 0.1 on attention's output, and nowhere else.
    """
    settings: dict[str, Any] = {
        'vocab_size': 50368,
        'num_heads': hidden_size // 64,
        'max_position': 8192,
        'type_vocab_size': 0,
        'hidden_act': 'gelu_erf',
        'hidden_dropout': 0.0,
        'attention_dropout': 0.0,
        'attention_output_dropout': 0.1,
        'layer_norm_eps': 1e-5,
        'family': 'modernbert',
        'norm': 'pre',
        'use_bias': False,
        'positions': 'rotary',
        'local_window': 64,
        'feed_forward': 'geglu',
        'initialization': 'full_megatron',
    }
    return ModelConfig(
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        **settings | others,
    )


def run(
    name: str,
    model: ModelConfig,
    peak_lr: float,
    batch: tuple[int, int],
    tokens: tuple[float, float, float],
    **optimizer: Any,
) -> PretrainConfig:
    """Return a run of the first phase: rows of 1,024 tokens, a constant rate after warm-up.

    Args:
      name: the preset's.
      model: the encoder.
      peak_lr: the rate.
      batch: rows of the first steps and of those at the end; it grows in multiples of the first.
      tokens: of the whole phase, of the rate's warm-up, and of the batch's growth.
      optimizer: settings that are not those of ModernBERT's base model.
    """
    first, whole = batch
    total, warmup, growth = tokens
    # Each size is kept for as many steps as the others.
    sizes = first * sum(range(1, whole // first))
    each = round(growth / (1024 * sizes))
    phase = Phase(
        seq_len=1024,
        steps=round(
            (total - growth) / (1024 * whole) + growth / (1024 * sizes) * (whole // first - 1)
        ),
        batch_size=whole,
        batch_warmup_from=first,
        batch_warmup_steps=each,
    )
    settings: dict[str, Any] = {
        'algorithm': 'stable_adamw',
        'schedule': 'constant',
        'warmup_steps': _steps(warmup / 1024, first, each, whole),
        'b2': 0.98,
        'decay': 'fully_decoupled',
        'weight_decay': 1e-5,
        'clip_norm': None,
    }
    return PretrainConfig(
        name=name,
        model=model,
        phases=(phase,),
        optimizer=OptimizerConfig(peak_lr=peak_lr, **settings | optimizer),
        runtime=RuntimeConfig(compute_dtype='bfloat16', accumulation=whole // first),
    )


def _steps(rows: float, first: int, each: int, whole: int) -> int:
    """Return how many steps read so many rows: `each` of `first` rows, of twice as many, ..."""
    steps = 0.0
    for size in range(first, whole, first):
        if rows <= each * size:
            return round(steps + rows / size)
        steps, rows = steps + each, rows - each * size
    return round(steps + rows / whole)


def mmbert(name: str, hidden_size: int) -> PretrainConfig:
    """Return mmBERT's first phase for an encoder of a width."""
    model = shape(22, hidden_size, 1152, vocab_size=256_000)
    differing = {'b2': 0.95, 'eps': 1e-8, 'weight_decay': 8e-5}
    return run(name, model, 8e-4, (768, 4608), (2e12, 3e9, 60e9), **differing)
