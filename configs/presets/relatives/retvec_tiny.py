"""RETVec-tiny: the encoder of BERT-tiny (2 layers, H=128, A=2) on whole words, by their characters.

    bert-train-vocab --model=words --input=GLOB --output=DIR --nolower_case
    bert-train-retvec --tokenizer=DIR --workdir=WORDS
    bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
    bert-pretrain --config=retvec_tiny --init_from=WORDS --data=records128 --workdir=DIR

711,234 parameters as a classifier of two classes, 198,976 of them in the network of words, where
BERT-tiny has 4,386,178; 4,665,340 in pre-training, where the masked-LM head has a decoder of its
own. Network: Bursztein et al. 2023 (arXiv 2302.09207), frozen as there. The encoder and its recipe
are those of the preset bert_tiny: theirs is not published.
"""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='retvec_tiny',
        model=ModelConfig(
            hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512, embedding='retvec'
        ),
        phases=(Phase(seq_len=128, steps=100_000, batch_size=256),),
        optimizer=OptimizerConfig(peak_lr=1e-3, warmup_steps=5_000),
    )
