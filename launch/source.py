"""What --init_from names: the shape, weights and tokenizer of a trained encoder, ours or Hugging Face's.

Owns how such a source is told apart and read. It must not know what is done with it.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from absl import logging
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
        raise UserError(f'{workdir}: no config.json in it; expected a workdir of launch.pretrain or launch.finetune, or a Hugging Face BERT directory')
    config = schema.loads((folder / 'config.json').read_text(), str(folder / 'config.json'))
    if isinstance(config, schema.PretrainConfig):
        return config.model
    source = schema.from_dict(schema.ModelConfig, json.loads((folder / 'data.json').read_text())['model'], f'{workdir}/data.json')
    return config.encoder(source)


def load_source(where: str) -> Source:
    """Reads a workdir's newest checkpoint and tokenizer, or a Hugging Face directory (step 0). UserError for anything else."""
    from bert_jax.checkpoint import load_params
    from bert_jax.interchange import huggingface

    if huggingface.is_directory(where):
        model, params = _read_huggingface(where)
        step, folder = 0, epath.Path(where)
    else:
        model = model_config(where)
        params, step = load_params(where)
        folder = epath.Path(where) / 'tokenizer'
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size != model.vocab_size:
        raise UserError(f'{where}: its tokenizer has {tokenizer.vocab_size} entries but its model {model.vocab_size}: restore the right one in {folder}')
    return Source(model, params, tokenizer, os.path.abspath(where) if '://' not in where else where, step)


def _read_huggingface(where: str) -> tuple[schema.ModelConfig, dict[str, Any]]:
    """The model there, every part of it named in the log; a pooler of seed 0 where the class has none."""
    import jax

    from bert_jax.heads import Pretraining
    from bert_jax.interchange import huggingface
    from bert_jax.train_state import init_params

    model, names, ignored, remarks = huggingface.read(where)
    heads = [part for part in model.parts if part != 'pooler']
    logging.info('%s: %s, %d arrays read; heads: %s; ignored: %s', where, model.architecture, len(names), heads or 'none', list(ignored) or 'none')
    for remark in remarks:
        logging.info('%s: %s', where, remark)
    if 'pooler' not in model.parts:
        logging.warning('%s: %s has no pooler: a fresh one is used', where, model.architecture)
        fresh = jax.jit(lambda: init_params(Pretraining(model.config), 0)['encoder']['pooler'])()
        model.params['encoder']['pooler'] = jax.device_get(fresh)
    return model.config, model.params
