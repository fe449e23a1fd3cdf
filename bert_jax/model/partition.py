"""Which axis of which array is split over the mesh, and what of a model no axis divides.

Owns the table from parameter paths to PartitionSpecs, to which each part of a block adds its
matrices. Optimizer moments follow the same table, because their leaves end in their parameter's
path.

Notation of the table: the last axes of the leaf, so stacked layers ([L, ...]) need no rule of their
own.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh.sharding import names_of, path_of
from bert_jax.model import layout
from bert_jax.model.blocks.attention import ATTENTIONS
from bert_jax.model.blocks.block import parts_of
from bert_jax.model.blocks.feed_forward import FEED_FORWARDS
from bert_jax.model.embeddings import padded_vocab


def _of_blocks() -> list[tuple[str, P]]:
    """Return the rules for the matrices of all parts that a block may have."""
    parts = [*ATTENTIONS.values(), *FEED_FORWARDS.values()]
    columns, rows = (
        '|'.join(dict.fromkeys(name for part in parts for name in getattr(part, side)))
        for side in ('columns', 'rows')
    )
    in_block = r'layers/(\d+/)?'
    return [
        (rf'{in_block}({columns})/kernel$', P('fsdp', 'model')),
        (rf'{in_block}({columns})/bias$', P('model')),
        (rf'{in_block}({rows})/kernel$', P('model', 'fsdp')),
    ]


# First match wins; anything else (the small tables, biases, norms, scalars) is on every device. The
# BiLSTM is not split over `model`: each step of its recurrence would wait for it.
RULES = (
    (r'(embeddings/word|mlm/decoder)$', P(('fsdp', 'model'), None)),
    (r'mlm/bias$', P(('fsdp', 'model'))),  # one entry for each row of the table
    *_of_blocks(),
    (r'(pooler|mlm/transform)/kernel$', P('fsdp', None)),
    (r'bilstm/.*/kernel$', P('fsdp', None)),
)


def _spec(
    path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh, over_data: bool = False
) -> P:
    """Return the first rule's PartitionSpec for a leaf, without axes that do not divide.

    over_data: matrices are split over `data` too, along their first axis.
    """
    for pattern, spec in RULES:
        if re.search(pattern, path):
            wanted = list(spec)
            # `data` is the outermost: exchange.py cuts along it before all others.
            wider = ('data', *names_of(spec[0]))
            if over_data and len(spec) > 1 and shape[-len(spec)] % _size(mesh, wider) == 0:
                wanted[0] = wider
            # Right-aligned: stacked leaves have a leading L that no rule names.
            full = (*(None,) * (len(shape) - len(spec)), *wanted)
            # Axis by axis: what divides is split even where its neighbour does not.
            pairs = zip(full, shape, strict=True)
            return P(*(axes if size % _size(mesh, axes) == 0 else None for axes, size in pairs))
    return P()


def _size(mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...] | None) -> int:
    """Return the number of parts that an array's axis has when it is split over these mesh axes."""
    return math.prod(mesh.shape[name] for name in names_of(axes))


def shardings(tree: Any, mesh: Mesh | AbstractMesh, shard_optimizer: bool = False) -> Any:
    """Return a NamedSharding for every leaf of a tree of arrays or ShapeDtypeStructs, by RULES.

    An axis that does not divide stays whole. With `shard_optimizer` the weights and moments of a
    train state are split over `data` too (Xu et al. 2020, weight-update sharding); what is frozen
    has no update, and is not.
    """

    # Moments end in their parameter's path, so the same rules meet them.
    def sharding_of(key_path, leaf):
        path = path_of(key_path)
        has_update = path.startswith(('params/', 'opt_state/'))
        return NamedSharding(mesh, _spec(path, leaf.shape, mesh, shard_optimizer and has_update))

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def places_of(params: Any, shard_optimizer: bool) -> Any:
    """Return the NamedShardings of a train state's weights on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return shardings({'params': params}, mesh, shard_optimizer)['params']


def put(params: Any, mesh: Mesh, is_scanned: bool = False) -> Any:
    """Put a model's parameters on a mesh, for a program that reads them again and again.

    Args:
      params: numpy arrays.
      mesh: the devices.
      is_scanned: whether the program goes through the blocks in a loop (runtime.scan_layers).
    """
    params = layout.for_program(params, is_scanned)
    return jax.device_put(params, shardings(params, mesh))


def left_whole(model: ModelConfig, runtime: RuntimeConfig) -> list[str]:
    """Return a warning for each dimension that should be split over the devices and is not.

    UserError where runtime.fsdp or runtime.model_parallel divides none of its dimensions: the
    devices along that axis would all hold the same and do the same work.
    """
    # What the rules split: the sizes, and over which settings. Biases and norms are left out, being
    # small.
    table = f'the {padded_vocab(model.vocab_size):,} rows of the word table'
    sizes = {name: size for part in parts_of(model) for name, size in part.split_sizes().items()}
    # (name, size, the settings over whose product it is split) of each dimension.
    dimensions = [
        (f'model.hidden_size={model.hidden_size}', model.hidden_size, ('fsdp',)),
        *((f'model.{name}={n}', n, ('model_parallel',)) for name, n in sizes.items()),
        (table, padded_vocab(model.vocab_size), ('fsdp', 'model_parallel')),
    ]
    # A dimension stays whole unless that divides it.
    parts = lambda axes: math.prod(getattr(runtime, axis) for axis in axes)
    unsplit = [d for d in dimensions if d[1] % parts(d[2])]

    # Refused only where an axis splits nothing at all: part of a model split is slower than need
    # be, but works.
    for axis in ('fsdp', 'model_parallel'):
        concerned = [d for d in dimensions if axis in d[2]]
        if all(d in unsplit for d in concerned):
            count = getattr(runtime, axis)
            names = ', '.join(name for name, _, _ in concerned)
            common = math.gcd(*(size for _, size, axes in concerned if axes == (axis,)))
            raise UserError(
                f'runtime.{axis}={count} divides none of {names}, so that nothing would be split '
                f'over these devices: take {_nearest(common, count)}'
            )
    return [
        f'{" x ".join(f"runtime.{axis}" for axis in axes)} = {parts(axes)} does not divide '
        f'{name}: not split, each device has all of it; {_nearest(size, parts(axes))} would'
        for name, size, axes in unsplit
    ]


def _nearest(size: int, count: int) -> str:
    """Return what divides `size` and is near `count`, in words."""
    # For the message: a number of devices that would divide.
    if (common := math.gcd(size, count)) > 1:
        return f'{common}'
    below = max(n for n in range(1, count) if size % n == 0)
    above = next((n for n in range(count, size + 1) if size % n == 0), None)
    return f'{below} or {above}' if above else f'{below}'
