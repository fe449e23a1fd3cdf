"""How gradients are exchanged, as settings and devices choose it.

That no exchange changes a loss is shown by tests/bert_jax/train/test_step.py.
"""

from __future__ import annotations

import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.mesh.exchange import is_all_to_all
from configs.schema import RuntimeConfig

V5E, V6E, GPU = ('TPU v5 lite', 'tpu'), ('TPU v6 lite', 'tpu'), ('NVIDIA H100', 'gpu')


def chosen(device: tuple[str, str] | None, parts: int, **runtime: object) -> bool:
    kind = device and AbstractDevice(device[0], 1, device[1])
    mesh = AbstractMesh((parts, 1, 1), ('data', 'fsdp', 'model'), abstract_device=kind)
    return is_all_to_all(RuntimeConfig(**runtime), mesh)


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


@pytest.mark.parametrize('device', [V5E, V6E, GPU, None])
def test_what_is_named_is_taken_anywhere(device):
    assert chosen(device, 64, gradient_exchange='all_to_all', scan_layers=True)
    assert not chosen(device, 8, gradient_exchange='reduce_scatter')
