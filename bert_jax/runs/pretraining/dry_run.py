"""What a run would do: the sizes of a compiled step (--dry_run), the rates (--print_schedule).

Owns these reports. It makes no parameters and writes nothing; bert-plan does the same for devices
that are not here.
"""

from __future__ import annotations

import bisect
import itertools

import jax

from bert_jax.configs.schema import ModelConfig, PretrainConfig
from bert_jax.costs import flops
from bert_jax.costs.step_costs import format_bytes, format_memory
from bert_jax.runs.pretraining.phase_data import PhaseData
from bert_jax.train.learning_rate import list_rates
from bert_jax.train.pretraining_program import PretrainingProgram
from bert_jax.train.state import checkpoint_bytes


def report(data: PhaseData, program: PretrainingProgram, encoder: ModelConfig) -> str:
    """Compile the step of a phase and describe it in a line.

    The line has batch, FLOPs, memory of the step on one device, size of a checkpoint.
    """
    # A real batch, and not shapes alone: it is placed as in training, so the layouts are the same.
    # Compiled and not run: the state is a tree of shapes, which takes no memory.
    batch = data.place(next(data.stream('train').batches()), data.first)
    with jax.set_mesh(data.mesh):
        compiled = program.train_step.lower(program.state, batch, program.hparams).compile()

    # The formula's FLOPs: the compiler counts the body of a loop once.
    phase, predictions = data.phase, data.records.manifest.max_predictions
    work = phase.batch_size * flops.count_training_flops(encoder, phase.seq_len, predictions)
    memory_of_step = format_memory(compiled, program.state, batch)
    saved = checkpoint_bytes(program.state)
    return (
        f'seq_len {phase.seq_len}, batch {phase.batch_size}, {phase.steps:,} steps, attention'
        f' {program.kernel}, {work / 1e9:,.1f} GFLOP a step; {memory_of_step}; a checkpoint'
        f' {format_bytes(saved)}'
    )


def schedule_text(config: PretrainConfig) -> str:
    """Return the table of step (from 1, as in the log), phase and learning rate."""
    # Ends of phases are shown too, with the points where the schedule bends.
    optimizer, ends = config.optimizer, list(itertools.accumulate(p.steps for p in config.phases))
    lines = [
        f'# {optimizer.schedule}, {config.total_steps} steps, warm-up {optimizer.warmup_steps}',
        '# step N is the N-th, as in the log and metrics.jsonl: the rate is the one that it is made'
        ' at',
        f'{"step":>10}  phase  learning_rate',
    ]
    for step, rate in list_rates(optimizer, config.total_steps, ends[:-1]):
        lines.append(f'{step:10}  {bisect.bisect_left(ends, step):5}  {rate:.6e}')
    return '\n'.join(lines)
