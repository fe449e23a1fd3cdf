"""A deep model's step from those of two of fewer layers: by arithmetic on made-up readings.

Against a program of 12 layers: tests/plan.
"""

from __future__ import annotations

import pytest

from bert_jax.costs import reading


def shallow(layers: int) -> reading.Reading:
    """What would be read of a model whose head takes 5 and each layer 3."""
    total = 5.0 + 3.0 * layers
    row = {'kind': 'all-reduce', 'axes': ['data'], 'chips': 8, 'count': 1}
    return reading.Reading(
        memory={'total': int(total), 'temporary': 2 * layers},
        flops=10 * total,
        moved=100 * total,
        collectives=[row | {'bytes': 4 * total, 'sent': 7 * total}],
        libtpu={'step_s': total / 1000, 'unpriced': {'all-reduce': layers, 'gather': 1}},
        layers=(layers,),
    )


def test_every_number_grows_by_what_a_layer_adds():
    found = reading.deeper(shallow(3), shallow(8), 24)
    total = 5 + 24 * 3
    assert found.memory == {'total': total, 'temporary': 48}
    assert (found.flops, found.moved) == (10 * total, 100 * total)
    assert found.layers == (3, 8)
    assert found.libtpu['step_s'] == pytest.approx(total / 1000)
    assert found.libtpu['unpriced'] == {'all-reduce': 24, 'gather': 1}
    [row] = found.collectives
    assert (row['count'], row['bytes'], row['sent']) == (1, 4 * total, 7 * total)
