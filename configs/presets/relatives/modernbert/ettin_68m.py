"""Ettin-68m, the encoder (Weller et al. 2025; 19 layers, H=512, F=768): 68,144,640 parameters.

68,457,664 with the masked-LM head. ModernBERT's architecture and vocabulary. Its own recipe has 1.7
trillion tokens; rate and batch here are modernbert_base's, which are not known to be Ettin's. Never
run here.
"""

from __future__ import annotations

from bert_jax.configs.presets.relatives.modernbert import run, shape
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return run('ettin_68m', shape(19, 512, 768), 8e-4, (768, 4608), (1.7e12, 3e9, 50e9))
