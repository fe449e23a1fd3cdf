"""BERT-Mini (4 layers, H=256, A=4): 11,267,900 pre-training parameters.

    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=bert_mini --data=records128 --workdir=DIR

One phase at S=128: 51.2 million sequences, 3.6 GFLOP each (bert_jax/costs/flops.py): a large CPU or
any accelerator.
Shape: google-research/bert, README, "smaller BERT models" (H/64 heads, feed-forward 4H). Their
recipe is not published: the optimizer is the paper's (appendix A.2) with a higher peak for the
smaller width. On a CPU take fewer steps: --steps=N, of which the same share warms up.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small('bert_mini', encoder(4, 256), steps=200_000, peak_lr=7e-4)
