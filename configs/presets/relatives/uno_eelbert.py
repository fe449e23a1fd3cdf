"""UNO-EELBERT: EELBERT-tiny with a feed-forward part of 128 in place of 512.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=uno_eelbert --data=records128 --workdir=DIR

281,986 parameters as a classifier of two classes; 312,250 without a classifier but with the bias of
the masked-LM head, which makes the 1.2 MB of the paper; 4,236,092 in pre-training.
Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_tiny.
"""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='uno_eelbert',
        model=ModelConfig(
            hidden_size=128, num_layers=2, num_heads=2, intermediate_size=128, embedding='hashed'
        ),
        phases=(Phase(seq_len=128, steps=100_000, batch_size=256),),
        optimizer=OptimizerConfig(peak_lr=1e-3, warmup_steps=5_000),
    )
