"""The recipe by which the network of words is trained: bert-pretrain retvec begins with it.

    bert-pretrain retvec --tokenizer=DIR --workdir=DIR --set phases.0.steps=N

Published with the code of RETVec (google-research/retvec training/configs/train_full.json and
train_tf_retvec_models.py): Adam, 1,024 words a step, 350 x 5,000 steps, warm-up over the first
tenth, then a cosine. On a CPU take fewer: --set phases.0.steps=N --set optimizer.warmup_steps=M.
"""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig


def recipe() -> PretrainConfig:
    """Return the run described above; a row is the 16 characters of a word."""
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
