"""EELBERT-mini: BERT-mini (4 layers, H=256, A=4) without its word table.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=eelbert_mini --data=records128 --workdir=DIR

3,357,442 parameters as a classifier of two classes, where BERT-mini has 11,171,074; 11,267,900 in
pre-training, where the masked-LM head has a decoder of its own.
Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_mini.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small('eelbert_mini', encoder(4, 256, embedding='hashed'), steps=200_000, peak_lr=7e-4)
