r"""BERT-Base (12 layers, H=768, A=12): 110,106,428 pre-training parameters (the paper's 110M).

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-preprocess --input=GLOB --tokenizer=DIR --output=records512 --seq_len=512 \
        --max_predictions=76
    bert-pretrain --config=bert_base --data=records128 --data=records512 --workdir=DIR

Recipe: paper, appendix A.2: 256 sequences a step, 900,000 steps at S=128 and 100,000 at S=512, one
schedule over both; Adam 1e-4, 10,000 steps of warm-up, linear decay, dropout 0.1.
Hardware: the paper's run took 4 days on 4 Cloud TPUs (16 chips); a step is 69.9 GFLOP a sequence at
S=128 with 20 predictions and 300.9 at S=512 with 76 (bert_jax/costs/flops.py). The paper reports,
from 3.3 billion words, a GLUE test average of 79.6 (without WNLI) and SQuAD 1.1 dev EM/F1 of
80.8/88.5.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='bert_base',
        model=encoder(12, 768),
        phases=(
            Phase(seq_len=128, steps=900_000, batch_size=256),
            Phase(seq_len=512, steps=100_000, batch_size=256),
        ),
        optimizer=OptimizerConfig(peak_lr=1e-4, warmup_steps=10_000),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )
