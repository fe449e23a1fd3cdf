"""Where arrays live: the device mesh, and which axis of which array is split over it.

Owns the mesh axes (data, fsdp, model), one table from parameter paths to PartitionSpecs, and the
placement of host batches. Modules know only `constrain`. Optimizer moments follow the same table,
because their leaves end in their parameter's path.

Notation of the table: the last axes of the leaf, so stacked layers ([L, ...]) need no rule of their
own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh.construction import make_mesh as make_mesh
from bert_jax.mesh.construction import of_devices_here as of_devices_here

BATCH = ('data', 'fsdp')  # mesh axes over which the rows of a batch are split

# First match wins; anything else (the small tables, biases, norms, scalars) is on every device. The
# BiLSTM is not split over `model`: each step of its recurrence would wait for it.
RULES = (
    (r'(embeddings/word|mlm/decoder)$', P(('fsdp', 'model'), None)),
    (r'mlm/bias$', P(('fsdp', 'model'))),  # one entry for each row of the table
    (r'layers/(query|key|value|intermediate)/kernel$', P('fsdp', 'model')),
    (r'layers/(query|key|value|intermediate)/bias$', P('model')),
    (r'layers/(attention_output|output)/kernel$', P('model', 'fsdp')),
    (r'(pooler|mlm/transform)/kernel$', P('fsdp', None)),
    (r'bilstm/.*/kernel$', P('fsdp', None)),
)


def check_divides(
    mesh: Mesh | AbstractMesh,
    batch_size: int,
    accumulation: int,
    setting: str,
) -> None:
    """Raises UserError unless each micro-batch splits evenly over the mesh's batch axes."""
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    if batch_size % (shards * accumulation):
        raise UserError(
            f'{setting}={batch_size} does not divide over {shards} devices x'
            f' runtime.accumulation={accumulation}: use a multiple of {shards * accumulation}'
        )


def free_axes() -> tuple[str, ...]:
    """Axes of the current mesh that XLA may split arrays over; () without a mesh.

    Inside `per_data_shard` `data` is none of them.
    """
    # Inside shard_map the axes that it splits by hand are out of XLA's.
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(axis for axis in mesh.axis_names if axis not in mesh.manual_axes)


def constrain_rows(x: jax.Array) -> jax.Array:
    """Keeps x [B, ...] split by rows over the current mesh; x itself where no mesh is set."""
    axes = tuple(axis for axis in BATCH if axis in free_axes())
    if not axes:
        return x
    return jax.lax.with_sharding_constraint(x, P(axes, *(None,) * (x.ndim - 1)))


def _spec(
    path: str,
    shape: tuple[int, ...],
    mesh: Mesh | AbstractMesh,
    over_data: bool = False,
) -> P:
    """The first rule's PartitionSpec for the leaf at `path`, without axes that do not divide.

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


def names_of(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    return (axes,) if isinstance(axes, str) else axes or ()


def _size(mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...] | None) -> int:
    """The number of parts that an array's axis has when it is split over these mesh axes."""
    return int(np.prod([mesh.shape[name] for name in names_of(axes)]))


def path_of(key_path: tuple[Any, ...]) -> str:
    """A leaf's key path as text: 'encoder/layers/query/kernel'."""
    return jax.tree_util.keystr(key_path, simple=True, separator='/')


def shardings(
    tree: Any,
    mesh: Mesh | AbstractMesh,
    shard_optimizer: bool = False,
) -> Any:
    """A NamedSharding for every leaf of a tree of arrays or ShapeDtypeStructs, by RULES.

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


def shards_update(runtime: RuntimeConfig, mesh: Mesh | AbstractMesh) -> bool:
    """Whether weights and moments are split over `data`: runtime.shard_optimizer, or on TPUs.

    Not by itself where `fsdp` or `model` splits the mesh too: weights and moments are shared out
    then as it is, and a kernel of attention could not be had. Nor under rbg, whose masks are drawn
    for a whole batch: the exchange is XLA's affair then, and moves more.

    Why TPUs have it: for two layers of BERT-large's width on v5e:2x4 the compiler takes 0.59 GiB a
    chip in place of 1.12, and a chip sends 320 MB in place of 426. libtpu estimated 7.3 ms a step
    in place of 10.6; no chip has confirmed that.
    """
    if runtime.shard_optimizer is not None:
        return runtime.shard_optimizer
    data_alone = mesh.size == mesh.shape['data']
    return platform_of(mesh) == 'tpu' and data_alone and runtime.dropout_rng != 'rbg'


def platform_of(mesh: Mesh | AbstractMesh) -> str:
    """'cpu', 'gpu' or 'tpu': of the mesh's devices; 'cpu' where it is a mesh of none."""
    device = mesh.abstract_mesh.abstract_device
    return 'cpu' if device is None else device.platform


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The sharding of a batch: rows over `data` and `fsdp`, other axes whole."""
    return NamedSharding(mesh, P(BATCH))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The sharding of what is whole on every device."""
    return NamedSharding(mesh, P())


def local_rows(mesh: Mesh, batch_size: int) -> tuple[tuple[int, int], ...]:
    """The ranges [start, stop) of global rows that this process must supply, in order, merged."""
    # Where `model` spans processes, several of them supply the same rows; devices of one process
    # that lie along it have the same range, and neighbours along the batch touch.
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    merged: list[tuple[int, int]] = []
    ranges = {i[0].indices(batch_size)[:2] for i in indices if i is not None}
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def place(batch: Mapping[str, np.ndarray], mesh: Mesh, batch_size: int) -> dict[str, jax.Array]:
    """Puts this process's rows of a batch on its devices, as global arrays of `batch_size` rows."""
    # Each process has only its own rows; jax puts them together without any of them moving.
    sharding = batch_sharding(mesh)
    return {
        k: jax.make_array_from_process_local_data(sharding, v, (batch_size, *v.shape[1:]))
        for k, v in batch.items()
    }
