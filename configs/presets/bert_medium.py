"""BERT-Medium (8 layers, H=512, A=8): 41,668,412 pre-training parameters.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=bert_medium --data=records128 --workdir=DIR

One phase at S=128: 128 million sequences, 22.0 GFLOP each (bert_jax/costs/flops.py): one
accelerator.
Shape: google-research/bert, README, "smaller BERT models" (H/64 heads, feed-forward 4H). Their
recipe is not published: the optimizer is the paper's (appendix A.2) with a higher peak for the
smaller width. On a CPU take fewer steps: --steps=N, of which the same share warms up.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small('bert_medium', encoder(8, 512), steps=500_000, peak_lr=3e-4, warmup_steps=10_000)
