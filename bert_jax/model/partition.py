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
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh.sharding import format_path, list_axes
from bert_jax.model import layout
from bert_jax.model.blocks.attention import ATTENTIONS
from bert_jax.model.blocks.block import make_parts
from bert_jax.model.blocks.feed_forward import FEED_FORWARDS
from bert_jax.model.blocks.positions import POSITIONS
from bert_jax.model.embeddings import pad_vocab


def _make_block_rules() -> list[tuple[str, P]]:
    """Return the rules for the matrices of all parts that a block may have."""
    columns: list[str] = []
    rows: list[str] = []
    for part in (*ATTENTIONS.values(), *FEED_FORWARDS.values()):
        columns += part.columns
        rows += part.rows
    for positions in POSITIONS.values():
        columns += positions.columns
    in_block = r'layers/(\d+/)?'
    of_columns, of_rows = '|'.join(dict.fromkeys(columns)), '|'.join(dict.fromkeys(rows))
    return [
        (rf'{in_block}({of_columns})/kernel$', P('fsdp', 'model')),
        (rf'{in_block}({of_columns})/bias$', P('model')),
        (rf'{in_block}({of_rows})/kernel$', P('model', 'fsdp')),
    ]


# First match wins; anything else (the small tables, biases, norms, scalars) is on every device. The
# BiLSTM is not split over `model`: each step of its recurrence would wait for it.
RULES = (
    (r'(embeddings/word|mlm/decoder)$', P(('fsdp', 'model'), None)),
    (r'mlm/bias$', P(('fsdp', 'model'))),  # one entry for each row of the table
    *_make_block_rules(),
    (r'(pooler|mlm/transform)/kernel$', P('fsdp', None)),
    (r'bilstm/.*/kernel$', P('fsdp', None)),
    (r'convolution/kernel$', P('fsdp', None)),
)


def _choose_spec(
    path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh, over_data: bool = False
) -> P:
    """Return the first rule's PartitionSpec for a leaf, without axes that do not divide.

    over_data: matrices are split over `data` too, along their first axis.
    """
    spec = next((spec for pattern, spec in RULES if re.search(pattern, path)), None)
    if spec is None:
        return P()
    wanted = list(spec)
    if over_data and len(spec) > 1:
        # `data` is the outermost: exchange.py cuts along it before all others.
        wider = ('data', *list_axes(spec[0]))
        if shape[-len(spec)] % _count_parts(mesh, wider) == 0:
            wanted[0] = wider
    # Right-aligned: stacked leaves have a leading L that no rule names. Axis by axis: what divides
    # is split even where its neighbour does not.
    chosen: list[Any] = [None] * (len(shape) - len(spec))
    for axes, size in zip(wanted, shape[len(chosen) :], strict=True):
        chosen.append(axes if size % _count_parts(mesh, axes) == 0 else None)
    return P(*chosen)


def _count_parts(mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...] | None) -> int:
    """Return the number of parts that an array's axis has when it is split over these mesh axes."""
    return math.prod(mesh.shape[name] for name in list_axes(axes))


def choose_shardings(tree: Any, mesh: Mesh | AbstractMesh, shard_optimizer: bool = False) -> Any:
    """Return a NamedSharding for every leaf of a tree of arrays or ShapeDtypeStructs, by RULES.

    An axis that does not divide stays whole. With `shard_optimizer` the weights and moments of a
    train state are split over `data` too (Xu et al. 2020, weight-update sharding); what is frozen
    has no update, and is not.
    """

    # Moments end in their parameter's path, so the same rules meet them.
    def sharding_of(key_path, leaf):
        path = format_path(key_path)
        over_data = shard_optimizer and path.startswith(('params/', 'opt_state/'))
        return NamedSharding(mesh, _choose_spec(path, leaf.shape, mesh, over_data))

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def find_places(params: Any, shard_optimizer: bool) -> Any:
    """Return the NamedShardings of a train state's weights on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return choose_shardings({'params': params}, mesh, shard_optimizer)['params']


def put(params: Any, mesh: Mesh, is_scanned: bool = False) -> Any:
    """Put a model's parameters on a mesh, for a program that reads them again and again.

    Args:
      params: numpy arrays.
      mesh: the devices.
      is_scanned: whether the program goes through the blocks in a loop (runtime.scan_layers).
    """
    params = layout.arrange_for_program(params, is_scanned)
    return jax.device_put(params, choose_shardings(params, mesh))


class _Dimension(NamedTuple):
    """A dimension of a model, and the settings over whose product it should be split."""

    name: str
    size: int
    axes: tuple[str, ...]

    def count_parts(self, runtime: RuntimeConfig) -> int:
        """Return into how many parts the settings would split it."""
        return math.prod(getattr(runtime, axis) for axis in self.axes)


def list_unsplit(model: ModelConfig, runtime: RuntimeConfig) -> list[str]:
    """Return a warning for each dimension that should be split over the devices and is not.

    UserError where runtime.fsdp or runtime.model_parallel divides none of its dimensions: the
    devices along that axis would all hold the same and do the same work.
    """
    # What the rules split. Biases and norms are left out, being small.
    hidden, vocab = model.hidden_size, pad_vocab(model.vocab_size)
    dimensions = [_Dimension(f'model.hidden_size={hidden}', hidden, ('fsdp',))]
    sizes: dict[str, int] = {}
    for part in make_parts(model):
        sizes |= part.split_sizes()
    for name, size in sizes.items():
        dimensions.append(_Dimension(f'model.{name}={size}', size, ('model_parallel',)))
    table = f'the {vocab:,} rows of the word table'
    dimensions.append(_Dimension(table, vocab, ('fsdp', 'model_parallel')))
    unsplit = [d for d in dimensions if d.size % d.count_parts(runtime)]

    # Refused only where an axis splits nothing at all: part of a model split is slower than need
    # be, but works.
    for axis in ('fsdp', 'model_parallel'):
        concerned = [d for d in dimensions if axis in d.axes]
        if all(d in unsplit for d in concerned):
            count = getattr(runtime, axis)
            names = ', '.join(d.name for d in concerned)
            common = math.gcd(*(d.size for d in concerned if d.axes == (axis,)))
            raise UserError(
                f'runtime.{axis}={count} divides none of {names}, so that nothing would be split '
                f'over these devices: take {_suggest_divisor(common, count)}'
            )
    warnings = []
    for dimension in unsplit:
        settings = ' x '.join(f'runtime.{axis}' for axis in dimension.axes)
        count = dimension.count_parts(runtime)
        warnings.append(
            f'{settings} = {count} does not divide {dimension.name}: not split, each device has all'
            f' of it; {_suggest_divisor(dimension.size, count)} would'
        )
    return warnings


def _suggest_divisor(size: int, count: int) -> str:
    """Return numbers of devices near `count` that would divide `size`, in words."""
    common = math.gcd(size, count)
    if common > 1:
        return f'{common}'
    below = count - 1
    while size % below:
        below -= 1
    if count > size:
        return f'{below}'
    above = count
    while size % above:
        above += 1
    return f'{below} or {above}'
