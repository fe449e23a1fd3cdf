"""What a study will take: runs, time and disk, before it begins.

Owns the arithmetic; FLOPs are of bert_jax/costs/flops.py, and the rate at which they are made is
measured: given by the user, read from runs that are done, or timed here for some seconds. It counts
training steps alone: to start, to compile and to predict is not in it.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets import finetune
from bert_jax.configs.schema import FinetuneConfig, Phase, PretrainConfig
from bert_jax.configs.studies.study import Column
from bert_jax.costs import flops
from bert_jax.input_pipeline.tasks import load_task
from bert_jax.reports.studies.plan import Plan
from bert_jax.reports.studies.steps import Step
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.workdir import Workdir

# Of English and Korean text alike, about.
BYTES_PER_PIECE = 4.5
# float32: parameters, and the two moments beside them while a run goes on.
_WEIGHT, _STATE = 4, 12
_TIMED_S, _TIMED_FLOPS = 5.0, 5e9


@dataclasses.dataclass(frozen=True)
class Work:
    """What is left to do.

    runs: KIND of step -> trainings; flops: of them; unknown: columns whose training sets have no
    known size, and whose FLOPs are left out; bytes: on the disk, about.
    """

    runs: dict[str, int]
    flops: float
    unknown: list[str]
    bytes: float


def work(plan: Plan, steps: Sequence[Step]) -> Work:
    """Return what these steps take, those that are done left out."""
    left = {step.name for step in steps if not plan.folder.done(step.name)}
    kinds = ('vocabulary', 'records', 'pretraining', 'finetune', 'feature_based')
    runs = {kind: sum(name.startswith(f'{kind}/') for name in left) for kind in kinds}
    total = size = 0.0

    for run in plan.pretraining.values():
        options = plan.study.records_options(run.row)

        # Records: by the text that is read, once for each pass, with as much meanwhile.
        for length, name in run.records.items():
            if name in left:
                left.discard(name)
                size += records_bytes(options, plan.inputs.texts[run.row.text].size, length)

        # Pre-training: its sequences, and its checkpoints. Rows may share one.
        if run.step in left:
            left.discard(run.step)
            total += sum(
                phase.steps
                * phase.batch_size
                * flops.training_flops_per_sequence(
                    run.config.model, phase.seq_len, predictions(options, phase.seq_len)
                )
                for phase in run.config.phases
            )
            kept = run.config.runtime
            saves = kept.keep_checkpoints + 2
            if kept.keep_every:
                saves += run.config.total_steps // kept.keep_every
            size += saves * _STATE * flops.parameter_count(run.config.model)

    # The cells: as many trainings as a sweep has points.
    unknown = set()
    columns = {column.name: column for column in plan.study.columns}
    rows = {line.name: line.row for line in plan.lines()}
    for (line, head, seed), step in plan.cells.items():
        row, column = rows[line], columns[head]
        if step not in left or not isinstance(column, Column):
            continue
        left.discard(step)
        kind, points = step.partition('/')[0], len(plan.study.finetuning_seeds)
        model = plan.pretraining[row.name, seed].config.model
        if kind == 'finetune':
            points *= max(1, len(column.learning_rates))
            config = apply(_recipe(column), plan.study.finetuning(row, column))
            examples = config.train_examples or column.examples
            sequence = flops.training_flops_per_sequence(model, config.max_seq_length, 0)
            read = config.steps * config.batch_size or examples * config.epochs
            total += points * read * sequence
            unknown |= set() if read else {head}
        runs[kind] += points - 1
        size += (points * _WEIGHT + _STATE) * flops.parameter_count(model, pretraining=False)
    return Work(runs, total, sorted(unknown), size)


def outlook(plan: Plan, steps: Sequence[Step], tflops: float | None) -> str:
    """Return what --dry_run prints: the steps that are left, their runs, time and disk.

    Args:
      plan: the study's.
      steps: those that are asked for.
      tflops: the rate to expect, in 10^12 FLOP a second; None: it is measured.
    """
    left = [step for step in steps if not plan.folder.done(step.name)]
    text = [plan.study.title, f'{len(steps) - len(left)} of {len(steps)} steps are done; left:']
    text += [f'  {step.about}' for step in left]
    ahead = work(plan, steps)
    counts = [f'{count} {kind}' for kind, count in ahead.runs.items() if count]
    text.append(f'runs: {", ".join(counts) or "none"}')
    if left:
        speed, why = rate(plan, tflops)
        days, hours = divmod(ahead.flops / speed / 3600, 24)
        text.append(
            f'time: {ahead.flops:.3g} FLOP at {speed / 1e12:.3g} TFLOP/s ({why}):'
            f' {f"{days:.0f} days and " if days else ""}{hours:.1f} hours of training steps;'
            ' starting, compiling, predicting and the feature-based approach are not in it'
        )
        if ahead.unknown:
            text.append(f'not in it either, of unknown size: {", ".join(ahead.unknown)}')
        sized = all(text.size for text in plan.inputs.texts.values())
        without = '' if sized else ', without the records: --corpus is not given'
        text.append(f'disk: about {ahead.bytes / 1e9:.2g} GB{without}')
    return '\n'.join(text)


def check_disk(folder: Path, needed: float) -> None:
    """Check that the disk of a study's folder has room for what is left to write.

    Raises:
      UserError: it has not.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f'--workdir={folder}: what is left of the study takes about {needed / 1e9:.1f} GB, and'
            f' {free / 1e9:.1f} GB are free: make room, name another disk, or run fewer rows with'
            ' --only'
        )


def rate(plan: Plan, given: float | None) -> tuple[float, str]:
    """Return (FLOP a second, from what that is known)."""
    if given:
        return given * 1e12, 'as --tflops says'
    # A run has no metrics before its first log line.
    files = [Workdir(plan.folder.of(run.step)).metrics_file for run in plan.pretraining.values()]
    measured = [
        line['model_tflops'] * 1e12
        for file in files
        if file.exists()
        for line in read_metrics(file)
        if line.get('model_tflops')
    ]
    if measured:
        return statistics.median(measured), 'the median of what is pre-trained so far'
    config = next(iter(plan.pretraining.values())).config
    return timed(config), f'steps of {plan.study.rows[0].name} timed here, on noise'


def timed(config: PretrainConfig) -> float:
    """Return the FLOP a second of the first phase's step here, on a batch of noise."""
    import jax
    import numpy as np

    from bert_jax.mesh import construction, sharding
    from bert_jax.train.pretraining_program import (
        InputKind,
        argument_shapes,
        fresh_state,
        pretraining_program,
    )

    # As many rows as are a tenth of a second's work, about: a small batch of a small model would
    # tell how long it takes to start a step.
    phase, devices = config.phases[0], jax.device_count()
    length, count = phase.seq_len, math.ceil(0.15 * phase.seq_len)
    sequence = flops.training_flops_per_sequence(config.model, length, count)
    rows = min(phase.batch_size, max(8, int(_TIMED_FLOPS / sequence)))
    rows = math.ceil(rows / devices) * devices
    small = dataclasses.replace(
        config,
        phases=(Phase(length, config.total_steps, rows),),
        runtime=dataclasses.replace(construction.of_devices_here(config.runtime), accumulation=1),
    )
    mesh, kind = construction.make_mesh(small.runtime), InputKind(length, count)
    with jax.set_mesh(mesh):
        program = pretraining_program(small, kind, mesh)
        state = fresh_state(small, mesh)
        shapes = argument_shapes(small, kind, rows, mesh)[1]
        columns = {name: np.ones(shape.shape, shape.dtype) for name, shape in shapes.items()}
        batch = sharding.place(columns, mesh, rows)

        # The first step compiles; then as many as there is time for, two at least.
        state, _ = program.train_step(state, batch, program.hparams)
        jax.block_until_ready(state.params)
        start, steps = time.perf_counter(), 0
        while steps < 2 or time.perf_counter() - start < _TIMED_S:
            state, _ = program.train_step(state, batch, program.hparams)
            jax.block_until_ready(state.params)
            steps += 1
        seconds = time.perf_counter() - start
    return steps * rows * sequence / seconds


def predictions(options: Mapping[str, Any], length: int) -> int:
    """Return how many masked tokens a row has, as bert-preprocess has it."""
    share = options.get('masked_lm_prob', 0.15)
    return options.get('max_predictions') or math.ceil(length * share)


def records_bytes(options: Mapping[str, Any], text_bytes: int, length: int) -> float:
    """Return about the size of a row's records, and of what the job writes on the way."""
    from bert_jax.input_pipeline.records.fields import RecordSpec, most_bytes

    passes = options.get('dupe_factor') or (1 if options.get('masking') == 'dynamic' else 10)
    row = most_bytes(RecordSpec(length, predictions(options, length), 'static'), 30522)
    return 2 * text_bytes / BYTES_PER_PIECE * passes / length * row


def _recipe(column: Column) -> FinetuneConfig:
    """Return the paper's recipe for a column's task."""
    is_file = column.task.endswith('.json')
    kind = 'classification' if is_file else load_task(column.task, '.').kind
    return finetune.recipe(column.task, kind)
