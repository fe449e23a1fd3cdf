"""The quickstart's run: BERT-Tiny on a vocabulary of 8,000, S=64, in about five minutes on 2 CPU cores.

    bash launch/quickstart.sh

2 layers, H=128; no dropout, for the run sees each text a few times only. Batch 16 and a high
learning rate, because on so few tokens the number of steps decides: batch 64 at 2e-3 stayed at the
unigram baseline for as long.
"""

from __future__ import annotations

from configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig, RuntimeConfig

SEQ_LEN = 64
MAX_PREDICTIONS = 10


def get_config() -> PretrainConfig:
    """The run described above."""
    return PretrainConfig(
        name='quickstart',
        model=ModelConfig(
            vocab_size=8000,
            hidden_size=128,
            num_layers=2,
            num_heads=2,
            intermediate_size=512,
            max_position=SEQ_LEN,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        phases=(Phase(seq_len=SEQ_LEN, steps=4500, batch_size=16),),
        optimizer=OptimizerConfig(peak_lr=1.5e-3, warmup_steps=300, schedule='linear'),
        runtime=RuntimeConfig(decoder='numpy', log_every=100, eval_every=750, eval_batches=128, checkpoint_every=1500),
    )
