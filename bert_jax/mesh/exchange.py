"""What the parts of a mesh send each other of weights and gradients, where XLA is not left to it.

Owns the exchange over `data` (gradients added up, and, where the update is sharded, scattered, and
weights gathered) and the look-up in a table that is split over `fsdp`. Where things lie is
sharding.py's; what is computed is the caller's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh.sharding import (
    find_platform,
    format_path,
    list_axes,
    list_free_axes,
)


def is_by_parts(accumulation: int, shard_optimizer: bool, dropout_rng: str) -> bool:
    """Tell whether a step with such settings takes its gradients by `sum_by_parts`."""
    # rbg draws one array for all rows of a micro-batch, so it must see them all.
    return dropout_rng != 'rbg' and (accumulation > 1 or shard_optimizer)


def list_without_effect(runtime: RuntimeConfig, mesh: Mesh | AbstractMesh) -> list[str]:
    """Return a line for each named setting of the exchange without effect on this mesh."""
    if runtime.shard_optimizer and mesh.shape['data'] == 1:
        return [
            'runtime.shard_optimizer=true has no effect: one part of the mesh axis `data` has'
            ' nothing to exchange with'
        ]
    return []


def sum_by_parts(
    summed: Callable[..., Any],
    shardings: Any,
    rows: P,
    dtype: DTypeLike = jnp.float32,
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
    """
    # Without a split of `data` there is nothing to exchange.
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape['data'] == 1:
        return summed
    axes = jax.tree.map(_find_axis_over_data, shardings)
    is_cpu = find_platform(mesh) == 'cpu'

    def gather(path: tuple[Any, ...], x: jax.Array, axis: int) -> jax.Array:
        if axis < 0:
            return x
        sent = x.astype(dtype) if format_path(path).endswith('kernel') else x
        gather_block = functools.partial(jax.lax.all_gather, axis_name='data', tiled=True)
        return _exchange_by_layer(gather_block, sent, axis)

    def reduce(x: jax.Array, param: jax.Array, axis: int) -> jax.Array:
        # XLA for CPUs ends the process over a scatter of bfloat16 (jaxlib 0.10.2).
        x = x.astype(param.dtype) if is_cpu else x
        if axis < 0:
            return jax.lax.psum(x, 'data')
        scatter_block = functools.partial(jax.lax.psum_scatter, axis_name='data', tiled=True)
        return _exchange_by_layer(scatter_block, x, axis)

    def sum_own_part(params: Any, shared: Any, rows: Any) -> tuple[Any, Any]:
        whole = jax.tree_util.tree_map_with_path(gather, params, axes)
        gradients, sums = summed(whole, shared, rows)
        gradients = jax.tree.map(reduce, gradients, params, axes)
        wide = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, params)
        return wide, jax.lax.psum(sums, 'data')

    split = jax.tree.map(lambda axis: P() if axis < 0 else P(*(None,) * axis, 'data'), axes)
    return _shard_map(sum_own_part, (split, P(), rows), (split, P()), 'data')


def _shard_map(local: Callable[..., Any], in_specs: Any, out_specs: Any, axis: str) -> Any:
    """Wrap `local`, which each part of the mesh axis runs by itself."""
    return jax.shard_map(
        local, in_specs=in_specs, out_specs=out_specs, axis_names={axis}, check_vma=False
    )


def _find_axis_over_data(sharding: NamedSharding) -> int:
    """Return the axis of an array that is split over `data`; -1 where none is."""
    for axis, axes in enumerate(sharding.spec):
        if 'data' in list_axes(axes):
            return axis
    return -1


def _exchange_by_layer(exchange: Callable[..., Any], x: jax.Array, axis: int) -> jax.Array:
    """Return `exchange` of x along `axis`: of each block by itself where that is not the first.

    The compiler for TPUs scatters along a first axis alone; along another it adds up the whole and
    cuts. And what is gathered block by block can arrive while the blocks below are computed.
    """
    return exchange(x) if axis == 0 else jnp.stack([exchange(block) for block in x])


def look_up(table_VH: jax.Array, ids_BT: jax.Array) -> jax.Array:
    """Return rows of a table [V, H] by their numbers [B, T]: [B, T, H].

    Of a table that is split over `fsdp` each part gathers the whole and scatters its gradient back.
    Left to itself XLA adds up the whole gradient on each device, and cuts: for BERT-large 125 MB
    more to gather.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = mesh.shape['fsdp'] if 'fsdp' in list_free_axes() else 1
    # One row (a model's first shapes) or a table that does not divide is whole on each device.
    if parts == 1 or table_VH.shape[0] % parts or ids_BT.shape[0] % parts:
        return table_VH[ids_BT]

    def look_up_own_rows(part: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.lax.all_gather(part, 'fsdp', tiled=True)[ids]

    by_rows = P('fsdp')
    return _shard_map(look_up_own_rows, (by_rows, by_rows), by_rows, 'fsdp')(table_VH, ids_BT)
