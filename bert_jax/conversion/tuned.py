"""Tuned weights and the encoder that they belong to, as one model; and folded into plain weights.

Owns the way from the few arrays that a tuned run keeps to a model's whole tree, on the host. Which
arrays those are is model/added.py's. A whole model has all its blocks in one stack: what is added
to blocks that were frozen changes nothing there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.model import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.conversion.parameters import brief
from bert_jax.model.added import is_added, neutral, trained_from

# The methods whose weights are a change of BERT's own, and no part of the computation.
FOLDED = ('full', 'bitfit', 'lora', 'ia3', 'spafit')

_MEND = 'put its checkpoint back from a copy'


def assembled(
    encoder: dict[str, Any], tuned: dict[str, Any], config: ModelConfig, name: str
) -> tuple[dict[str, Any], ModelConfig]:
    """(parameters, shape) of the model of an encoder's own weights and those of a tuned run.

    encoder: of the source, all numpy; tuned: the run's parameters; config: its model. `name` is the
    run in UserError, where a shape does not fit.
    """
    own = traverse_util.flatten_dict({'encoder': encoder}, sep='/')
    given = traverse_util.flatten_dict(tuned, sep='/')
    # What tuning trains must be there: else the encoder's own would stand for it.
    trained = {path for path in own if trained_from(path, config) is not None}
    if missing := trained - given.keys() - config.words.computed:
        raise UserError(f'{name}: missing {brief(missing)}, which its tuning trains: {_MEND}')
    whole = dict(own)
    for path, leaf in given.items():
        leaf = np.asarray(leaf)
        if '/layers/' in path:
            below = config.own_blocks - leaf.shape[0]
            if below != trained_from(path, config):
                raise UserError(f'{name}: {path} has {leaf.shape[0]} blocks: {_MEND}')
            if is_added(path):
                before = np.full((below, *leaf.shape[1:]), neutral(path), leaf.dtype)
            else:
                before = own[path][:below] if path in own else leaf[:0]
            leaf = np.concatenate([before, leaf]) if below else leaf
        if path in own and own[path].shape != leaf.shape:
            raise UserError(
                f'{name}: {path} is {leaf.shape} and {own[path].shape} in its encoder: it was tuned'
                ' on another'
            )
        whole[path] = leaf

    # Where all blocks stand in one stack there are no groups of them.
    tuning = dataclasses.replace(config.tuning, frozen_layers=0)
    if tuning.method == 'spafit':
        tuning = dataclasses.replace(tuning, bias_layers=0)
    return traverse_util.unflatten_dict(whole, sep='/'), config.tuned(tuning)


def folded(params: dict[str, Any], config: ModelConfig) -> tuple[dict[str, Any], ModelConfig]:
    """Return the same model in BERT's own weights, where its method allows that; in float32.

    W + alpha / rank * A B for an update; (IA)3's scales go into the rows or columns next to them.
    AdaMix's adapters become one, their mean. Adapters stay: they are a part of the computation.
    """
    tuning = config.tuning
    if tuning.method == 'full':
        return params, config
    layers = dict(params['encoder']['layers'])

    if tuning.method in ('lora', 'spafit'):
        scale = tuning.option('alpha') / tuning.option('rank')
        for name in tuning.option('matrices').split(','):
            a, b = (layers.pop(f'{name}_lora_{ab}')['kernel'] for ab in 'ab')
            update = np.float32(scale) * np.matmul(a, b)
            layers[name] = {**layers[name], 'kernel': layers[name]['kernel'] + update}

    if tuning.method == 'ia3':
        for name in [name for name in layers if name.endswith('_ia3')]:
            scale = layers.pop(name)['scale']
            matrix = name.removesuffix('_ia3')
            kernel, bias = layers[matrix]['kernel'], layers[matrix]['bias']
            # Keys and values are scaled after their product, the others before it.
            after = matrix in ('key', 'value')
            layers[matrix] = {
                'kernel': kernel * (scale[:, None, :] if after else scale[:, :, None]),
                'bias': bias * scale if after else bias,
            }

    # One expert, as the mean of all: what is computed outside of training anyway.
    if tuning.method == 'adamix':
        experts = layers['output_adapter_down']
        layers['output_adapter_down'] = {
            name: leaf.mean(1, keepdims=True) for name, leaf in experts.items()
        }
        tuning = dataclasses.replace(tuning, experts=1)
    elif tuning.method in FOLDED:
        tuning = TuningConfig()

    encoder = {**params['encoder'], 'layers': layers}
    return {**params, 'encoder': encoder}, config.tuned(tuning)
