"""ModernBERT-base, first phase (22 layers, H=768, F=1152): 149,014,272 parameters.

149,655,232 with the masked-LM head. Recipe: AnswerDotAI/ModernBERT yamls/modernbert, 1.719 trillion
tokens in packed rows of 1,024, theta 10,000 everywhere; docs/modernbert.md has the two phases on
8,192 tokens that follow. Hardware: 191 hours of eight H100 there; never run here.
"""

from __future__ import annotations

from bert_jax.configs.presets.relatives.modernbert import run, shape
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return run('modernbert_base', shape(22, 768, 1152), 8e-4, (768, 4608), (1.719e12, 3e9, 50e9))
