"""The device mesh, and how the rows of batches are split over it.

Owns the mesh axes (data, fsdp, model) and the placement of host batches. Modules know only
`constrain_rows`. How parameters are split is model/partition.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig

BATCH = ('data', 'fsdp')  # mesh axes over which the rows of a batch are split


def check_divides(
    mesh: Mesh | AbstractMesh,
    batch_size: int,
    accumulation: int,
    setting: str,
) -> None:
    """Raise UserError unless each micro-batch splits evenly over the mesh's batch axes."""
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    if batch_size % (shards * accumulation):
        raise UserError(
            f'{setting}={batch_size} does not divide over {shards} devices x'
            f' runtime.accumulation={accumulation}: use a multiple of {shards * accumulation}'
        )


def list_free_axes() -> tuple[str, ...]:
    """Axes of the current mesh that XLA may split arrays over; () without a mesh.

    Inside `exchange.sum_by_parts` `data` is none of them.
    """
    # Inside shard_map the axes that it splits by hand are out of XLA's.
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(axis for axis in mesh.axis_names if axis not in mesh.manual_axes)


def constrain_rows(x: jax.Array) -> jax.Array:
    """Keep x [B, ...] split by rows over the current mesh; x itself where no mesh is set."""
    axes = tuple(axis for axis in BATCH if axis in list_free_axes())
    if not axes:
        return x
    return jax.lax.with_sharding_constraint(x, P(axes, *(None,) * (x.ndim - 1)))


def split_rows(batch: Any, parts: int) -> Any:
    """[B, ...] -> [parts, B / parts, ...]; each part has rows of all devices: none moves."""

    def cut(x):
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return jax.tree.map(cut, batch)


def list_axes(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the mesh axes of an entry of a PartitionSpec."""
    return (axes,) if isinstance(axes, str) else axes or ()


def format_path(key_path: tuple[Any, ...]) -> str:
    """Return a leaf's key path as text: 'encoder/layers/query/kernel'."""
    return jax.tree_util.keystr(key_path, simple=True, separator='/')


def group_by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree, in order, by their key paths as text."""
    return {format_path(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def shards_update(runtime: RuntimeConfig, mesh: Mesh | AbstractMesh) -> bool:
    """Whether weights and moments are split over `data`: runtime.shard_optimizer, or on TPUs.

    Not by itself where `fsdp` or `model` splits the mesh too: weights and moments are shared out
    then as it is, and a kernel of attention could not be had. Nor under rbg, whose masks are drawn
    for a whole batch: the exchange is XLA's affair then, and moves more.

    Why TPUs have it: for two layers of BERT-large's width on v5e:2x4 the compiler takes 0.59 GiB a
    chip in place of 1.12, and a chip sends 320 MB in place of 426.
    """
    if runtime.shard_optimizer is not None:
        return runtime.shard_optimizer
    data_alone = mesh.size == mesh.shape['data']
    return find_platform(mesh) == 'tpu' and data_alone and runtime.dropout_rng != 'rbg'


def find_platform(mesh: Mesh | AbstractMesh) -> str:
    """'cpu', 'gpu' or 'tpu': of the mesh's devices; 'cpu' where it is a mesh of none."""
    device = mesh.abstract_mesh.abstract_device
    return 'cpu' if device is None else device.platform


def make_row_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of a batch: rows over `data` and `fsdp`, other axes whole."""
    return NamedSharding(mesh, P(BATCH))


def make_whole_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of what is whole on every device."""
    return NamedSharding(mesh, P())


def list_local_rows(mesh: Mesh, batch_size: int) -> tuple[tuple[int, int], ...]:
    """Return the merged ranges [start, stop) of global rows that this process must supply."""
    # Where `model` spans processes, several of them supply the same rows; devices of one process
    # that lie along it have the same range, and neighbours along the batch touch.
    indices = make_row_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    merged: list[tuple[int, int]] = []
    ranges = {i[0].indices(batch_size)[:2] for i in indices if i is not None}
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def place_batch(batch: Mapping[str, np.ndarray], mesh: Mesh, batch_size: int) -> dict[str, Any]:
    """Put this process's rows of a batch on its devices, as arrays of `batch_size` rows.

    For a single CPU they stay arrays of numpy: a call takes these in less time than placing takes.
    """
    if mesh.size == 1 and mesh.devices.flat[0].platform == 'cpu':
        return dict(batch)
    # Each process has only its own rows; jax puts them together without any of them moving.
    sharding = make_row_sharding(mesh)
    return {
        k: jax.make_array_from_process_local_data(sharding, v, (batch_size, *v.shape[1:]))
        for k, v in batch.items()
    }
