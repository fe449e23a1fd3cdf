"""RoBERTa-base with 2,048 rows a step and 125,000 steps, as fairseq's own files train it.

    bert-pretrain --config=roberta_base_2k --data=records512 --workdir=DIR

Shape and records: those of the preset roberta_base. Recipe: facebookresearch/fairseq
examples/roberta/config/pretraining/base.yaml.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets.relatives import roberta_base
from bert_jax.configs.schema import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return dataclasses.replace(
        roberta_base.get_config(),
        name='roberta_base_2k',
        phases=(Phase(seq_len=512, steps=125_000, batch_size=2048),),
        optimizer=roberta_base.optimizer(peak_lr=5e-4, warmup_steps=10_000),
    )
