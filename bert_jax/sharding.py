"""Where arrays live: the device mesh, and which axis of which array is split over it.

Owns the mesh axes (data, fsdp, model), one table from parameter paths to PartitionSpecs, and the
placement of host batches. Modules know only `constrain`. Optimizer moments follow the same table,
because their leaves end in their parameter's path.

Notation of the table: the last axes of the leaf, so stacked layers ([L, ...]) need no rule of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.errors import UserError
from configs.schema import RuntimeConfig

BATCH = ('data', 'fsdp')  # mesh axes over which the rows of a batch are split

# First match wins; anything else (the small tables, biases, norms, scalars) is on every device.
RULES = (
    (r'embeddings/word$', P(('fsdp', 'model'), None)),
    (r'mlm/bias$', P(('fsdp', 'model'))),  # one entry for each row of the table
    (r'layers/(query|key|value|intermediate)/kernel$', P('fsdp', 'model')),
    (r'layers/(query|key|value|intermediate)/bias$', P('model')),
    (r'layers/(attention_output|output)/kernel$', P('model', 'fsdp')),
    (r'(pooler|mlm/transform)/kernel$', P('fsdp', None)),
    (r'bilstm/.*/kernel$', P('fsdp', None)),  # not over `model`: a step of the recurrence would wait for it
)


def make_mesh(runtime: RuntimeConfig, devices: list[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh (data, fsdp, model) over all devices. UserError where the sizes do not multiply to their number."""
    count = len(devices or jax.devices())
    inner = runtime.fsdp * runtime.model_parallel
    data = runtime.data_parallel or max(count // inner, 1)
    if data * inner != count:
        raise UserError(
            f'runtime: data_parallel={data} x fsdp={runtime.fsdp} x model_parallel={runtime.model_parallel} = {data * inner}, '
            f'but there are {count} devices: change --set runtime.data_parallel, fsdp or model_parallel'
        )
    return jax.make_mesh(
        (data, runtime.fsdp, runtime.model_parallel), ('data', 'fsdp', 'model'), axis_types=(AxisType.Auto,) * 3, devices=devices
    )


def check_divides(mesh: jax.sharding.Mesh, batch_size: int, accumulation: int, where: str) -> None:
    """Raises UserError unless each micro-batch splits evenly over the mesh's batch axes."""
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    if batch_size % (shards * accumulation):
        raise UserError(
            f'{where}={batch_size} does not divide over {shards} devices x runtime.accumulation={accumulation}: '
            f'use a multiple of {shards * accumulation}'
        )


def constrain_rows(x: jax.Array) -> jax.Array:
    """Keeps x [B, ...] split by rows over the current mesh; x itself where no mesh is set."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, P(BATCH, *(None,) * (x.ndim - 1)))


def _spec(path: str, shape: tuple[int, ...], mesh: jax.sharding.Mesh) -> P:
    for pattern, spec in RULES:
        if re.search(pattern, path):
            full = (None,) * (len(shape) - len(spec)) + tuple(spec)
            return P(*(axes if axes is None or size % _size(mesh, axes) == 0 else None for axes, size in zip(full, shape, strict=True)))
    return P()


def _size(mesh: jax.sharding.Mesh, axes: str | tuple[str, ...]) -> int:
    return int(np.prod([mesh.shape[a] for a in ((axes,) if isinstance(axes, str) else axes)]))


def path_of(key_path: tuple[Any, ...]) -> str:
    """A leaf's path as 'encoder/layers/query/kernel'."""
    return '/'.join(str(getattr(k, 'key', getattr(k, 'name', getattr(k, 'idx', k)))) for k in key_path)


def shardings(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """A NamedSharding for every leaf of a tree of arrays or ShapeDtypeStructs; an axis that does not divide stays whole."""
    return jax.tree_util.tree_map_with_path(lambda p, leaf: NamedSharding(mesh, _spec(path_of(p), leaf.shape, mesh)), tree)


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows over data and fsdp, everything else whole."""
    return NamedSharding(mesh, P(BATCH))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, P())


def local_rows(mesh: jax.sharding.Mesh, batch_size: int) -> tuple[tuple[int, int], ...]:
    """The ranges of global rows [start, stop) that this process must supply, in order, merged."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    merged: list[tuple[int, int]] = []
    for start, stop in sorted({i[0].indices(batch_size)[:2] for i in indices}):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def place(batch: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh, batch_size: int) -> dict[str, jax.Array]:
    """Puts this process's rows of a batch on its devices, as global arrays of `batch_size` rows."""
    sharding = batch_sharding(mesh)
    return {k: jax.make_array_from_process_local_data(sharding, v, (batch_size, *v.shape[1:])) for k, v in batch.items()}
