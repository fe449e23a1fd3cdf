"""What --init_from names: the shape, weights and tokenizer of a trained encoder.

Owns how such a source is told apart and read. It must not know what is done with it.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from etils import epath

from configs import schema
from configs.errors import UserError
from input_pipeline.tokenizer import Tokenizer


class Source(NamedTuple):
    """A trained model: its encoder's shape, all its parameters (numpy), its tokenizer, and where it came from."""

    model: schema.ModelConfig
    params: dict[str, Any]
    tokenizer: Tokenizer
    where: str
    step: int


def model_config(workdir: str) -> schema.ModelConfig:
    """The model's shape that a workdir of pretrain or finetune holds. UserError where it is no workdir."""
    folder = epath.Path(workdir)
    if not (folder / 'config.json').exists():
        raise UserError(f'{workdir}: no config.json in it; expected a workdir of launch.pretrain or launch.finetune')
    config = schema.loads((folder / 'config.json').read_text(), str(folder / 'config.json'))
    if isinstance(config, schema.PretrainConfig):
        return config.model
    return schema.from_dict(schema.ModelConfig, json.loads((folder / 'data.json').read_text())['model'], f'{workdir}/data.json')


def load_source(where: str) -> Source:
    """Reads a workdir's newest checkpoint and tokenizer. UserError for anything else."""
    from bert_jax.checkpoint import load_params

    model = model_config(where)
    params, step = load_params(where)
    tokenizer = Tokenizer.load(epath.Path(where) / 'tokenizer')
    if tokenizer.vocab_size != model.vocab_size:
        raise UserError(
            f'{where}: its tokenizer has {tokenizer.vocab_size} entries but its model {model.vocab_size}: restore the right tokenizer/'
        )
    return Source(model, params, tokenizer, os.path.abspath(where) if '://' not in where else where, step)
