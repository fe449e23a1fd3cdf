"""EELBERT-tiny: BERT-tiny (2 layers, H=128, A=2) without its word table.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=eelbert_tiny --data=records128 --workdir=DIR

479,362 parameters as a classifier of two classes, where BERT-tiny has 4,386,178; 4,433,468 in
pre-training, where the masked-LM head has a decoder of its own.
Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_tiny.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small('eelbert_tiny', encoder(2, 128, embedding='hashed'), steps=100_000, peak_lr=1e-3)
