"""RETVec-tiny: the encoder of BERT-tiny (2 layers, H=128, A=2) on whole words, by their characters.

    bert-train-vocab --model=words --input=GLOB --output=DIR --nolower_case
    bert-pretrain retvec --tokenizer=DIR --workdir=WORDS
    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=retvec_tiny --init_from=WORDS --data=records128 --workdir=DIR

711,234 parameters as a classifier of two classes, 198,976 of them in the network of words, where
BERT-tiny has 4,386,178; 4,665,340 in pre-training, where the masked-LM head has a decoder of its
own. Network: Bursztein et al. 2023 (arXiv 2302.09207), frozen as there. The encoder and its recipe
are those of the preset bert_tiny: theirs is not published.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder, small
from bert_jax.configs.schema import PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return small('retvec_tiny', encoder(2, 128, embedding='retvec'), steps=100_000, peak_lr=1e-3)
