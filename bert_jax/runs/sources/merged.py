"""A run's weights made one: tuned ones folded into the encoder's, or the mean of its checkpoints.

Owns what of a run stays in the new folder, and which runs have nothing to fold or to average. How
weights fold is bert_jax/conversion/trained_model.py's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import new_folder
from bert_jax.configs.schema import Config, FinetuneConfig
from bert_jax.conversion import peft
from bert_jax.conversion.trained_model import fold_tuned
from bert_jax.model.tuning import choose_tuning_method
from bert_jax.runs.sources.source import fold, read_source
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import Checkpoints, list_saved_steps, load_params
from bert_jax.train.state import TrainState


def merge(folder: str, output: str) -> str:
    """Write the workdir `output`: that in `folder` with its weights folded.

    -> what it is now, in words. UserError where there is nothing that can be folded.
    """
    # Refused before any weight is read.
    if peft.is_directory(folder):
        raise UserError(
            f'--workdir={folder} is an adapter of peft: bert-export --init_from={folder}'
            ' --format=huggingface --output=DIR folds it'
        )
    workdir = Workdir(folder)
    workdir.check(flag='workdir')
    config, model = workdir.config(), workdir.model_config()
    method = model.tuning.method
    experts = model.tuning.experts
    if not isinstance(config, FinetuneConfig) or method == 'full' or experts == 1:
        raise UserError(f'--workdir={folder}: nothing is left to fold in it: use it as it is')
    if not choose_tuning_method(model).folds and not experts:
        raise UserError(
            f'--workdir={folder}: adapters ({method}) are layers of their own and fit into no'
            " weights of BERT's: use it as it is, or bert-export --format=stablehlo"
        )

    # AdaMix's stays a tuned run, which holds what was trained alone; else the model is whole.
    source = fold(read_source(folder))  # which refuses weights that are not whole
    if experts:
        params, step = load_params(workdir)
        params, _ = fold_tuned(params, model)
        tuning = dataclasses.replace(config.tuning, experts=1)
    else:
        params, step, tuning = source.params, source.step, source.model.tuning

    data = {'merged_from': os.path.abspath(folder)}
    _write(output, workdir, dataclasses.replace(config, tuning=tuning), data, params, step)
    became = 'plain weights'
    if experts:
        became = f'one adapter, the mean of {experts}'
    return f'{output}: {method} folded into {became}'


def average(folder: str, output: str, steps: Sequence[int]) -> str:
    """Write the workdir `output`: that in `folder` with the mean of its checkpoints of `steps`.

    -> what it is now, in words. UserError where a step has no checkpoint that is whole.
    """
    named = ','.join(map(str, steps))
    workdir = Workdir(folder)
    workdir.check(flag='workdir')
    config = workdir.config()
    if config.tuning.method != 'full':
        raise UserError(
            f'--workdir={folder} holds tuned weights ({config.tuning.method}) alone, whose mean is'
            ' not that of what they make: fold them first (bert-export merge without --average)'
        )
    if len(steps) < 2 or len(set(steps)) < len(steps):
        raise UserError(f'--average={named}: name two steps or more, each once')
    saved = list_saved_steps(workdir)
    missing = [step for step in steps if step not in saved]
    if missing:
        raise UserError(
            f'--average={named}: {folder} has no checkpoint of step {missing[0]}, but of'
            f' {", ".join(map(str, saved)) or "none"}; runtime.keep_every keeps them'
        )

    # One after the other, in float64, and rounded once: the order of the steps does not show.
    total = None
    for step in steps:
        params, _ = load_params(workdir, step)
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    mean = jax.tree.map(lambda x, like: (x / len(steps)).astype(like.dtype), total, params)
    data = {'averaged_from': os.path.abspath(folder), 'averaged_steps': list(steps)}
    _write(output, workdir, config, data, mean, max(steps))
    return f'{output}: the mean of the weights at steps {named.replace(",", ", ")}'


def _write(
    output: str, workdir: Workdir, config: Config, data: dict[str, Any], params: Any, step: int
) -> None:
    """Write the workdir `output` with the parameters, and with all else as in `workdir`."""
    # Settings, data and tokenizer are the run's, so that every command knows its task.
    kind = 'finetune' if isinstance(config, FinetuneConfig) else 'pretrain'
    with new_folder(epath.Path(output)) as written:
        made = Workdir(written)
        made.create_or_resume(config, workdir.data() | data)
        workdir.tokenizer().save(made.tokenizer_folder)
        with Checkpoints(written) as checkpoints:
            state = TrainState(params, {}, jnp.int32(step), jnp.int32(0))
            checkpoints.save(state, {'kind': kind})
