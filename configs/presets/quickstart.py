"""The quickstart's run: BERT-Tiny, vocabulary of 8,000, S=32, about five minutes on 2 CPU cores.

    bash launch/quickstart.sh

2 layers, H=128; no dropout, for the run sees each text a few times only. What else departs from the
paper is there to leave, within minutes, the plateau on which BERT knows no more than how frequent
words are:
- short rows, so that there are few positions to learn to look at, and more of them for the same
  tokens;
- initializer_range 0.05, which gives H=128 the signal that 0.02 gives H=768 (it goes with the root
  of the width);
- an eps far below the gradients of queries and keys, which are about 4e-6 at the start; b2 0.98;
- a high learning rate on small batches, because on so few tokens the number of steps decides.
"""

from __future__ import annotations

from bert_jax.configs.presets.shapes import encoder
from bert_jax.configs.schema import OptimizerConfig, Phase, PretrainConfig, RuntimeConfig

SEQ_LEN = 32


def get_config() -> PretrainConfig:
    """Return the run described above."""
    return PretrainConfig(
        name='quickstart',
        model=encoder(
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
