"""BERT-Tiny (2 layers, H=128, A=2): 4,433,468 pre-training parameters.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=bert_tiny --data=records128 --workdir=DIR

One phase at S=128: 25.6 million sequences, 0.8 GFLOP each (bert_jax/costs/flops.py): any hardware.
Shape: google-research/bert, README, "smaller BERT models" (H/64 heads, feed-forward 4H). Their
recipe is not published: the optimizer is the paper's (appendix A.2) with a higher peak for the
smaller width. On a CPU take fewer steps: --steps=N, of which the same share warms up.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small('bert_tiny', encoder(2, 128), steps=100_000, peak_lr=1e-3)
