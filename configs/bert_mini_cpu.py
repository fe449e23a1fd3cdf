"""BERT-Mini in less than an hour on 2 CPU cores: 11,267,900 pre-training parameters.

    python -m launch.preprocess --input=GLOB --segment --tokenizer=DIR --dupe_factor=1 --seq_len=64 --output=records64
    python -m launch.preprocess --input=GLOB --segment --tokenizer=DIR --dupe_factor=1 --seq_len=256 --output=records256
    python -m launch.pretrain --config=bert_mini_cpu --data=records64 --data=records256 --workdir=DIR

Departs from the paper where so few tokens (about 7 million) ask for it: small batches, because the number of
steps decides; no dropout, for each text is seen once at most; a high learning rate. A short second
phase at S=256 trains the later position embeddings, which SQuAD needs. docs/results.md has what it reached.
"""

from __future__ import annotations

from configs.schema import ModelConfig, OptimizerConfig, Phase, PretrainConfig, RuntimeConfig


def get_config() -> PretrainConfig:
    """The run described above."""
    return PretrainConfig(
        name='bert_mini_cpu',
        model=ModelConfig(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=1024, hidden_dropout=0.0, attention_dropout=0.0),
        phases=(Phase(seq_len=64, steps=5000, batch_size=16), Phase(seq_len=256, steps=400, batch_size=8)),
        optimizer=OptimizerConfig(peak_lr=1e-3, warmup_steps=300, schedule='linear', b2=0.98),
        runtime=RuntimeConfig(decoder='numpy', log_every=50, eval_every=500, eval_batches=64, checkpoint_every=250),
    )
