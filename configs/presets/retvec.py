"""RETVec (Bursztein et al. 2023): whole words, by a small network from their characters."""

from __future__ import annotations

from bert_jax.configs.presets.bert import make_encoder, make_small_run
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def retvec_tiny() -> PretrainConfig:
    """Return the encoder of BERT-tiny (2 layers, H=128, A=2) on whole words, by their characters.

        bert-train-vocab --model=words --input=GLOB --output=DIR --nolower_case
        bert-pretrain retvec --tokenizer=DIR --workdir=WORDS
        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=retvec_tiny --init_from=WORDS --data=records128 --workdir=DIR

    711,234 parameters as a classifier of two classes, 198,976 of them in the network of words,
    where BERT-tiny has 4,386,178; 4,665,340 in pre-training, where the masked-LM head has a decoder
    of its own. Network: Bursztein et al. 2023 (arXiv 2302.09207), frozen as there. The encoder and
    its recipe are those of the preset bert_tiny: theirs is not published.
    """
    return make_small_run(
        'retvec_tiny', make_encoder(2, 128, embedding='retvec'), steps=100_000, peak_lr=1e-3
    )


def make_word_run() -> PretrainConfig:
    """Return how the network of words is trained: `bert-pretrain retvec` begins with it.

        bert-pretrain retvec --tokenizer=DIR --workdir=DIR --set phases.0.steps=N

    Published with the code of RETVec (google-research/retvec training/configs/train_full.json and
    train_tf_retvec_models.py): Adam, 1,024 words a step, 350 x 5,000 steps, warm-up over the first
    tenth, then a cosine. A row is the 16 characters of a word. On a CPU take fewer steps:
    --set phases.0.steps=N --set optimizer.warmup_steps=M.
    """
    return PretrainConfig(
        name='words',
        model=ModelConfig(embedding='retvec'),
        phases=(Phase(seq_len=16, steps=1_750_000, batch_size=1024),),
        optimizer=OptimizerConfig(
            algorithm='adamw',
            peak_lr=1e-4,
            schedule='cosine',
            warmup_steps=175_000,
            eps=1e-7,  # of Keras
            weight_decay=0.0,
            clip_norm=None,
        ),
    )
