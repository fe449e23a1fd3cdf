"""A tuned run's workdir with its weights folded into the encoder's, as a workdir of its own.

Owns what of a run stays in the new folder, and which runs have nothing to fold. How weights fold is
bert_jax/conversion/tuned.py's.
"""

from __future__ import annotations

import dataclasses
import os

import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import FinetuneConfig
from bert_jax.conversion import peft
from bert_jax.conversion.tuned import folded
from bert_jax.model.peft.registry import method_of
from bert_jax.runs.sources.source import fold, read_source
from bert_jax.runs.workdir.folder import new_folder
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.checkpoint import Checkpoints, load_params
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
    if not method_of(model).folds and not experts:
        raise UserError(
            f'--workdir={folder}: adapters ({method}) are layers of their own and fit into no'
            " weights of BERT's: use it as it is, or bert-export --format=stablehlo"
        )

    # AdaMix's stays a tuned run, which holds what was trained alone; else the model is whole.
    source = fold(read_source(folder))  # which refuses weights that are not whole
    if experts:
        params, step = load_params(workdir)
        params, _ = folded(params, model)
        tuning = dataclasses.replace(config.tuning, experts=1)
    else:
        params, step, tuning = source.params, source.step, source.model.tuning

    # Settings, data and tokenizer are the run's, so that every command knows its task.
    data = workdir.data() | {'merged_from': os.path.abspath(folder)}
    with new_folder(output) as written:
        merged = Workdir(written)
        merged.create_or_resume(dataclasses.replace(config, tuning=tuning), data)
        workdir.tokenizer().save(merged.tokenizer_folder)
        with Checkpoints(written) as checkpoints:
            state = TrainState(params, {}, jnp.int32(step), jnp.int32(0))
            checkpoints.save(state, {'kind': 'finetune'})
    became = f'one adapter, the mean of {experts}' if experts else 'plain weights'
    return f'{output}: {method} folded into {became}'
