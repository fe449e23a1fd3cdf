"""EELBERT-tiny: BERT-tiny (2 layers, H=128, A=2) without its word table.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=eelbert_tiny --data=records128 --workdir=DIR

479,362 parameters as a classifier of two classes, where BERT-tiny has 4,386,178; 4,433,468 in
pre-training, where the masked-LM head has a decoder of its own.
Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_tiny.
"""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='eelbert_tiny',
        model=ModelConfig(
            hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512, embedding='hashed'
        ),
        phases=(Phase(seq_len=128, steps=100_000, batch_size=256),),
        optimizer=OptimizerConfig(peak_lr=1e-3, warmup_steps=5_000),
    )
