"""ALBERT-xlarge, version 1 (24 layers, H=2048, E=128): 58,724,864 parameters with its pooler.

    bert-pretrain --config=albert_xlarge --data=records512 --workdir=DIR

59,021,490 in pre-training. Records and recipe: as for the preset albert_base. The number of
heads is written down from memory.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.relatives.albert import albert_base
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return dataclasses.replace(
        albert_base.get_config(),
        name='albert_xlarge',
        model=albert_base.shape(24, 2048, num_heads=16),
    )
