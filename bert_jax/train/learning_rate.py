"""The learning rate of every step, and the traced scalars of a run.

Everything a sweep varies (learning rate, warm-up, total steps, weight decay) is a traced scalar of
`Hparams`, so that a sweep compiles once; the schedule's shape changes the program. Knows nothing of
parameters.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.schema import OptimizerConfig


class Hparams(NamedTuple):
    """The traced scalars of a run: float32 but for the uint32 seed."""

    seed: Any  # of dropout and of masks drawn in the step
    peak_lr: Any  # the highest rate, at the end of warm-up
    end_lr: Any  # what a schedule that decays comes down to
    warmup_steps: Any
    total_steps: Any
    weight_decay: Any


def hparams_of(
    config: OptimizerConfig, seed: int, total_steps: int, warmup_steps: int | None = None
) -> Hparams:
    """Return the scalars of a run of `total_steps`; `warmup_steps` replaces the config's."""
    if warmup_steps is None:
        warmup_steps = config.warmup_steps
    return Hparams(
        # Of a larger seed the lower 32 bits count: it is traced as uint32.
        seed=np.uint32(seed & 0xFFFFFFFF),
        peak_lr=np.float32(config.peak_lr),
        end_lr=np.float32(config.end_lr),
        warmup_steps=np.float32(warmup_steps),
        total_steps=np.float32(total_steps),
        weight_decay=np.float32(config.weight_decay),
    )


def compute_learning_rate(settings: OptimizerConfig, h: Hparams, step: Any) -> jax.Array:
    """Return the learning rate at `step` (0-based): linear warm-up from 0, then the schedule.

    'bert' counts its decay from step 0 and so drops from peak to peak * (1 - warmup / total) when
    warm-up ends (optimization.py:32-54), and so does 'polynomial', its generalisation; the others
    start at the end of warm-up. Those that decay stay at `end_lr` from the last step on.
    """
    # Two clocks: the share of all steps that is left, from 1 to 0, and the way since the end of
    # warm-up, from 0 to 1.
    t = jnp.asarray(step, jnp.float32)
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


def list_rates(
    settings: OptimizerConfig, total_steps: int, borders: Iterable[int] = ()
) -> list[tuple[int, float]]:
    """List [(step, rate)] of chosen steps, counted from 1 as in the log.

    Step N is made at `compute_learning_rate(N - 1)`. Chosen are the first, the last and twenty
    evenly spaced steps, and those around the end of warm-up and each of `borders` (steps done by
    then).
    """
    # Steps as the schedule counts them, from 0.
    chosen = {0, total_steps - 1}
    chosen.update(i * total_steps // 20 for i in range(20))
    for border in (settings.warmup_steps, *borders):
        chosen.update((border - 1, border, border + 1))
    steps = np.array(sorted(step for step in chosen if 0 <= step < total_steps))
    rates = compute_learning_rate(settings, hparams_of(settings, 0, total_steps), steps)
    return list(zip((steps + 1).tolist(), np.asarray(rates).tolist(), strict=True))


def format_schedule(settings: OptimizerConfig, phase_steps: Sequence[int]) -> str:
    """Return the table of step (from 1, as in the log), phase and learning rate.

    Args:
      settings: the settings.
      phase_steps: the steps of each phase.
    """
    # Ends of phases are shown too, with the points where the schedule bends.
    ends = list(itertools.accumulate(phase_steps))
    lines = [
        f'# {settings.schedule}, {ends[-1]} steps, warm-up {settings.warmup_steps}',
        '# step N is the N-th, as in the log and metrics.jsonl: the rate is the one that it is made'
        ' at',
        f'{"step":>10}  phase  learning_rate',
    ]
    for step, rate in list_rates(settings, ends[-1], ends[:-1]):
        lines.append(f'{step:10}  {bisect.bisect_left(ends, step):5}  {rate:.6e}')
    return '\n'.join(lines)
