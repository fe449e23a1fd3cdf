"""Tuned weights and the encoder that they belong to, as one model; and folded into plain weights.

Owns the way from the few arrays that a tuned run keeps to a model's whole tree, on the host. Which
arrays those are is model/tuning.py's. A whole model has all its blocks in one stack: what is added
to blocks that were frozen changes nothing there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion.parameters import brief
from bert_jax.model.tuning import is_added, method_of, neutral

_MEND = 'put its checkpoint back from a copy'


def assembled(
    encoder: dict[str, Any], tuned: dict[str, Any], config: ModelConfig, name: str
) -> tuple[dict[str, Any], ModelConfig]:
    """(parameters, shape) of the model of an encoder's own weights and those of a tuned run.

    encoder: of the source, all numpy; tuned: the run's parameters; config: its model. `name` is the
    run in UserError, where a shape does not fit.
    """
    encoder_leaves = traverse_util.flatten_dict({'encoder': encoder}, sep='/')
    given = traverse_util.flatten_dict(tuned, sep='/')
    # What tuning trains must be there: else the encoder's own would stand for it.
    trained_from = method_of(config).trained_from
    trained = {path for path in encoder_leaves if trained_from(path) is not None}
    if missing := trained - given.keys() - config.words.computed:
        raise UserError(f'{name}: missing {brief(missing)}, which its tuning trains: {_MEND}')
    whole = dict(encoder_leaves)
    for path, leaf in given.items():
        leaf = np.asarray(leaf)
        if '/layers/' in path:
            # Blocks that have the leaf: some lack a norm. The lowest of them may be frozen.
            rows = len(encoder_leaves[path]) if path in encoder_leaves else config.own_blocks
            below, start = rows - leaf.shape[0], trained_from(path)
            if start is None or below != max(start - (config.own_blocks - rows), 0):
                raise UserError(f'{name}: {path} has {leaf.shape[0]} blocks: {_MEND}')
            if is_added(path):
                before = np.full((below, *leaf.shape[1:]), neutral(path), leaf.dtype)
            else:
                before = encoder_leaves[path][:below] if path in encoder_leaves else leaf[:0]
            leaf = np.concatenate([before, leaf]) if below else leaf
        if path in encoder_leaves and encoder_leaves[path].shape != leaf.shape:
            raise UserError(
                f'{name}: {path} is {leaf.shape} and {encoder_leaves[path].shape} in its encoder:'
                ' it was tuned on another'
            )
        whole[path] = leaf

    # Where all blocks stand in one stack there are no groups of them.
    tuning = dataclasses.replace(config.tuning, frozen_layers=0)
    if tuning.bias_layers:
        tuning = dataclasses.replace(tuning, bias_layers=0)
    return traverse_util.unflatten_dict(whole, sep='/'), config.tuned(tuning)


def folded(params: dict[str, Any], config: ModelConfig) -> tuple[dict[str, Any], ModelConfig]:
    """Return the same model in BERT's own weights, where its method allows that; in float32.

    AdaMix's adapters become one, their mean. Others stay: they are a part of the computation.
    """
    method = method_of(config)
    layers = method.fold(params['encoder']['layers'])
    encoder = {**params['encoder'], 'layers': layers}
    return {**params, 'encoder': encoder}, config.tuned(method.left())
