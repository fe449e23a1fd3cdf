r"""BERT-Large (24 layers, H=1024, A=16): 336,226,108 pre-training parameters (the paper's 340M).

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
        --max_predictions=76
    bert-pretrain --config=bert_large --data=records128 --data=records512 --workdir=DIR

Recipe: paper, appendix A.2: 256 sequences a step, 900,000 steps at S=128 and 100,000 at S=512, one
schedule over both; Adam 1e-4, 10,000 steps of warm-up, linear decay, dropout 0.1.
Hardware: the paper's run took 4 days on 16 Cloud TPUs (64 chips); a step is 240.6 GFLOP a sequence
at S=128 with 20 predictions and 1019.8 at S=512 with 76 (bert_jax/costs/flops.py). The paper
reports, from 3.3 billion words, a GLUE test average of 82.1 (without WNLI) and SQuAD 1.1 dev EM/F1
of 84.1/90.9.
"""

from __future__ import annotations

import dataclasses

from bert_jax.configs.presets import bert_base
from bert_jax.configs.presets.shapes import encoder
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return dataclasses.replace(bert_base.get_config(), name='bert_large', model=encoder(24, 1024))
