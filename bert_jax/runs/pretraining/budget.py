"""The steps of a run that a budget of tokens or of hours buys.

A recipe keeps its proportions: steps, warm-up and growth of the batch of every phase are scaled
alike, and the decay keeps its share of them. What is named stays as it is.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import Phase, PretrainConfig
from bert_jax.input_pipeline.records.sampler import Growth
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.workdir.workdir import Workdir

# Of a phase, besides its steps.
_SCALED = ('batch_warmup_steps', 'warmup_steps')
_STEPS = 3  # that are timed at each size of a batch, after one that compiles


def make_label(tokens: float | None, hours: float | None) -> str:
    """Return a budget as a run's settings keep it; '' where there is none."""
    if tokens is not None and hours is not None:
        raise UserError('--tokens and --hours both say how long: give one of them')
    for name, value in (('tokens', tokens), ('hours', hours)):
        if value is not None:
            if not value > 0:
                raise UserError(f'--{name}={value:g}: must be above 0')
            return f'{name}={value:g}'
    return ''


def refuse_steps(label: str, steps: int | None, named: Collection[str]) -> None:
    """Raise UserError where the number of steps is given beside a budget."""
    given = ['--steps'] if steps is not None else []
    for name in named:
        if name == 'phases' or (name.startswith('phases.') and name.endswith('.steps')):
            given.append(f'--set {name}')
    if given:
        raise UserError(f'--{label} and {given[0]} both say how long: give one of them')


def take_begun(
    config: PretrainConfig,
    workdir: str | os.PathLike[str] | None,
    named: Collection[str] = (),
) -> PretrainConfig | None:
    """Return the settings with the steps of the run in `workdir`, if that has the same budget.

    All else is left to be compared with that run.
    """
    if workdir is None or not Workdir(workdir).config_file.exists():
        return None
    begun = Workdir(workdir).config()
    if not isinstance(begun, PretrainConfig) or begun.budget != config.budget:
        return None
    if len(begun.phases) != len(config.phases):
        return None
    phases = []
    for number, (phase, before) in enumerate(zip(config.phases, begun.phases, strict=True)):
        changes: dict[str, Any] = {'steps': before.steps}
        for name in _SCALED:
            value = getattr(before, name)
            if getattr(phase, name) and value and f'phases.{number}.{name}' not in named:
                changes[name] = value
        phases.append(dataclasses.replace(phase, **changes))
    optimizer = config.optimizer
    if 'optimizer.warmup_steps' not in named:
        optimizer = dataclasses.replace(optimizer, warmup_steps=begun.optimizer.warmup_steps)
    return dataclasses.replace(config, phases=tuple(phases), optimizer=optimizer)


def make_growth(phase: Phase, micro_batches: int) -> Growth | None:
    """Return how the batch of a phase grows; None where it does not."""
    if phase.batch_warmup_from is None or phase.batch_warmup_steps is None:
        return None
    return Growth(
        phase.batch_warmup_from, phase.batch_warmup_steps, phase.batch_size, micro_batches
    )


def count_tokens(config: PretrainConfig, fills: Sequence[float] = ()) -> float:
    """Return the tokens of a run; `fills` say how full the rows of each phase are, by default 1."""
    total = 0.0
    for number, phase in enumerate(config.phases):
        fill = fills[number] if fills else 1.0
        total += phase.count_rows(phase.steps) * phase.seq_len * fill
    return total


def fit_tokens(
    config: PretrainConfig, tokens: float, records: Sequence[Records], named: Collection[str] = ()
) -> PretrainConfig:
    """Return the settings for a number of tokens, padding not counted.

    Args:
      config: the settings.
      tokens: of all phases.
      records: those of each phase, which say how full their rows are; none: as if they were full.
      named: settings that stay as they are.

    Raises:
      UserError: a phase would have no step, or its batch would never be whole.
    """
    fills = [each.manifest.statistics['text']['train']['fill'] for each in records]
    return scale_steps(config, tokens / count_tokens(config, fills), named)


def fit_hours(
    config: PretrainConfig,
    hours: float,
    step_seconds: Sequence[Sequence[float]],
    named: Collection[str] = (),
) -> PretrainConfig:
    """Return the settings for a time.

    Args:
      config: the settings.
      hours: of all steps; compiling, held-out rows and checkpoints come on top.
      step_seconds: of each phase, what a step takes at each size of its batch, the whole one last.
      named: settings that stay as they are.

    Raises:
      UserError: as for `fit_tokens`.
    """
    whole = 0.0
    for phase, seconds in zip(config.phases, step_seconds, strict=True):
        growing = phase.batch_warmup_steps or 0
        whole += growing * sum(seconds[:-1]) + (phase.steps - phase.growth_steps) * seconds[-1]
    return scale_steps(config, hours * 3600 / whole, named)


def scale_steps(
    config: PretrainConfig, ratio: float, named: Collection[str] = ()
) -> PretrainConfig:
    """Return the settings of a run that reads `ratio` times as many rows."""
    phases = []
    for number, phase in enumerate(config.phases):
        changes: dict[str, Any] = {}
        for name in _SCALED:
            value = getattr(phase, name)
            if value and f'phases.{number}.{name}' not in named:
                changes[name] = max(1, round(value * ratio))
        changed = dataclasses.replace(phase, **changes)
        # Growth and warm-up are rounded, and the whole batches make up for that.
        grown = changed.growth_steps
        rows = phase.count_rows(phase.steps) * ratio - changed.count_rows(grown)
        steps = grown + round(rows / phase.batch_size)
        if steps <= grown:
            raise UserError(
                f'--{config.budget or ratio}: phase {number} would have {max(0, steps)} steps, and'
                f' needs more than the {grown} in which its batch grows: raise it, or lower'
                f' phases.{number}.batch_size={phase.batch_size}'
            )
        phases.append(dataclasses.replace(changed, steps=steps))
    optimizer = config.optimizer
    if optimizer.warmup_steps and 'optimizer.warmup_steps' not in named:
        warmup = max(1, round(optimizer.warmup_steps * ratio))
        optimizer = dataclasses.replace(optimizer, warmup_steps=warmup)
    return dataclasses.replace(config, phases=tuple(phases), optimizer=optimizer)


def time_batches(
    train_step: Any, state: Any, batches: Iterable[Any], hparams: Any
) -> tuple[Any, float]:
    """Make a step of each batch, and return the state and the median of the seconds.

    The first step, which compiles, is not counted. Call it inside `jax.set_mesh(mesh)`.
    """
    import jax

    times = []
    for batch in batches:
        begin = time.perf_counter()
        state, sums = train_step(state, batch, hparams)
        jax.block_until_ready(sums)
        times.append(time.perf_counter() - begin)
    return state, statistics.median(times[1:])


def time_steps(config: PretrainConfig, records: list[Records]) -> list[list[float]]:
    """Return what a step of each phase takes, in seconds, at each size of its batch.

    Measured on thrown-away steps of a fresh model; the same in all processes of a run.
    """
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    from bert_jax.mesh import program_cache
    from bert_jax.runs.pretraining.phase_data import make_phases
    from bert_jax.runs.pretraining.train import make_mesh, make_teacher
    from bert_jax.train.pretraining_program import PretrainingSetup

    program_cache.use(config.runtime.compilation_cache)  # the run finds the programs there
    setup = PretrainingSetup.from_config(config)
    mesh = make_mesh(setup, config.phases, records)
    teacher = make_teacher(setup, records, mesh)
    state, step_seconds = setup.make_state(mesh), []
    for data in make_phases(config, records, mesh, teacher):
        of_phase = PretrainingSetup.from_config(config, data.number)
        grows = data.growth is not None
        program = of_phase.make_program(data.kind, mesh, grows=grows)
        seconds = []
        for first in data.list_size_starts():
            batches = itertools.islice(data.batches(data.stream('train'), first), _STEPS + 1)
            with jax.set_mesh(mesh):
                state, step_s = time_batches(program.train_step, state, batches, of_phase.hparams)
            seconds.append(step_s)
        step_seconds.append(seconds)
        shown = ', '.join(f'{each * 1e3:,.0f} ms' for each in seconds)
        logging.info(f'phase {data.number}: a step takes {shown} (of {_STEPS} thrown away)')
    flat = np.concatenate([np.array(seconds) for seconds in step_seconds])
    agreed = iter(multihost_utils.broadcast_one_to_all(flat).tolist())
    return [[next(agreed) for _ in seconds] for seconds in step_seconds]
