"""ALBERT-xxlarge, version 1 (12 layers, H=4096, E=128): 222,595,584 parameters with its pooler.

    bert-pretrain --config=albert_xxlarge --data=records512 --workdir=DIR

223,158,450 in pre-training. Records and recipe: as for the preset albert_base, but without
dropout: in version 1 too, and in this size alone. The number of heads is transformers' default.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.relatives.albert import albert_base
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return dataclasses.replace(
        albert_base.get_config(),
        name='albert_xxlarge',
        model=albert_base.shape(12, 4096, hidden_dropout=0.0, attention_dropout=0.0),
    )
