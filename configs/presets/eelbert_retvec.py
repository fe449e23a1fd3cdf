"""EELBERT (Cohn et al. 2023) and RETVec (Bursztein et al. 2023): vectors computed from spelling."""

from __future__ import annotations

from bert_jax.configs.presets.bert import make_encoder, make_small_run
from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def eelbert_mini() -> PretrainConfig:
    """Return EELBERT-mini: BERT-mini (4 layers, H=256, A=4) without its word table.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=eelbert_mini --data=records128 --workdir=DIR

    3,357,442 parameters as a classifier of two classes, where BERT-mini has 11,171,074; 11,267,900
    in pre-training, where the masked-LM head has a decoder of its own.

    Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_mini.
    """
    return make_small_run(
        'eelbert_mini', make_encoder(4, 256, embedding='hashed'), steps=200_000, peak_lr=7e-4
    )


def eelbert_tiny() -> PretrainConfig:
    """Return EELBERT-tiny: BERT-tiny (2 layers, H=128, A=2) without its word table.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=eelbert_tiny --data=records128 --workdir=DIR

    479,362 parameters as a classifier of two classes, where BERT-tiny has 4,386,178; 4,433,468 in
    pre-training, where the masked-LM head has a decoder of its own.

    Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_tiny.
    """
    return make_small_run(
        'eelbert_tiny', make_encoder(2, 128, embedding='hashed'), steps=100_000, peak_lr=1e-3
    )


def uno_eelbert() -> PretrainConfig:
    """Return UNO-EELBERT: EELBERT-tiny with a feed-forward part of 128 in place of 512.

        bert-preprocess --input=GLOB --tokenizer=DIR --output=records128 --seq_len=128
        bert-pretrain --config=uno_eelbert --data=records128 --workdir=DIR

    281,986 parameters as a classifier of two classes; 312,250 without a classifier but with the
    bias of the masked-LM head, which makes the 1.2 MB of the paper; 4,236,092 in pre-training.

    Shape: Cohn et al. 2023 (arXiv 2310.20144). Recipe: that of the preset bert_tiny.
    """
    return make_small_run(
        'uno_eelbert',
        make_encoder(2, 128, intermediate_size=128, embedding='hashed'),
        steps=100_000,
        peak_lr=1e-3,
    )


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
