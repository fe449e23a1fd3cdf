"""The small shapes that the tests share: fewer different shapes are fewer compilations."""

from __future__ import annotations

from typing import Any

from bert_jax.configs import schema


def tiny_config(**changes: Any) -> schema.ModelConfig:
    """Returns a model of two blocks, 16 wide, with `changes` of its settings."""
    shape = {
        'vocab_size': 100,
        'hidden_size': 16,
        'num_layers': 2,
        'num_heads': 2,
        'intermediate_size': 32,
        'max_position': 64,
    }
    return schema.ModelConfig(**(shape | changes))
