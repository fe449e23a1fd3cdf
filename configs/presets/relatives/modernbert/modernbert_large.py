"""ModernBERT-large, first phase (28 layers, H=1024, F=2624): 394,781,696 parameters.

395,881,664 with the masked-LM head. Recipe: AnswerDotAI/ModernBERT yamls/modernbert; its weights
began as those of modernbert_base, tiled. After 900 billion tokens the rate was lowered to 5e-5.
Hardware: 420 hours of eight H100 there; never run here.
"""

from __future__ import annotations

from bert_jax.configs.presets.relatives.modernbert import run, shape
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return run('modernbert_large', shape(28, 1024, 2624), 5e-4, (448, 4928), (1.719e12, 2e9, 10e9))
