"""ALBERT (Lan et al. 2020): a narrow word table, and one block's weights for all blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)


def make_shape(num_layers: int, hidden_size: int, **others: Any) -> ModelConfig:
    """Return an encoder of ALBERT."""
    settings = {'vocab_size': 30000, 'family': 'albert', 'embedding_size': 128, 'num_groups': 1}
    return make_encoder(num_layers, hidden_size, **settings, **others)


def albert_base() -> PretrainConfig:
    r"""Return ALBERT-base, version 1 (12 layers, H=768, E=128).

    11,683,584 parameters with its pooler.

        bert-train-vocab --model=unigram --vocab_size=30000 --input=GLOB --output=DIR
        bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
            --objective=sop --ngram=3
        bert-pretrain --config=albert_base --data=records512 --workdir=DIR

    11,813,810 in pre-training. One block is gone through twelve times: sharing saves memory, and no
    FLOPs (bert_jax/costs/flops.py).

    Recipe: google-research/albert run_pretraining.py: LAMB without bias correction, rate 1.76e-3,
    4,096 rows a step, 125,000 steps of which 3,125 warm up, decay 0.01, rows of 512 tokens, a tenth
    of them shorter. Dropout 0.1, as in version 1; version 2 has none (--set model.hidden_dropout=0
    --set model.attention_dropout=0) and 10 million steps.

    Hardware: none of these runs has been made here; a batch of 4,096 wants runtime.accumulation on
    less than a pod.
    """
    return PretrainConfig(
        name='albert_base',
        model=make_shape(12, 768),
        phases=(Phase(seq_len=512, steps=125_000, batch_size=4096),),
        optimizer=OptimizerConfig('lamb_albert', 1.76e-3, warmup_steps=3125),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )


def albert_large() -> PretrainConfig:
    """Return ALBERT-large, version 1 (24 layers, H=1024, E=128).

    17,683,968 parameters with its pooler.

        bert-pretrain --config=albert_large --data=records512 --workdir=DIR

    17,847,474 in pre-training. Records and recipe: as for the preset albert_base. The number of
    heads is written down from memory.
    """
    return dataclasses.replace(albert_base(), name='albert_large', model=make_shape(24, 1024))


def albert_xlarge() -> PretrainConfig:
    """Return ALBERT-xlarge, version 1 (24 layers, H=2048, E=128).

    58,724,864 parameters with its pooler.

        bert-pretrain --config=albert_xlarge --data=records512 --workdir=DIR

    59,021,490 in pre-training. Records and recipe: as for the preset albert_base. The number of
    heads is written down from memory.
    """
    return dataclasses.replace(
        albert_base(),
        name='albert_xlarge',
        model=make_shape(24, 2048, num_heads=16),
    )


def albert_xxlarge() -> PretrainConfig:
    """Return ALBERT-xxlarge, version 1 (12 layers, H=4096, E=128).

    222,595,584 parameters with its pooler.

        bert-pretrain --config=albert_xxlarge --data=records512 --workdir=DIR

    223,158,450 in pre-training. Records and recipe: as for the preset albert_base, but without
    dropout: in version 1 too, and in this size alone. The number of heads is transformers' default.
    """
    return dataclasses.replace(
        albert_base(),
        name='albert_xxlarge',
        model=make_shape(12, 4096, hidden_dropout=0.0, attention_dropout=0.0),
    )
