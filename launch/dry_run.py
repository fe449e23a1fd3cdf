"""`launch.pretrain --dry_run`: one step of each phase is compiled on the devices here, and its sizes are printed.

Owns that report. It makes no parameters and writes nothing; launch.plan does the same for devices that are not here.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import attention, flops, heads, losses, schedule, sharding, train_state
from bert_jax.step import jit_train_step, make_train_step
from configs import schema
from input_pipeline.stream import RecordStream

MIB = 2**20


def report(config: schema.PretrainConfig, phase: schema.Phase, records: Any, mesh: jax.sharding.Mesh) -> str:
    """One phase's line: batch, FLOPs, and the memory of its step on one device. Compiles the step, on a batch of `records`."""
    runtime = config.runtime
    kernel = attention.choose(runtime, config.model, phase.seq_len, records.manifest.spec.packed)
    model = heads.Pretraining(config.model, jnp.dtype(runtime.compute_dtype), runtime.remat, runtime.scan_layers, kernel)
    objective = losses.pretraining_objective(model, nsp=records.manifest.objective in ('nsp', 'sop'))

    def fresh(seed):
        return train_state.fresh_state(train_state.init_params(model, seed), config.optimizer)

    state = jax.eval_shape(fresh, np.uint32(0))
    abstract = lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
    state = jax.tree.map(abstract, state, sharding.shardings(state, mesh, runtime.shard_optimizer))
    rows = sharding.local_rows(mesh, phase.batch_size)
    batch = next(RecordStream(records.directory, 'train', phase.batch_size, config.seed, 'numpy', rows).batches())
    batch = sharding.place(batch, mesh, phase.batch_size)
    step = make_train_step(objective, config.optimizer, runtime.accumulation, records.masking(), runtime.dropout_rng)
    hyper = schedule.hyper(config.optimizer, config.seed, config.total_steps)
    with jax.set_mesh(mesh):
        memory = jit_train_step(step, state).lower(state, batch, hyper).compile().memory_analysis()
    size = lambda tree: sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / MIB
    total = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    limit = (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')
    work = phase.batch_size * flops.training_flops_per_sequence(config.model, phase.seq_len, records.manifest.max_predictions)
    return (
        f'seq_len {phase.seq_len}, batch {phase.batch_size}, {phase.steps:,} steps, attention {kernel}, '
        f'{work / 1e9:,.1f} GFLOP a step; on each of {jax.device_count()} device(s): '
        f'parameters {size(state.params):,.1f} MiB, optimizer {size(state.opt_state):,.1f}, '
        f'batch {size(batch):,.1f}, activations and workspace {memory.temp_size_in_bytes / MIB:,.1f}: {total / MIB:,.1f} MiB in all'
        + (f' of {limit / MIB:,.1f}' if limit else '')
    )
