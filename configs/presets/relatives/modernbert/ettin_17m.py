"""Ettin-17m, the encoder (Weller et al. 2025; 7 layers, H=256, F=384): 16,797,440 parameters.

16,913,600 with the masked-LM head. ModernBERT's architecture and vocabulary. Its own recipe has 1.7
trillion tokens; rate and batch here are modernbert_base's, which are not known to be Ettin's. Never
run here.
"""

from __future__ import annotations

from bert_jax.configs.presets.relatives.modernbert import run, shape
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return run('ettin_17m', shape(7, 256, 384), 8e-4, (768, 4608), (1.7e12, 3e9, 50e9))
