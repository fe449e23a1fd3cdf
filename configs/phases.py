"""The optimizer's settings, and the stretches of pre-training that may differ in them.

A phase has its own length, steps and batch. Of the schedule, the rotary bases and the share of
masks it may have its own; what it does not say is the run's. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.configs.options import (
    ABOVE_0,
    COUNT,
    COUNT_OR_0,
    FROM_0,
    RATE,
    SHARE,
    newer,
    option,
)
from bert_jax.configs.section import Section

Schedule = Literal['bert', 'polynomial', 'linear', 'cosine', 'wsd', 'constant']
DecayShape = Literal['linear', 'one_minus_sqrt']
# What a phase may have of its own, in place of the run's.
OF_SCHEDULE = ('schedule', 'peak_lr', 'end_lr', 'warmup_steps', 'decay_fraction', 'decay_shape')
OF_MODEL = ('rope_theta', 'local_rope_theta')


def count_grown_rows(first: int, each: int, full: int, steps: int) -> int:
    """Return the rows of so many steps of a batch that grows.

    Args:
      first: rows of the first steps; then twice, three times as many, until `full`.
      each: steps at each size below `full`.
      full: rows of all steps after that.
      steps: how many there are.
    """
    growing = min(steps, each * (full // first - 1))
    level, within = divmod(growing, each)
    rows = first * (each * level * (level + 1) // 2 + within * (level + 1))
    return rows + (steps - growing) * full


@dataclass(frozen=True)
class Phase(Section):
    """One stretch of pre-training on records of one length.

    The moments of the optimizer go on from one phase to the next.
    """

    seq_len: int = option(
        128, 'length of the records; picks the --data directory with that seq_len', within=COUNT
    )
    steps: int = option(900_000, 'optimizer steps in this phase', kind='extendable', within=COUNT)
    batch_size: int = option(256, 'sequences a step, over all devices', within=COUNT)
    batch_warmup_from: int | None = newer(
        None,
        'sequences of the first steps, from which the batch grows: twice, three times as many,'
        ' until batch_size; none: all steps have batch_size',
        within=COUNT,
    )
    batch_warmup_steps: int | None = newer(
        None,
        'steps at each size below batch_size, with batch_warmup_from',
        within=COUNT,
    )
    schedule: Schedule | None = newer(
        None,
        'as optimizer.schedule, of this phase alone: with it, or a setting below, the schedule'
        " counts this phase's steps; none: all such phases share the run's",
    )
    peak_lr: float | None = newer(None, 'as optimizer.peak_lr', within=ABOVE_0)
    end_lr: float | None = newer(None, 'as optimizer.end_lr', within=FROM_0)
    warmup_steps: int | None = newer(None, 'as optimizer.warmup_steps', within=COUNT_OR_0)
    decay_fraction: float | None = newer(None, 'as optimizer.decay_fraction', within=SHARE)
    decay_shape: DecayShape | None = newer(None, 'as optimizer.decay_shape')
    rope_theta: float | None = newer(None, 'as model.rope_theta', within='[1, 1e12]')
    local_rope_theta: float | None = newer(None, 'as model.local_rope_theta', within='[1, 1e12]')
    masked_lm_prob: float | None = newer(
        None,
        'share of tokens that are predicted, of records with masks drawn in training; at most the'
        " records' own, which is taken where none is given",
        within=SHARE,
    )

    @property
    def has_schedule(self) -> bool:
        """Tell whether the learning rate of this phase follows a schedule of its own."""
        return any(getattr(self, name) is not None for name in OF_SCHEDULE)

    def count_rows(self, steps: int) -> int:
        """Return the rows of the first `steps` of the phase, whose batch may grow."""
        if self.batch_warmup_from is None or self.batch_warmup_steps is None:
            return self.batch_size * steps
        return count_grown_rows(
            self.batch_warmup_from, self.batch_warmup_steps, self.batch_size, steps
        )

    def find_changes(self, names: Sequence[str]) -> dict[str, Any]:
        """Return those of its settings of these names that are given."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def check(self) -> None:
        """Raise UserError where the batch cannot grow so."""
        first = self.batch_warmup_from
        self._require(
            (first is None) == (self.batch_warmup_steps is None),
            'batch_warmup_steps',
            'given with batch_warmup_from, and with that alone',
        )
        if first is not None:
            self._require(
                self.batch_size % first == 0 and first < self.batch_size,
                'batch_warmup_from',
                f'a divisor of batch_size={self.batch_size}, and less; none, and'
                ' batch_warmup_steps=none with it, turns the growth off, as in --set'
                ' phases.0.batch_warmup_from=none --set phases.0.batch_warmup_steps=none',
            )

    @property
    def growth_steps(self) -> int:
        """Return how many of the first steps have fewer rows than batch_size."""
        if self.batch_warmup_from is None or self.batch_warmup_steps is None:
            return 0
        return self.batch_warmup_steps * (self.batch_size // self.batch_warmup_from - 1)


@dataclass(frozen=True)
class OptimizerConfig(Section):
    """The optimizer and the learning-rate schedule; by default BERT's AdamW.

    google-research/bert optimization.py.
    """

    algorithm: Literal[
        'bert_adamw',
        'adamw',
        'stable_adamw',
        'lamb_albert',
        'lamb_mlperf',
        'lamb_nvidia',
        'lamb_nvlamb',
    ] = option(
        'bert_adamw',
        'bert_adamw: no bias correction; adamw: with it, as small fine-tuning sets want it;'
        ' stable_adamw: that with a smaller rate for a tensor whose gradient is larger than its'
        ' moments, in place of clipping; lamb_albert: LAMB without it; lamb_mlperf: with it;'
        ' lamb_nvidia: as that, but without a trust ratio where there is no decay; lamb_nvlamb: a'
        ' trust ratio on biases and norms too',
    )
    peak_lr: float = option(1e-4, 'learning rate at the end of warm-up', within=ABOVE_0)
    schedule: Schedule = option(
        'bert',
        'bert: linear decay counted from step 0, so that it jumps down a little after warm-up;'
        ' polynomial: that to a power; linear: no jump; wsd: constant, then down over the last'
        ' decay_fraction',
    )
    warmup_steps: int = option(
        10_000, 'steps of linear warm-up from 0; 0 for none', within=COUNT_OR_0
    )
    end_lr: float = option(0.0, 'learning rate at the last step', within=FROM_0)
    power: float = option(
        1.0,
        "polynomial only: the power of the share of steps that is left; 0.5 in NVIDIA's LAMB "
        'recipe',
        within=ABOVE_0,
    )
    decay_fraction: float = option(
        0.2, 'wsd only: the share of all steps that decays', within=SHARE
    )
    decay_shape: DecayShape = newer(
        'linear',
        'wsd only: how it decays; one_minus_sqrt: fast at first, by 1 - sqrt of the share of its'
        ' steps that is done',
    )
    b1: float = option(0.9, 'decay of the first moment', within=RATE)
    b2: float = option(0.999, 'decay of the second moment', within=RATE)
    eps: float = option(1e-6, 'added to the root of the second moment', within=ABOVE_0)
    moments: Literal['float32', 'bfloat16'] = newer(
        'float32',
        'how both moments are kept; bfloat16, rounded at random, takes half of the memory',
    )
    weight_decay: float = option(
        0.01, 'decoupled decay of all but biases and layer norms', within=FROM_0
    )
    decay: Literal['decoupled', 'fully_decoupled'] = newer(
        'decoupled',
        'what a step takes of a weight; decoupled: learning rate * weight_decay; fully_decoupled:'
        ' (learning rate / peak_lr) * weight_decay, so that the peak does not change it',
    )
    clip_norm: float | None = option(
        1.0, 'gradients are scaled down to this global norm; none: never', within=ABOVE_0
    )
    layer_decay: float = option(
        1.0,
        'the learning rate of each block is that of the block above times this; 1: the same '
        'everywhere',
        within=SHARE,
    )
    freeze_embeddings: bool = option(False, 'the embeddings stay as they are')
    freeze_layers: int = option(0, 'the first so many blocks stay as they are', within=COUNT_OR_0)

    def check(self) -> None:
        """Raise UserError where the fields contradict each other."""
        self._require(self.end_lr <= self.peak_lr, 'end_lr', f'at most peak_lr={self.peak_lr}')
        self._require(
            self.decay == 'decoupled' or not self.algorithm.startswith('lamb'),
            'decay',
            f'decoupled: in {self.algorithm} decay is a part of what the trust ratio measures',
        )

    def without_effect(self) -> list[str]:
        """Return a line for each changed setting that the schedule does not read."""
        read = {
            'end_lr': self.schedule != 'constant',
            'power': self.schedule == 'polynomial',
            'decay_fraction': self.schedule == 'wsd',
            'decay_shape': self.schedule == 'wsd',
        }
        return [
            f'optimizer.{name}={getattr(self, name)} has no effect: optimizer.schedule='
            f'{self.schedule} does not read it'
            for name, is_read in read.items()
            if not is_read and getattr(self, name) != getattr(OptimizerConfig, name)
        ]
