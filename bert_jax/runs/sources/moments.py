"""The optimizer's moments of a source, for a run that goes on with them from step 0.

A phase of a pre-training that is a run of its own begins so: with other settings, and a schedule
that starts again. Owns which sources have moments that fit. How checkpoints are read is
bert_jax/train/checkpoint.py's.
"""

from __future__ import annotations

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import OptimizerConfig, PretrainConfig
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.runs.sources.source import at_step
from bert_jax.runs.workdir.workdir import MEND
from bert_jax.train.checkpoint import load_opt_state
from bert_jax.train.state import TrainState, load_moments

FLAG = '--init_by=weights_and_moments'


def check(name: str, tokenizer: Tokenizer, optimizer: OptimizerConfig) -> None:
    """Raise UserError where the source has no moments, or those of another optimizer or words."""
    workdir, _ = at_step(name)
    file = workdir.config_file
    # A directory of Hugging Face has a config.json too.
    is_workdir = file.exists() and 'kind' in read_object(file, MEND)
    begun = workdir.config() if is_workdir else None
    if not isinstance(begun, PretrainConfig) or begun.tuning.method != 'full':
        raise UserError(
            f'{FLAG}: {name} has no moments of a whole model: name a workdir of bert-pretrain, or'
            ' take --init_by=weights'
        )
    if begun.optimizer.algorithm != optimizer.algorithm:
        raise UserError(
            f'{FLAG}: {name} was trained with optimizer.algorithm={begun.optimizer.algorithm},'
            f' whose moments are not those of {optimizer.algorithm}: take the same, or'
            ' --init_by=weights'
        )
    if workdir.tokenizer().fingerprint != tokenizer.fingerprint:
        raise UserError(
            f'{FLAG}: the vocabulary of --data is not that of {name}, whose moments are of its own'
            ' words: take --init_by=weights'
        )


def put_into(state: TrainState, name: str, step: int) -> TrainState:
    """Return `state` with the moments of a source that `check` let pass, at that step of its."""
    workdir, _ = at_step(name)
    return load_moments(state, load_opt_state(workdir, step), f'{FLAG}: {name}')
