"""RoBERTa-large (24 layers, H=1024, A=16): 355,359,744 parameters with its pooler.

    bert-pretrain --config=roberta_large --data=records512 --workdir=DIR

356,461,657 in pre-training, where no loss reads the 1,049,600 of the pooler.
Records: as for the preset roberta_base. Recipe: that of the paper's final models (Liu et al. 2019,
Table 9), 8,192 rows a step, written down from memory of it.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.relatives import roberta_base
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return dataclasses.replace(
        roberta_base.get_config(),
        name='roberta_large',
        model=roberta_base.shape(24, 1024),
        optimizer=roberta_base.optimizer(peak_lr=4e-4, warmup_steps=30_000),
    )
