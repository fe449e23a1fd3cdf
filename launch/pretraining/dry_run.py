"""`launch.pretrain --dry_run`: one step of each phase is compiled on the devices here, and its
sizes are printed.

Owns that report. It makes no parameters and writes nothing; launch.plan does the same for devices
that are not here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.costs import flops, memory
from bert_jax.mesh import sharding
from bert_jax.model import attention, heads
from bert_jax.train import losses, schedule
from bert_jax.train.state import abstract_state
from bert_jax.train.step import jit_train_step, make_train_step
from configs import schema
from input_pipeline.records.stream import RecordStream


def report(
    config: schema.PretrainConfig, phase: schema.Phase, records: Any, mesh: jax.sharding.Mesh
) -> str:
    """One phase's line: batch, FLOPs, and the memory of its step on one device. Compiles the step,
    on a batch of `records`.
    """
    runtime = config.runtime
    kernel = attention.choose(runtime, config.model, phase.seq_len, records.manifest.spec.packed)
    model = heads.Pretraining(
        config.model, jnp.dtype(runtime.compute_dtype), runtime.remat, runtime.scan_layers, kernel
    )
    objective = losses.pretraining_objective(
        model, nsp=records.manifest.objective in ('nsp', 'sop')
    )
    state = abstract_state(model, config.optimizer, mesh, runtime.shard_optimizer)
    rows = sharding.local_rows(mesh, phase.batch_size)
    rows_read = next(
        RecordStream(
            records.directory, 'train', phase.batch_size, config.seed, 'numpy', rows
        ).batches()
    )
    batch = sharding.place(rows_read, mesh, phase.batch_size)
    step = make_train_step(
        objective, config.optimizer, runtime.accumulation, records.masking(), runtime.dropout_rng
    )
    hparams = schedule.hparams_of(config.optimizer, config.seed, config.total_steps)
    with jax.set_mesh(mesh):
        program = jit_train_step(step, state).lower(state, batch, hparams).compile()
    work = phase.batch_size * flops.training_flops_per_sequence(
        config.model, phase.seq_len, records.manifest.max_predictions
    )
    return (
        f'seq_len {phase.seq_len}, batch {phase.batch_size}, {phase.steps:,} steps, attention'
        f' {kernel}, {work / 1e9:,.1f} GFLOP a step; {memory.line(program, state, batch)}'
    )
