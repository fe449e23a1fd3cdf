"""The mesh over devices of every topology that we name, without compiling and without libtpu."""

from __future__ import annotations

import itertools
import math

import jax
import pytest
from jax.sharding import AxisType

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import construction

KINDS = {'v4': 'TPU v4', 'v5e': 'TPU v5 lite', 'v5p': 'TPU v5p', 'v6e': 'TPU v6 lite'}


class Device:
    """What jax asks a device about when it lays out a mesh."""

    platform, core_on_chip = 'tpu', 0

    def __init__(self, number: int, kind: str, coords: tuple[int, ...], slice_index: int = 0):
        self.id, self.device_kind, self.coords, self.slice_index = number, kind, coords, slice_index


def chips(name: str, shape: str) -> list[Device]:
    """The chips of a topology, x running fastest."""
    sizes = (*map(int, shape.split('x')), 1)[:3]
    places = itertools.product(*map(range, reversed(sizes)))
    return [Device(i, KINDS[name], place[::-1]) for i, place in enumerate(places)]


def powers_of_two(count: int) -> list[int]:
    return [2**i for i in range(count.bit_length()) if count % 2**i == 0]


@pytest.mark.parametrize(
    ('name', 'shape'),
    # The last two are of sizes whose factors jax loses.
    [('v5e', '2x4'), ('v6e', '4x8'), ('v4', '2x2x1'), ('v5p', '4x4x8'), ('v5p', '4x4x28')],
)
def test_every_mesh_of_powers_of_two_can_be_made_on(name, shape):
    devices = chips(name, shape)
    count = len(devices)
    inner = itertools.product(powers_of_two(count), powers_of_two(count))
    for fsdp, model in ((f, m) for f, m in inner if count % (f * m) == 0):
        runtime = RuntimeConfig(fsdp=fsdp, model_parallel=model)
        mesh = construction.make_mesh(runtime, devices)
        assert mesh.axis_types == (AxisType.Auto,) * 3
        assert mesh.devices.shape == (count // (fsdp * model), fsdp, model)
        ids = [device.id for device in mesh.devices.flat]
        assert sorted(ids) == list(range(count))
        try:
            before = jax.make_mesh(mesh.devices.shape, mesh.axis_names, devices=devices)
        except NotImplementedError:
            continue
        assert ids == [device.id for device in before.devices.flat]


def test_the_inner_axes_of_a_split_mesh_are_of_linked_chips():
    """On a v6e of 4x4 chips, two by two: each pair of `fsdp` are neighbours."""
    mesh = construction.make_mesh(RuntimeConfig(fsdp=2), chips('v6e', '4x4'))
    for pair in mesh.devices.reshape(8, 2):
        assert math.dist(pair[0].coords, pair[1].coords) == 1


def test_the_order_of_devices_that_are_no_tpu_is_theirs():
    runtime = RuntimeConfig(fsdp=2, model_parallel=2)
    assert list(construction.make_mesh(runtime).devices.flat) == jax.devices()


def test_several_slices_of_a_tpu_are_refused_in_one_line():
    devices = chips('v5e', '2x2')
    for device in devices[2:]:
        device.slice_index = 1
    with pytest.raises(UserError, match='several TPU slices, and a run takes one'):
        construction.make_mesh(RuntimeConfig(), devices)


@pytest.mark.parametrize(
    ('asked', 'data_fsdp_model'),
    [
        ({'fsdp': 2}, (4, 2, 1)),  # which the eight devices here can be
        ({'fsdp': 3}, (8, 1, 1)),
        ({'data_parallel': 8, 'model_parallel': 2}, (8, 1, 1)),
    ],
)
def test_what_does_not_train_takes_the_devices_that_are_there(asked, data_fsdp_model):
    here = construction.fit_to_devices(RuntimeConfig(remat='full', **asked))
    assert tuple(construction.make_mesh(here).shape.values()) == data_fsdp_model
    assert here.remat == 'full'
