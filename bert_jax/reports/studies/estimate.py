"""What a study will take: runs, time and disk, before it begins.

Owns the arithmetic; FLOPs are of bert_jax/costs/flops.py, and the rate at which they are made is
measured: told by the user, read from runs that are done, or timed here for some seconds. It counts
training steps alone: to start, to compile and to predict is not in it.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bert_jax.configs.errors import UserError
from bert_jax.configs.overrides import apply
from bert_jax.configs.presets import finetune
from bert_jax.configs.schema import FinetuneConfig, Phase, PretrainConfig
from bert_jax.configs.studies.study import Column
from bert_jax.costs import flops
from bert_jax.input_pipeline.tasks import BY_NAME
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
    unknown: tuple[str, ...]
    bytes: float


def work(plan: Plan, steps: Sequence[Step]) -> Work:
    """What these steps take, those that are done left out."""
    left = {step.name for step in steps if not plan.folder.done(step.name)}
    runs = dict.fromkeys(('vocabulary', 'records', 'pretraining', 'finetune', 'feature_based'), 0)
    for name in left:
        runs[name.partition('/')[0]] += 1
    total = size = 0.0

    # Pre-training: its sequences, and its checkpoints.
    for run in {one.step: one for one in plan.pretraining.values()}.values():
        if run.step in left:
            total += pretraining_flops(run.config, _predictions(plan, run.step))
            kept = run.config.runtime
            saves = kept.keep_checkpoints + 2
            if kept.keep_every:
                saves += run.config.total_steps // kept.keep_every
            size += saves * _STATE * flops.parameter_count(run.config.model)

    # Records: by the text that is read, once for each pass, with as much beside it meanwhile.
    for (row, _), run in plan.pretraining.items():
        for length, name in run.records.items():
            if name in left:
                left.discard(name)
                chosen = next(one for one in plan.study.rows if one.name == row)
                size += records_bytes(plan, chosen.text, length, _options(plan, row))

    # The cells: as many trainings as a sweep has points.
    unknown = set()
    for (line, head, seed), step in plan.cells.items():
        column = next(one for one in plan.study.columns if one.name == head)
        if step not in left or not isinstance(column, Column):
            continue
        left.discard(step)
        kind = step.partition('/')[0]
        points = len(plan.study.finetuning_seeds)
        if kind == 'finetune':
            points *= max(1, len(column.learning_rates))
        runs[kind] += points - 1
        of = next(one.row for one in plan.lines() if one.name == line)
        model = plan.pretraining[of.name, seed].config.model
        size += points * _WEIGHT * flops.parameter_count(model, pretraining=False)
        size += _STATE * flops.parameter_count(model, pretraining=False)
        if kind == 'finetune':
            config = apply(_recipe(column), plan.study.finetuning(of, column))
            examples = config.train_examples or column.examples
            total += (
                points
                * (examples * config.epochs)
                * flops.training_flops_per_sequence(model, config.max_seq_length, 0)
            )
            unknown |= set() if examples else {head}
    return Work(runs, total, tuple(sorted(unknown)), size)


def pretraining_flops(config: PretrainConfig, predictions: dict[int, int]) -> float:
    """FLOPs of a whole run; `predictions`: of a row, by the length of rows."""
    return sum(
        phase.steps
        * phase.batch_size
        * flops.training_flops_per_sequence(config.model, phase.seq_len, predictions[phase.seq_len])
        for phase in config.phases
    )


def check_disk(folder: Path, needed: float) -> None:
    """UserError where the disk of a study's folder is too small for what is left to write."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f'--workdir={folder}: what is left of the study takes about {needed / 1e9:.1f} GB, and'
            f' {free / 1e9:.1f} GB are free: make room, name another disk, or run fewer rows with'
            ' --only'
        )


def rate(plan: Plan, told: float | None) -> tuple[float, str]:
    """(FLOP a second, where that is known from)."""
    if told:
        return told * 1e12, 'as --tflops says'
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
    """FLOP a second of the first phase's step on this machine, on a batch of noise."""
    import jax
    import numpy as np

    from bert_jax.mesh import sharding
    from bert_jax.train.program import InputKind, argument_shapes, fresh_state, pretraining_program

    # As many rows as are a tenth of a second's work, about: a small batch of a small model would
    # tell how long it takes to start a step.
    phase, devices = config.phases[0], jax.device_count()
    length, count = phase.seq_len, math.ceil(0.15 * phase.seq_len)
    one = flops.training_flops_per_sequence(config.model, length, count)
    rows = min(phase.batch_size, max(8, int(_TIMED_FLOPS / one)))
    rows = math.ceil(rows / devices) * devices
    small = dataclasses.replace(
        config,
        phases=(Phase(length, config.total_steps, rows),),
        runtime=dataclasses.replace(sharding.of_devices_here(config.runtime), accumulation=1),
    )
    mesh, kind = sharding.make_mesh(small.runtime), InputKind(length, count)
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
    return steps * rows * one / seconds


def _options(plan: Plan, row: str) -> dict[str, object]:
    return dict(plan.study.records_options(next(one for one in plan.study.rows if one.name == row)))


def _predictions(plan: Plan, step: str) -> dict[int, int]:
    """Masked places of a row by its length, as bert-preprocess has it."""
    row, config = next(
        (row, run.config) for (row, _), run in plan.pretraining.items() if run.step == step
    )
    options = _options(plan, row)
    share = float(str(options.get('masked_lm_prob', 0.15)))
    most = options.get('max_predictions')
    return {
        phase.seq_len: int(str(most)) if most else math.ceil(phase.seq_len * share)
        for phase in config.phases
    }


def records_bytes(plan: Plan, text: str, length: int, options: dict[str, object]) -> float:
    """Of the records of a text, about, and of what the job writes on the way."""
    from bert_jax.input_pipeline.records.fields import RecordSpec, most_bytes

    dynamic = options.get('masking') == 'dynamic'
    passes = int(str(options.get('dupe_factor') or (1 if dynamic else 10)))
    share = float(str(options.get('masked_lm_prob', 0.15)))
    row = most_bytes(RecordSpec(length, math.ceil(length * share), 'static'), 30522)
    rows = plan.inputs.text(text).size / BYTES_PER_PIECE * passes / length
    return 2 * rows * row


def _recipe(column: Column) -> FinetuneConfig:
    """The paper's recipe for a column's task."""
    kinds = {'squad': 'span', 'tagging': 'tagging', 'multiple_choice': 'choice'}
    family = BY_NAME.get(column.task)
    kind = kinds.get(family.__name__.rpartition('.')[2], '') if family else ''
    return finetune.recipe(column.task, kind or 'classification')
