"""How long a quickstart takes on this machine, and the pre-training steps that fit into a time.

Owns what its stages take beside each other, in steps of the pre-training: a machine that is twice
as slow takes twice as long for all of them.
"""

from __future__ import annotations

import itertools
import math
from typing import cast

from bert_jax.configs.errors import UserError
from bert_jax.configs.load import load
from bert_jax.configs.schema import FinetuneConfig, PretrainConfig

_TIMED = 20  # steps that are thrown away, after one that compiles
# Of a step as it is measured: a step of the run, with its evaluations and its log; a step of a
# fine-tuning with the scores at its end; text, vocabulary, records, and all that is compiled.
_PRETRAINING, _FINETUNING, _REST = 1.1, 0.5, 1500
_FEWEST = 300  # steps of a pre-training, below which nothing is learnt


def measure_step() -> float:
    """Return the seconds of a pre-training step of the preset, on rows of random words."""
    import jax
    import numpy as np

    from bert_jax.mesh import construction, program_cache
    from bert_jax.runs.pretraining.budget import time_batches
    from bert_jax.train.pretraining_program import InputKind, PretrainingSetup

    config = cast(PretrainConfig, load('quickstart'))
    (phase,) = config.phases
    program_cache.use(config.runtime.compilation_cache)  # the run finds the program there
    setup = PretrainingSetup.from_config(config)
    mesh = construction.make_mesh(config.runtime)
    kind = InputKind(phase.seq_len, math.ceil(0.15 * phase.seq_len))
    with jax.set_mesh(mesh):
        _, shapes, _ = setup.argument_shapes(kind, phase.batch_size, mesh)
        random = np.random.default_rng(0)
        batch = {}
        for name, shape in shapes.items():
            below = config.model.vocab_size if name.endswith('ids') else 2
            values = random.integers(0, below, shape.shape).astype(shape.dtype)
            batch[name] = jax.device_put(values)
        batch['segment_ids'] = batch['input_mask']
        program, state = setup.make_program(kind, mesh), setup.make_state(mesh)
        batches = itertools.repeat(batch, _TIMED + 1)
        _, step_s = time_batches(program.train_step, state, batches, setup.hparams)
    return step_s


def count_finetuning_steps(sizes: int, runs: int, steps: int | None) -> int:
    """Count the steps of all fine-tuning runs, of both starting points."""
    if steps is None:
        steps = cast(FinetuneConfig, load('quickstart_finetune')).steps
    return 2 * sizes * runs * steps


def forecast(step_s: float, steps: int, finetuning_steps: int) -> float:
    """Return the seconds that all stages take."""
    return step_s * (_PRETRAINING * steps + _FINETUNING * finetuning_steps + _REST)


def fit_steps(minutes: float, step_s: float, finetuning_steps: int) -> int:
    """Return the pre-training steps with which all stages take that long.

    Raises:
      UserError: the other stages alone take longer.
    """
    others = forecast(step_s, 0, finetuning_steps)
    steps = round((60 * minutes - others) / (_PRETRAINING * step_s))
    if steps < _FEWEST:
        least = math.ceil(forecast(step_s, _FEWEST, finetuning_steps) / 60)
        raise UserError(
            f'--minutes={minutes:g}: takes {least} at least on this machine ({others / 60:.1f} for'
            ' all but the pre-training): raise it, or lower --finetune_runs or --train_examples'
        )
    return steps
