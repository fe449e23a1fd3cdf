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
from bert_jax.mesh.sharding import by_path
from bert_jax.model.heads import Pretraining
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir import word_vectors
from bert_jax.train.optimizer import is_stacked
from bert_jax.train.state import parameter_shapes

# Settings of the model in which the new one may differ, by the name of the way (`--init_by`).
SIZES = {
    'tiling': ('hidden_size', 'num_layers', 'num_heads', 'intermediate_size'),
    'layers': ('num_layers',),
}


def tiled(source: Source, config: ModelConfig) -> Source:
    """Return the source with the sizes of `config`: its matrices tiled, its blocks repeated.

    Of the arrays those of a pre-training model. UserError for a BiLSTM, whose gates share an array.
    """
    if source.model.bilstm:
        raise UserError(f'--init_by=tiling: {source.where} has a BiLSTM, which cannot be tiled')
    sizes = {name: getattr(config, name) for name in SIZES['tiling']}
    model = dataclasses.replace(source.model, **sizes)
    shapes = by_path(parameter_shapes(Pretraining(model)))
    blocks = (source.model.own_blocks, model.own_blocks)

    def made(path: str, old: np.ndarray) -> np.ndarray:
        shape = shapes[path].shape
        if is_stacked(path):
            return _tile(old[_blocks(*blocks, len(old), shape[0])], shape, first=1)
        return _tile(old, shape)

    old = {path: leaf for path, leaf in by_path(source.params).items() if path in shapes}
    new = {path: made(path, np.asarray(leaf)) for path, leaf in old.items()}
    params = traverse_util.unflatten_dict(new, sep='/')
    params = word_vectors.filled_in(params, model, source.tokenizer)
    return source._replace(bert=source.bert._replace(config=model, params=params))


def shallower(source: Source, config: ModelConfig) -> Source:
    """Return the source with as many of its blocks as `config` has, the first and last among them.

    They are as far apart as they can be: 0, 2, 4, 7, 9 and 11 of twelve (transformers' DistilBERT,
    extract_distilbert.py). UserError where the source has fewer, or shares its blocks.
    """
    old, new = source.model.num_layers, config.num_layers
    if new > old or source.model.own_blocks != old:
        raise UserError(
            f'--init_by=layers: {source.where} has {source.model.own_blocks} blocks of its own, and'
            f' model.num_layers={new} asks for as many of them'
        )
    model = dataclasses.replace(source.model, num_layers=new)
    shapes = by_path(parameter_shapes(Pretraining(model)))
    chosen = np.linspace(0, old - 1, new).round().astype(int).tolist()

    def made(path: str, leaf: np.ndarray) -> np.ndarray:
        if path not in shapes or not is_stacked(path):
            return leaf
        return leaf[_rows(chosen, old - len(leaf), shapes[path].shape[0])]

    leaves = {path: made(path, np.asarray(leaf)) for path, leaf in by_path(source.params).items()}
    params = traverse_util.unflatten_dict(leaves, sep='/')
    return source._replace(bert=source.bert._replace(config=model, params=params))


def _tile(old: np.ndarray, shape: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Return [..., r, c]: the old array in the middle, repeated on all sides from axis `first`."""
    for axis in range(first, old.ndim):
        size, before = shape[axis], old.shape[axis]
        old = np.take(old, (np.arange(size) - (size - before) // 2) % before, axis)
    return old


def _blocks(old: int, new: int, old_rows: int, new_rows: int) -> list[int]:
    """Return the row of a stack that each row of the new one is made of.

    old, new: how many blocks there are. Where a stack has fewer rows its first blocks lack the
    array; a block that is made of such a one takes the row of the next.
    """
    chosen = [min(round(i * old / new), old - 1) for i in range(new)]
    return _rows(chosen, old - old_rows, new_rows)


def _rows(chosen: Sequence[int], lacking: int, count: int) -> list[int]:
    """Return the rows of a stack whose first `lacking` blocks have none, for the last `count`."""
    return [max(0, number - lacking) for number in chosen[len(chosen) - count :]]
