"""What the presets share: encoders of BERT's proportions, and the recipe of its smaller ones."""

from __future__ import annotations

from typing import Any

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def encoder(num_layers: int, hidden_size: int, **others: Any) -> ModelConfig:
    """Return an encoder with heads of 64 and a feed-forward part 4H wide, but for `others`."""
    proportions = {'num_heads': hidden_size // 64, 'intermediate_size': 4 * hidden_size}
    return ModelConfig(num_layers=num_layers, hidden_size=hidden_size, **proportions | others)


def small(
    name: str, model: ModelConfig, steps: int, peak_lr: float, warmup_steps: int = 5_000
) -> PretrainConfig:
    """Return a run of one phase at S=128, of 256 sequences a step."""
    return PretrainConfig(
        name=name,
        model=model,
        phases=(Phase(seq_len=128, steps=steps, batch_size=256),),
        optimizer=OptimizerConfig(peak_lr=peak_lr, warmup_steps=warmup_steps),
    )
