"""Pre-training in this process, of a small model on the records of a folder."""

from __future__ import annotations

import pathlib
from typing import Any

from bert_jax.configs import schema
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.runs.pretraining import train
from bert_jax.runs.pretraining.records import Records


def pretrain(
    folder: pathlib.Path,
    name: str,
    model: schema.ModelConfig,
    steps: int,
    batch_size: int = 8,
    optimizer: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """A run in `name` on `records`, at a rate that stays the same."""
    manifest = Manifest.load(folder / 'records')
    changed = {'peak_lr': 1e-2, 'warmup_steps': 0, 'schedule': 'constant'} | (optimizer or {})
    config = schema.PretrainConfig(
        model=model,
        phases=(schema.Phase(manifest.seq_len, steps, batch_size),),
        optimizer=schema.OptimizerConfig(**changed),
        runtime=schema.RuntimeConfig(log_every=steps, checkpoint_every=steps),
    )
    records = Records(str(folder / 'records'), manifest)
    assert train.pretrain(config, [records], str(folder / name), **options).step == steps
