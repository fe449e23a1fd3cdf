r"""ALBERT-base, version 1 (12 layers, H=768, E=128): 11,683,584 parameters with its pooler.

    bert-train-vocab --model=unigram --vocab_size=30000 --input=GLOB --output=DIR
    bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
        --objective=sop --ngram=3
    bert-pretrain --config=albert_base --data=records512 --workdir=DIR

11,813,810 in pre-training. One block is gone through twelve times: sharing saves memory, and no
FLOPs (bert_jax/costs/flops.py).
Recipe: google-research/albert run_pretraining.py: LAMB without bias correction, rate 1.76e-3, 4,096
rows a step, 125,000 steps of which 3,125 warm up, decay 0.01, rows of 512 tokens, a tenth of
them shorter. Dropout 0.1, as in
version 1; version 2 has none (--set model.hidden_dropout=0 --set model.attention_dropout=0) and
10 million steps.
Hardware: none of these runs has been made here; a batch of 4,096 wants runtime.accumulation on
less than a pod.
"""

from __future__ import annotations

from typing import Any

from bert_jax.configs.presets.shapes import encoder
from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)


def shape(num_layers: int, hidden_size: int, **others: Any) -> ModelConfig:
    """Return an encoder of ALBERT."""
    settings = {'vocab_size': 30000, 'family': 'albert', 'embedding_size': 128, 'num_groups': 1}
    return encoder(num_layers, hidden_size, **settings, **others)


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='albert_base',
        model=shape(12, 768),
        phases=(Phase(seq_len=512, steps=125_000, batch_size=4096),),
        optimizer=OptimizerConfig('lamb_albert', 1.76e-3, warmup_steps=3125),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )
