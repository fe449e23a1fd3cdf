"""A model's first weights, made of one of another size: a larger one's, or a shallower one's.

ModernBERT's large model began from its base model, whose matrices were repeated
(AnswerDotAI/ModernBERT initialization.py, model.py: centre tiling; no rescaling). DistilBERT began
from every second block of its teacher. Owns which place of a weight is taken from which. Must not
know how a source is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from flax import traverse_util

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import group_by_path
from bert_jax.model.heads import Pretraining
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.optimizer import is_stacked
from bert_jax.train.state import compute_parameter_shapes

# Settings of the model in which the new one may differ, by the name of the way (`--init_by`).
SIZES = {
    'tiling': ('hidden_size', 'num_layers', 'num_heads', 'intermediate_size'),
    'layers': ('num_layers',),
}


def resized(source: Source, config: ModelConfig, way: str) -> Source:
    """Return the source with those sizes of `config` that are the way's.

    tiling: its matrices are tiled, its blocks repeated; of the arrays those of a pre-training model
    stay. layers: as many of its blocks as `config` has, as far apart as they can be, the first and
    the last among them: 0, 2, 4, 7, 9 and 11 of twelve (transformers' DistilBERT,
    extract_distilbert.py). UserError where that cannot be.
    """
    old, new, is_tiled = source.model.own_blocks, config.num_layers, way == 'tiling'
    if is_tiled and source.model.bilstm:  # whose gates share an array
        raise UserError(f'--init_by=tiling: {source.where} has a BiLSTM, which cannot be tiled')
    if not is_tiled and (new > old or old != source.model.num_layers):
        raise UserError(
            f'--init_by=layers: {source.where} has {old} blocks of its own, and'
            f' model.num_layers={new} asks for as many of them'
        )
    sizes = {name: getattr(config, name) for name in SIZES[way]}
    model = dataclasses.replace(source.model, **sizes)
    shapes = group_by_path(compute_parameter_shapes(Pretraining(model)))
    if is_tiled:
        chosen = repeated(old, model.own_blocks)
    else:
        chosen = np.linspace(0, old - 1, new).round().astype(int).tolist()

    def made(path: str, leaf: np.ndarray) -> np.ndarray:
        if path not in shapes:
            return leaf
        shape, first = shapes[path].shape, 0
        if is_stacked(path):
            leaf, first = leaf[_rows(chosen, old - len(leaf), shape[0])], 1
        return _tile(leaf, shape, first)

    # What the first block of a family lacks, a stack of that block alone does not have.
    leaves = {
        path: made(path, np.asarray(leaf))
        for path, leaf in group_by_path(source.params).items()
        if path in shapes or not (is_tiled or is_stacked(path))
    }
    for path, shape in shapes.items():
        if is_stacked(path) and path not in leaves:  # a norm, which changes nothing so
            value = 1.0 if path.endswith('scale') else 0.0
            leaves[path] = np.full(shape.shape, value, np.float32)
    params = traverse_util.unflatten_dict(leaves, sep='/')
    if is_tiled:
        params = word_vectors.filled_in(params, model, source.tokenizer)
    return source.changed(config=model, params=params)


def _tile(old: np.ndarray, shape: tuple[int, ...], first: int) -> np.ndarray:
    """Return [..., r, c]: the old array in the middle, repeated on all sides from axis `first`."""
    for axis in range(first, old.ndim):
        size, before = shape[axis], old.shape[axis]
        old = np.take(old, (np.arange(size) - (size - before) // 2) % before, axis)
    return old


def repeated(old: int, new: int) -> list[int]:
    """Return the block, of `old`, that each of `new` blocks is made of."""
    return [min(round(i * old / new), old - 1) for i in range(new)]


def _rows(chosen: Sequence[int], lacking: int, count: int) -> list[int]:
    """Return the rows of a stack whose first `lacking` blocks have none, for the last `count`.

    A block that is made of such a one takes the row of the next.
    """
    return [max(0, number - lacking) for number in chosen[len(chosen) - count :]]
