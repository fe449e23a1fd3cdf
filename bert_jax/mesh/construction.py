"""How a device mesh is made: its axes, their sizes, and which device lies where.

Owns the axes (data, fsdp, model) and their order. What is split over them is sharding.py's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig

AXES = ('data', 'fsdp', 'model')


def make_mesh(runtime: RuntimeConfig, devices: list[Any] | None = None) -> Mesh:
    """Make the mesh (data, fsdp, model) over all devices.

    Raises:
      UserError: the sizes do not multiply to their number, or there are several slices of a TPU.
    """
    devices = devices or jax.devices()
    shape = _check_shape(runtime, len(devices), f'there are {len(devices)} devices')
    if devices[0].platform == 'tpu' and len({getattr(d, 'slice_index', 0) for d in devices}) > 1:
        raise UserError(
            'the devices are of several TPU slices, and a run takes one: start it on a single slice'
        )
    # `model` is the last axis and so that of the nearest neighbours: it moves activations in each
    # layer, `fsdp` parameters once a layer, `data` gradients once a step.
    return Mesh(_arrange(shape, devices), AXES, axis_types=(AxisType.Auto,) * 3)


def describe_mesh(
    runtime: RuntimeConfig, topology: str, count: int, device: AbstractDevice
) -> AbstractMesh:
    """Make the mesh that `make_mesh` would make of `count` such devices, which are not here.

    Raises:
      UserError: the sizes do not multiply to their number.
    """
    shape = _check_shape(runtime, count, f'--topology={topology} has {count} chips')
    return AbstractMesh(shape, AXES, abstract_device=device)


def fit_to_devices(runtime: RuntimeConfig) -> RuntimeConfig:
    """Return the settings without a mesh that the devices here cannot make, for what only reads.

    What a model was trained on says nothing of the devices that read it.
    """
    count = jax.device_count()
    if np.prod(_compute_shape(runtime, count)) == count:
        return runtime
    return dataclasses.replace(runtime, data_parallel=None, fsdp=1, model_parallel=1)


def _compute_shape(runtime: RuntimeConfig, count: int) -> tuple[int, int, int]:
    """Return the sizes of the axes: data takes what the others leave, where it is not set."""
    inner = runtime.fsdp * runtime.model_parallel
    data = runtime.data_parallel or max(count // inner, 1)
    return data, runtime.fsdp, runtime.model_parallel


def _check_shape(runtime: RuntimeConfig, count: int, there: str) -> tuple[int, int, int]:
    """Return the sizes; UserError where they do not fit `count`, which `there` says in words."""
    data, fsdp, model = shape = _compute_shape(runtime, count)
    product = f'data_parallel={data} x fsdp={fsdp} x model_parallel={model} = {data * fsdp * model}'
    if data * fsdp * model != count:
        raise UserError(
            f'runtime: {product}, but {there}: change --set runtime.data_parallel, fsdp or'
            ' model_parallel'
        )
    return shape


def _arrange(shape: tuple[int, ...], devices: list[Any]) -> np.ndarray:
    """Lay the devices out in an array of `shape`; of a TPU so that neighbours in it are linked.

    jax.make_mesh would give a mesh axis nothing but whole axes of a v4, v5p or v6e, and refuse
    most shapes: here an axis of the torus may be shared by several of the mesh.
    """
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (NotImplementedError, TypeError, ValueError):
        # jax loses factors of sizes like 10 and 28 (v5p:4x4x28). Any order is right, if not as
        # fast; in that of the coordinates the last axis of the mesh lies along links.
        if devices[0].platform != 'tpu':
            raise
        name = 'x'.join(map(str, shape))
        logging.warning('jax cannot lay a mesh of %s over this TPU: taking the plain order', name)
        arranged = np.empty(len(devices), object)
        arranged[:] = sorted(devices, key=lambda device: tuple(device.coords)[::-1])
        return arranged.reshape(shape)
