"""UNO-EELBERT: EELBERT-tiny with a feed-forward part of 128 in place of 512.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=uno_eelbert --data=records128 --workdir=DIR

281,986 parameters as a classifier of two classes; 312,250 without a classifier but with the bias of
the masked-LM head, which makes the 1.2 MB of the paper; 4,236,092 in pre-training.
Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_tiny.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small(
        'uno_eelbert',
        encoder(2, 128, intermediate_size=128, embedding='hashed'),
        steps=100_000,
        peak_lr=1e-3,
    )
