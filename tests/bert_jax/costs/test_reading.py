"""A deep model's step from those of two of fewer layers: by arithmetic on made-up readings.

Against a program of 12 layers: tests/plan.
"""

from __future__ import annotations

import pytest

from bert_jax.costs import reading
from bert_jax.costs.prices import Cost


def shallow(layers: int) -> reading.Reading:
    """What would be read of a model whose head takes 5 and each layer 3."""
    total = 5.0 + 3.0 * layers
    row = {'kind': 'all-reduce', 'axes': ['data'], 'chips': 8, 'count': 1}
    return reading.Reading(
        memory={'total': int(total), 'temporary': 2 * layers},
        kept=layers,
        flops=10 * total,
        moved=100 * total,
        collectives=[row | {'bytes': 4 * total, 'sent': 7 * total}],
        costs=[
            Cost(5.0, 6.0, 1, 'fusion', 'f32[9]', 'head', 'libtpu'),
            Cost(layers * 3.0, layers * 4.0, layers, 'fusion', f'f32[{layers},8]', 'b', 'libtpu'),
        ],
        drawn=[((8, 4), 64)],
        layers=(layers,),
    )


@pytest.mark.parametrize('few, more', [(1, 2), (2, 4), (3, 8)])
def test_every_number_grows_by_what_a_layer_adds(few, more):
    found = reading.deeper(shallow(few), shallow(more), 24)
    total = 5 + 24 * 3
    assert (found.memory, found.kept) == ({'total': total, 'temporary': 48}, None)
    assert (found.flops, found.moved) == (10 * total, 100 * total)
    assert (found.drawn, found.layers) == ([((8, 4), 64)], (few, more))
    [row] = found.collectives
    assert (row['count'], row['bytes'], row['sent']) == (1, 4 * total, 7 * total)


def test_instructions_are_known_by_where_they_come_from_and_not_by_their_shape():
    layer, head = reading.deeper(shallow(2), shallow(4), 24).costs
    assert (layer.low, layer.high, layer.count, layer.origin) == (72, 96, 24, 'b')
    assert (head.low, head.high, head.count, head.origin) == (5, 6, 1, 'head')


def test_no_more_layers_are_waited_for_in_less_than_no_time():
    one, two = shallow(1), shallow(2)
    one.costs.append(Cost(1.0, 4.0, 1, 'all-gather', 'f32[8]', 'x', 'links'))
    two.costs.append(Cost(0.5, 6.0, 2, 'all-gather', 'f32[8]', 'x', 'links'))
    [waited] = [cost for cost in reading.deeper(one, two, 4).costs if cost.basis == 'links']
    assert (waited.low, waited.high, waited.count) == (0, 4 + 3 * 2, 4)


def test_what_only_one_of_the_programs_has_leaves_the_sum_affine():
    one, two = shallow(1), shallow(2)
    one.costs.append(Cost(1.0, 1.0, 1, 'copy', 'f32[8]', 'alone', 'elementwise'))
    two.collectives.append(
        {'kind': 'all-gather', 'axes': ['data'], 'chips': 8, 'count': 1, 'bytes': 8, 'sent': 7.0}
    )
    found = reading.deeper(one, two, 3)
    sums = [sum(cost.high for cost in each.costs) for each in (one, two, found)]
    assert sums[2] == pytest.approx(sums[1] + (sums[1] - sums[0]))
    # 8 bytes of the second layer, and of the third.
    assert [row['bytes'] for row in found.collectives if row['kind'] == 'all-gather'] == [16]
