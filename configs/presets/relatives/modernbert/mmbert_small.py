"""mmBERT-small, first phase (Marone et al. 2025; 22 layers, H=384, F=1152): 140,493,696 parameters.

140,897,536 with the masked-LM head. ModernBERT's architecture with a vocabulary of 256,000 entries.
Recipe: its repository's configs: rate 8e-4, batch 4,608, 2 trillion tokens on 60 languages at
first; launch/recipes/mmbert.sh has the three phases. Never run here.
"""

from __future__ import annotations

from bert_jax.configs.presets.relatives.modernbert import mmbert
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return mmbert('mmbert_small', 384)
