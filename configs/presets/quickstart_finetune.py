"""The quickstart's fine-tuning: the same number of steps whatever the size of the training set.

The learning rate is one for both starting points, the pre-trained weights and random ones.
"""

from __future__ import annotations

from bert_jax.configs.schema import FinetuneConfig, OptimizerConfig, RuntimeConfig


def get_config() -> FinetuneConfig:
    """Return the recipe described above."""
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
