"""What the parts of a mesh send each other of weights and gradients, where XLA is not left to it.

Owns the exchange over `data` (gradients added up, and, where the update is sharded, scattered, and
weights gathered) and the look-up in a table that is split over `fsdp`. Where things lie is
sharding.py's; what is computed is the caller's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh.sharding import (
    free_axes,
    names_of,
    path_of,
    platform_of,
    shards_update,
)

# The TPU without sparse cores that was compiled for. On others those reduce-scatter during the work
# of all other units; on this one nothing does. Why it is all-to-all there: four layers of
# BERT-large's width on v5e:2x4 were 10.5 to 12.8 ms a step by a price list of ours, which is gone,
# with reduce-scatters 10.7 to 14.1. No chip has confirmed these figures.
_NO_SPARSE_CORES = re.compile(r'TPU v5 ?(lite|e)$')
# libtpu 0.0.42 has no all-to-all during other work for larger slices of a v5e: their wiring lets
# chips of one row or column exchange, and even that not during other work.
_ALL_TO_ALL_UP_TO = 16
# TPUs whose wiring has two sides; that of the others has three.
_TWO_SIDES = re.compile(r'TPU v\d+ ?(lite|e)$')


def is_by_parts(accumulation: int, shard_optimizer: bool, dropout_rng: str) -> bool:
    """Tell whether a step with such settings takes its gradients by `per_data_shard`."""
    # rbg draws one array for all rows of a micro-batch, so it must see them all.
    return dropout_rng != 'rbg' and (accumulation > 1 or shard_optimizer)


def is_all_to_all(
    runtime: RuntimeConfig, mesh: Mesh | AbstractMesh, may_choose: bool = True
) -> bool:
    """Tell whether kernels' gradients are exchanged all-to-all, by setting or on a v5e.

    By itself where a reduce-scatter would run alone, and where gradients of one block come while
    those of others are computed: the loops of accumulation and of scanned layers do not let that
    happen. may_choose: whether `auto` may be an all-to-all. UserError where one is named
    that cannot be had.
    """
    is_small = mesh.size <= _ALL_TO_ALL_UP_TO
    if runtime.gradient_exchange == 'all_to_all' and platform_of(mesh) == 'tpu' and not is_small:
        raise UserError(
            f'runtime.gradient_exchange=all_to_all: libtpu has it for up to {_ALL_TO_ALL_UP_TO}'
            f' chips, and there are {mesh.size}: use reduce_scatter, or auto'
        )
    if runtime.gradient_exchange != 'auto':
        return runtime.gradient_exchange == 'all_to_all'
    in_turn = runtime.accumulation == 1 and not runtime.scan_layers
    return may_choose and lacks_sparse_cores(mesh) and in_turn and is_small


def lacks_sparse_cores(mesh: Mesh | AbstractMesh) -> bool:
    """Tell whether the chips of the mesh have no unit of their own for exchanges: a v5e's."""
    device = mesh.abstract_mesh.abstract_device
    return device is not None and bool(_NO_SPARSE_CORES.match(device.device_kind))


def without_effect(runtime: RuntimeConfig, mesh: Mesh | AbstractMesh) -> list[str]:
    """Return a line for each named setting of the exchange without effect on this mesh."""
    shards, named = shards_update(runtime, mesh), []
    if runtime.gradient_exchange != 'auto':
        named.append(f'gradient_exchange={runtime.gradient_exchange}')
    if runtime.shard_optimizer:
        named.append('shard_optimizer=true')
    if mesh.shape['data'] == 1:
        why = 'one part of the mesh axis `data` has nothing to exchange with'
    elif not shards:
        why = 'the update is not sharded (runtime.shard_optimizer=true does that)'
    elif runtime.dropout_rng == 'rbg':
        # The update is sharded, but how gradients come together XLA decides.
        why = 'under runtime.dropout_rng=rbg the exchange is left to XLA'
        named = [setting for setting in named if setting.startswith('gradient_exchange')]
    else:
        return []
    return [f'runtime.{setting} has no effect: {why}' for setting in named]


def per_data_shard(
    summed: Callable[..., Any],
    shardings: Any,
    rows: P,
    dtype: DTypeLike = jnp.float32,
    all_to_all: bool = False,
) -> Callable[..., Any]:
    """Wrap `summed(params, shared, rows)` -> (gradients, sums): one exchange over the axis `data`.

    Each part of `data` sums its own share of the batch by a program of its own, and the parts are
    added up at the end. Left to itself XLA reduces inside the loops of `summed`, once a turn.

    Args:
      summed: the gradients and sums of a batch.
      shardings: NamedShardings of what the gradients are of. Where params are split over `data`,
        `summed` is given them whole, and each part is left with its own share of their gradients:
        together that moves what adding up whole gradients does.
      rows: how the leaves of a batch are cut over `data`.
      dtype: of the arithmetic. Kernels are used in no other, so they are gathered in it; a gradient
        is added up in the dtype that `summed` gives it.
      all_to_all: whether the parts send each other their pieces of a kernel's gradient, and each
        adds up its own, in float32. It moves what a reduce-scatter does, and libtpu runs it during
        the work that follows.
    """
    # Without a split of `data` there is nothing to exchange.
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape['data'] == 1:
        return summed
    axes = jax.tree.map(_axis_over_data, shardings)

    def gathered(path, x, axis):
        sent = x.astype(dtype) if _is_kernel(path) else x
        gather = lambda block: jax.lax.all_gather(block, 'data', tiled=True)
        return x if axis < 0 else _layer_by_layer(gather, sent, axis)

    platform, scattered, exchanged = platform_of(mesh), *_reducers(mesh)

    def reduced(path, x, param, axis):
        # XLA for CPUs ends the process over a scatter of bfloat16 (jaxlib 0.10.2).
        x = x.astype(param.dtype) if platform == 'cpu' else x
        if axis < 0:
            return jax.lax.psum(x, 'data')
        # The gradients of the tables come last, when nothing is left to be done meanwhile.
        in_pieces = all_to_all and _is_kernel(path)
        return _layer_by_layer(exchanged if in_pieces else scattered, x, axis)

    def local(params, shared, rows):
        whole = jax.tree_util.tree_map_with_path(gathered, params, axes)
        gradients, sums = summed(whole, shared, rows)
        gradients = jax.tree_util.tree_map_with_path(reduced, gradients, params, axes)
        wide = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, params)
        return wide, jax.lax.psum(sums, 'data')

    split = jax.tree.map(lambda axis: P() if axis < 0 else P(*(None,) * axis, 'data'), axes)
    return _shard_map(local, (split, P(), rows), (split, P()), 'data')


def _is_kernel(path: tuple[Any, ...]) -> bool:
    return path_of(path).endswith('kernel')


def _reducers(mesh: Mesh | AbstractMesh) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two ways to add up a block over `data` and leave each part its piece of the sum."""
    parts, steps = mesh.shape['data'], _steps(_scatter_sides(mesh))

    def scattered(block):
        for groups in steps:
            block = jax.lax.psum_scatter(block, 'data', axis_index_groups=groups, tiled=True)
        return block

    def exchanged(block):
        pieces = block.reshape(parts, block.shape[0] // parts, *block.shape[1:])
        return jax.lax.all_to_all(pieces, 'data', 0, 0).astype(jnp.float32).sum(0)

    return scattered, exchanged


def _shard_map(local: Callable[..., Any], in_specs: Any, out_specs: Any, axis: str) -> Any:
    """Wrap `local`, which each part of the mesh axis runs by itself."""
    return jax.shard_map(
        local, in_specs=in_specs, out_specs=out_specs, axis_names={axis}, check_vma=False
    )


def _axis_over_data(sharding: NamedSharding) -> int:
    """Return the axis of an array that is split over `data`; -1 where none is."""
    return next((i for i, axes in enumerate(sharding.spec) if 'data' in names_of(axes)), -1)


def _scatter_sides(mesh: Mesh | AbstractMesh) -> list[int]:
    """Return the sides along which `data` scatters, a step for each; [parts]: all at once.

    On a TPU at once over four chips, and over wiring of two sides of different lengths. Of another
    scatter over all chips libtpu 0.0.42 makes an all-reduce, of twice the bytes; one over the chips
    of a side it leaves as it is. Two layers of BERT-large's width on v5e:8x8 took 5.81 to
    8.04 ms a step in two steps, and 5.81 to 9.13 with all-reduces, by a price list of ours, which
    is gone. No chip has confirmed these figures; that fewer bytes are sent the program shows.
    """
    device, parts = mesh.abstract_mesh.abstract_device, mesh.shape['data']
    smaller = max(side for side in range(1, math.isqrt(parts) + 1) if parts % side == 0)
    if platform_of(mesh) != 'tpu' or parts <= 4 or smaller == 1:
        return [parts]
    is_oblong = _TWO_SIDES.match(device.device_kind) and smaller * smaller != parts
    return [parts] if is_oblong else [smaller, parts // smaller]


def _steps(sides: list[int]) -> list[list[list[int]]]:
    """Return who scatters among each other, step by step: groups of parts.

    The parts are laid out row by row, as a mesh is over the wiring of a TPU, and exchange along one
    side after the other. The first side comes first: so each part is left with the piece of its own
    number, as if all had been at once.
    """
    numbers = np.arange(math.prod(sides)).reshape(sides)
    return [np.moveaxis(numbers, i, -1).reshape(-1, n).tolist() for i, n in enumerate(sides)]


def _layer_by_layer(exchange: Callable[..., Any], x: jax.Array, axis: int) -> jax.Array:
    """Return `exchange` of x along `axis`: of each block by itself where that is not the first.

    libtpu scatters along a first axis alone; along another it adds up the whole and cuts. And what
    is gathered block by block arrives while the blocks below are computed.
    """
    return exchange(x) if axis == 0 else jnp.stack([exchange(block) for block in x])


def look_up(table_VH: jax.Array, ids_BT: jax.Array) -> jax.Array:
    """Return rows of a table [V, H] by their numbers [B, T]: [B, T, H].

    Of a table that is split over `fsdp` each part gathers the whole and scatters its gradient back.
    Left to itself XLA adds up the whole gradient on each device, and cuts: 125 MB more to gather
    for BERT-large, and 5.0 to 18.3 ms a step of one layer in place of 4.7 to 15.8 by a price list
    of ours, which is gone. No chip has confirmed these times.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = mesh.shape['fsdp'] if 'fsdp' in free_axes() else 1
    # One row (a model's first shapes) or a table that does not divide is whole on each device.
    if parts == 1 or table_VH.shape[0] % parts or ids_BT.shape[0] % parts:
        return table_VH[ids_BT]
    local = lambda part, ids: jax.lax.all_gather(part, 'fsdp', tiled=True)[ids]
    by_rows = P('fsdp')
    return _shard_map(local, (by_rows, by_rows), by_rows, 'fsdp')(table_VH, ids_BT)
