"""`bert-pretrain --dry_run`: a step of each phase is compiled here, and its sizes are told.

Owns that report. It makes no parameters and writes nothing; bert-plan does the same for devices
that are not here.
"""

from __future__ import annotations

import jax

from bert_jax.configs import schema
from bert_jax.costs import flops, memory, overheads
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.mesh import sharding
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.program import pretraining_program


def report(
    config: schema.PretrainConfig, phase: schema.Phase, records: Records, mesh: jax.sharding.Mesh
) -> str:
    """One phase's line: batch, FLOPs, memory of its step on one device, size of a checkpoint.

    Compiles the step, on a batch of `records`.
    """
    # A real batch, and not shapes alone: it is placed as in training, so the layouts are the same.
    program = pretraining_program(config, records.kind(), mesh)
    rows = sharding.local_rows(mesh, phase.batch_size)
    rows_read = next(
        RecordStream(
            records.directory, 'train', phase.batch_size, config.seed, 'numpy', rows
        ).batches()
    )
    inputs = word_vectors.inputs(config.model, records.tokenizer)
    batch = sharding.place(inputs(rows_read), mesh, phase.batch_size)

    # Compiled and not run: the state is a tree of shapes, which takes no memory.
    with jax.set_mesh(mesh):
        compiled = program.train_step.lower(program.state, batch, program.hparams).compile()

    # The formula's FLOPs: the compiler counts the body of a loop once.
    work = phase.batch_size * flops.training_flops_per_sequence(
        config.encoder, phase.seq_len, records.manifest.max_predictions
    )
    memory_of_step = memory.line(compiled, program.state, batch)
    saved = overheads.checkpoint_bytes(program.state)
    return (
        f'seq_len {phase.seq_len}, batch {phase.batch_size}, {phase.steps:,} steps, attention'
        f' {program.kernel}, {work / 1e9:,.1f} GFLOP a step; {memory_of_step}; a checkpoint'
        f' {memory.size(saved)}'
    )
