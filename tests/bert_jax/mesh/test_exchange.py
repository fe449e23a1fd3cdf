"""How gradients are exchanged, as settings and devices choose it.

That no exchange changes a loss is shown by tests/bert_jax/train/test_step.py.
"""

from __future__ import annotations

import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.mesh.exchange import is_all_to_all
from configs.errors import UserError
from configs.schema import RuntimeConfig

V5E, V6E, GPU = ('TPU v5 lite', 'tpu'), ('TPU v6 lite', 'tpu'), ('NVIDIA H100', 'gpu')


def mesh_of(device: tuple[str, str] | None, parts: int) -> AbstractMesh:
    kind = device and AbstractDevice(device[0], 1, device[1])
    return AbstractMesh((parts, 1, 1), ('data', 'fsdp', 'model'), abstract_device=kind)


def chosen(device: tuple[str, str] | None, parts: int, **runtime: object) -> bool:
    return is_all_to_all(RuntimeConfig(**runtime), mesh_of(device, parts))


@pytest.mark.parametrize(
    ('device', 'parts', 'runtime', 'expected'),
    [
        (V5E, 8, {}, True),
        (('TPU v5e', 'tpu'), 8, {}, True),  # another name of the same chip
        (V5E, 16, {}, True),
        (V5E, 32, {}, False),
        (V5E, 8, {'accumulation': 2}, False),
        (V5E, 8, {'scan_layers': True}, False),
        (V6E, 8, {}, False),  # its sparse cores reduce-scatter
        (('TPU v5', 'tpu'), 8, {}, False),  # a v5p, which has them too
        (GPU, 8, {}, False),
        (None, 8, {}, False),
    ],
)
def test_an_all_to_all_is_taken_by_itself_where_a_scatter_has_nothing_beside_it(
    device, parts, runtime, expected
):
    assert chosen(device, parts, **runtime) == expected


def test_fine_tuning_takes_none_by_itself():
    auto, named = RuntimeConfig(), RuntimeConfig(gradient_exchange='all_to_all')
    assert not is_all_to_all(auto, mesh_of(V5E, 8), may_choose=False)
    assert is_all_to_all(named, mesh_of(V5E, 8), may_choose=False)


@pytest.mark.parametrize('device', [V5E, V6E, GPU, None])
def test_what_is_named_is_taken(device):
    assert chosen(device, 16, gradient_exchange='all_to_all', scan_layers=True)
    assert not chosen(device, 8, gradient_exchange='reduce_scatter')


def test_what_libtpu_does_not_have_is_refused_in_a_line():
    assert chosen(GPU, 32, gradient_exchange='all_to_all')
    with pytest.raises(UserError, match='for up to 16 chips, and there are 32: use reduce_scatter'):
        chosen(V5E, 32, gradient_exchange='all_to_all')
