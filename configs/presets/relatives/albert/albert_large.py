"""ALBERT-large, version 1 (24 layers, H=1024, E=128): 17,683,968 parameters with its pooler.

    bert-pretrain --config=albert_large --data=records512 --workdir=DIR

17,847,474 in pre-training. Records and recipe: as for the preset albert_base. The number of
heads is written down from memory.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.relatives.albert import albert_base
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return dataclasses.replace(
        albert_base.get_config(), name='albert_large', model=albert_base.shape(24, 1024)
    )
