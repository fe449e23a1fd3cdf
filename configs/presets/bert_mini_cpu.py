r"""BERT-Mini on 2 CPU cores, in about an hour, on English Wikipedia: 11,267,900 parameters.

    bert-preprocess --input=wiki_en.txt --segment --tokenizer=vocab \
        --output=records32 --seq_len=32 --max_predictions=5 --dupe_factor=1
    bert-preprocess --input=wiki_en.txt --segment --tokenizer=vocab \
        --output=records256 --seq_len=256 --max_predictions=39 --dupe_factor=1
    bert-pretrain --config=bert_mini_cpu --data=records32 --data=records256 \
        --workdir=DIR

The recipe of configs/presets/quickstart.py at twice the width: most steps on short rows, where
context is learnt soonest, then a few on rows of 256, so that SQuAD finds its positions trained.
Two things had to differ before it left the unigram plateau: initializer_range is 1 / sqrt(H), at
which no layer makes its input smaller, and the learning rate is a third: with 160 predictions a
step over 30,522 words the gradient is mostly noise, and what Adam makes of noise grows with the
rate (at 1e-3 the loss after 700 steps was that of 4e-4 after 400; at 2e-3 on half the batch it
stayed above both). What was measured is in docs/results.md.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='bert_mini_cpu',
        model=encoder(
            4,
            256,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.0625,
        ),
        phases=(
            Phase(seq_len=32, steps=5000, batch_size=32),
            Phase(seq_len=256, steps=500, batch_size=8),
        ),
        optimizer=OptimizerConfig(
            peak_lr=4e-4, warmup_steps=100, schedule='linear', b2=0.98, eps=1e-8
        ),
        runtime=RuntimeConfig(log_every=100, eval_every=500, eval_batches=50, checkpoint_every=500),
    )
