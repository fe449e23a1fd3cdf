"""The learning rate of every step, and the traced scalars of a run.

Everything a sweep varies (learning rate, warm-up, total steps, weight decay) is a traced scalar of
`Hparams`, so that a sweep compiles once; the schedule's shape changes the program. Knows nothing of
parameters.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.schema import OptimizerConfig, PretrainConfig


class Hparams(NamedTuple):
    """The traced scalars of a run: float32 but for the uint32 seed."""

    seed: Any  # of dropout and of masks drawn in the step
    peak_lr: Any  # the highest rate, at the end of warm-up
    end_lr: Any  # what a schedule that decays comes down to
    warmup_steps: Any
    total_steps: Any  # that the schedule counts
    weight_decay: Any
    first_step: Any  # from which on it counts them


def hparams_of(
    config: OptimizerConfig,
    seed: int,
    total_steps: int,
    warmup_steps: int | None = None,
    first_step: int = 0,
) -> Hparams:
    """Return the scalars of steps from `first_step` on, of which the schedule counts `total_steps`.

    `warmup_steps` replaces the config's.
    """
    if warmup_steps is None:
        warmup_steps = config.warmup_steps
    return Hparams(
        seed=traced_seed(seed),
        peak_lr=np.float32(config.peak_lr),
        end_lr=np.float32(config.end_lr),
        warmup_steps=np.float32(warmup_steps),
        total_steps=np.float32(total_steps),
        weight_decay=np.float32(config.weight_decay),
        first_step=np.float32(first_step),
    )


def traced_seed(seed: int) -> np.uint32:
    """Return a run's seed as a step has it: of a larger one the lower 32 bits count."""
    return np.uint32(seed & 0xFFFFFFFF)


def compute_learning_rate(settings: OptimizerConfig, h: Hparams, step: Any) -> jax.Array:
    """Return the learning rate at `step` (0-based): linear warm-up from 0, then the schedule.

    'bert' counts its decay from step 0 and so drops from peak to peak * (1 - warmup / total) when
    warm-up ends (optimization.py:32-54), and so does 'polynomial', its generalisation; the others
    start at the end of warm-up. Those that decay stay at `end_lr` from the last step on.
    """
    # Two clocks: the share of all steps that is left, from 1 to 0, and the way since the end of
    # warm-up, from 0 to 1.
    t = jnp.asarray(step, jnp.float32) - h.first_step
    share_of_steps_left = 1.0 - jnp.clip(t / h.total_steps, 0.0, 1.0)
    after = jnp.clip(
        (t - h.warmup_steps) / jnp.maximum(h.total_steps - h.warmup_steps, 1.0), 0.0, 1.0
    )
    # The share, from 1 to 0, of the way from peak_lr down to end_lr that is still to go.
    match settings.schedule:
        case 'bert':
            share_left = share_of_steps_left
        case 'polynomial':
            share_left = share_of_steps_left**settings.power
        case 'linear':
            share_left = 1.0 - after
        case 'cosine':
            share_left = 0.5 * (1.0 + jnp.cos(jnp.pi * after))
        case 'wsd':
            # Warm-up, a stable rate, and a decay over the last share of the steps alone.
            decay_steps = settings.decay_fraction * h.total_steps
            share_left = jnp.clip((h.total_steps - t) / decay_steps, 0.0, 1.0)
            if settings.decay_shape == 'one_minus_sqrt':
                share_left = 1.0 - jnp.sqrt(1.0 - share_left)
        case 'constant':
            share_left = jnp.ones(())
    decayed = h.end_lr + (h.peak_lr - h.end_lr) * share_left
    # Warm-up is a line from 0: step 0 moves nothing but the moments, as in the original.
    return jnp.where(t < h.warmup_steps, h.peak_lr * t / jnp.maximum(h.warmup_steps, 1.0), decayed)


def list_rates(config: PretrainConfig) -> list[tuple[int, int, float]]:
    """List (step, phase, rate) of chosen steps, counted from 1 as in the log; phases from 0.

    Step N is made at `compute_learning_rate(N - 1)`. Chosen are the first, the last and twenty
    evenly spaced steps, and those around the ends of warm-ups and of phases.
    """
    # Steps as the schedule counts them, from 0.
    total = config.total_steps
    chosen = {0, total - 1, *(i * total // 20 for i in range(20))}
    ends = list(itertools.accumulate(phase.steps for phase in config.phases))
    for number, end in enumerate(ends):
        first, _ = config.time_schedule(number)
        for border in (first + config.choose_optimizer(number).warmup_steps, end):
            chosen.update((border - 1, border, border + 1))

    rates = []
    begin = 0
    for number, end in enumerate(ends):
        optimizer, (first, count) = config.choose_optimizer(number), config.time_schedule(number)
        h = hparams_of(optimizer, 0, count, first_step=first)
        steps = [step for step in sorted(chosen) if begin <= step < end]
        of_phase = np.asarray(compute_learning_rate(optimizer, h, np.array(steps)))
        for step, rate in zip(steps, of_phase.tolist(), strict=True):
            rates.append((step + 1, number, rate))
        begin = end
    return rates


def format_schedule(config: PretrainConfig) -> str:
    """Return a line for each phase, and the table of step (from 1), phase and learning rate."""
    lines = []
    shared = sum(phase.steps for phase in config.phases if not phase.has_schedule)
    if shared:
        optimizer = config.optimizer
        lines = [f'# {optimizer.schedule}, {shared} steps, warm-up {optimizer.warmup_steps}']
    for number, phase in enumerate(config.phases):
        line = (
            f'# phase {number}: {phase.steps} steps of {phase.batch_size} rows of {phase.seq_len}'
        )
        if phase.batch_warmup_from is not None:
            line += f', from {phase.batch_warmup_from} rows on over {phase.growth_steps} steps'
        if phase.has_schedule:
            optimizer = config.choose_optimizer(number)
            line += f'; {optimizer.schedule}, warm-up {optimizer.warmup_steps}'
        lines.append(line)
    lines += [
        '# step N is the N-th, as in the log and metrics.jsonl: the rate is the one that it is made'
        ' at',
        f'{"step":>10}  phase  learning_rate',
    ]
    for step, number, rate in list_rates(config):
        lines.append(f'{step:10}  {number:5}  {rate:.6e}')
    return '\n'.join(lines)
