"""The quickstart's presets: its pre-training and its fine-tuning, for two cores."""

from __future__ import annotations

from bert_jax.configs.presets.bert import make_encoder
from bert_jax.configs.schema import (
    FinetuneConfig,
    OptimizerConfig,
    Phase,
    PretrainConfig,
    RuntimeConfig,
)

SEQ_LEN = 32


def quickstart() -> PretrainConfig:
    """Return the quickstart's run: BERT-Tiny, vocabulary of 8,000, five minutes on 2 CPU cores.

        bash launch/quickstart.sh

    2 layers, H=128, S=32; no dropout, for the run sees each text a few times only. What else
    departs from the paper is there to leave, within minutes, the plateau on which BERT knows no
    more than how frequent words are:
    - short rows, so that there are few positions to learn to look at, and more of them for the same
      tokens;
    - initializer_range 0.05, which gives H=128 the signal that 0.02 gives H=768 (it goes with the
      root of the width);
    - an eps far below the gradients of queries and keys, which are about 4e-6 at the start; b2
      0.98;
    - a high learning rate on small batches, because on so few tokens the number of steps decides.
    """
    return PretrainConfig(
        name='quickstart',
        model=make_encoder(
            2,
            128,
            vocab_size=8000,
            max_position=SEQ_LEN,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.05,
        ),
        phases=(Phase(seq_len=SEQ_LEN, steps=5400, batch_size=32),),
        optimizer=OptimizerConfig(
            peak_lr=1.2e-3, warmup_steps=200, schedule='linear', b2=0.98, eps=1e-7
        ),
        runtime=RuntimeConfig(
            log_every=100, eval_every=900, eval_batches=64, checkpoint_every=1800
        ),
    )


def quickstart_finetune() -> FinetuneConfig:
    """Return a fine-tuning of the same number of steps, whatever the size of the training set.

    The learning rate is one for both starting points, the pre-trained weights and random ones.
    """
    return FinetuneConfig(
        name='quickstart_finetune',
        max_seq_length=32,
        batch_size=16,
        steps=200,
        optimizer=OptimizerConfig(
            peak_lr=5e-4, warmup_steps=0, schedule='linear', algorithm='adamw'
        ),
        runtime=RuntimeConfig(keep_checkpoints=1),
    )
