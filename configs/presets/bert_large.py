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

from bert_jax.configs.schema import (
    ModelConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='bert_large',
        model=ModelConfig(hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096),
        phases=(
            Phase(seq_len=128, steps=900_000, batch_size=256),
            Phase(seq_len=512, steps=100_000, batch_size=256),
        ),
        optimizer=OptimizerConfig(peak_lr=1e-4, warmup_steps=10_000),
        runtime=RuntimeConfig(compute_dtype='bfloat16'),
    )
