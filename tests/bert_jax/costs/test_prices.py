"""Prices of small programs, written by hand in the compiler's notation, against arithmetic."""

from __future__ import annotations

import pytest

from bert_jax.costs import hlo, links, prices, timeline
from bert_jax.costs.chips import topology

BYTE = 1 / 819e9  # seconds of a byte at the speed of a v5e's memory
CYCLE = 131072 / 197e12  # of its clock: 1.503 GHz


def said(cycles: int) -> str:
    """What stands behind an instruction that libtpu has an estimate for."""
    return (
        'metadata={op_name="jit(step)/f"},'
        f' backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    )


PROGRAM = f"""HloModule step

%multiplied (p: bf16[1024,1024]) -> bf16[1024,1024] {{
  %p = bf16[1024,1024] parameter(0)
  ROOT %product = bf16[1024,1024] convolution(%p, %p), dim_labels=bf_io->bf
}}

%looked_up (t: f32[50000,1024], i: s32[4096]) -> f32[4096,1024] {{
  %t = f32[50000,1024] parameter(0)
  %i = s32[4096] parameter(1)
  ROOT %rows = f32[4096,1024] gather(%t, %i), offset_dims={{1}}
}}

%condition (s: (s32[], f32[1024,1024])) -> pred[] {{
  %limit = s32[] constant(6)
  %s = (s32[], f32[1024,1024]) parameter(0)
  %turn = s32[] get-tuple-element(%s), index=0
  ROOT %less = pred[] compare(%turn, %limit), direction=LT
}}

%body (s: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {{
  %s.1 = (s32[], f32[1024,1024]) parameter(0)
  %turn.1 = s32[] get-tuple-element(%s.1), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%turn.1, %one)
  %x.1 = f32[1024,1024] get-tuple-element(%s.1), index=1
  %scaled = f32[1024,1024] multiply(%x.1, %x.1), {said(40_000)}
  ROOT %state = (s32[], f32[1024,1024]) tuple(%next, %scaled)
}}

ENTRY %main (a: bf16[1024,1024], x: f32[1024,1024], t: f32[50000,1024], i: s32[4096]) -> f32[] {{
  %a = bf16[1024,1024] parameter(0)
  %x = f32[1024,1024] parameter(1)
  %t.1 = f32[50000,1024] parameter(2)
  %i.1 = s32[4096] parameter(3)
  %fused = bf16[1024,1024] fusion(%a), kind=kOutput, calls=%multiplied, {said(50_000)}
  %kept = pred[1024,1024] compare(%x, %x), direction=LT, {said(60_000)}
  %embedded = f32[4096,1024] fusion(%t.1, %i.1), kind=kCustom, calls=%looked_up
  %bits = (u32[4], u32[1024,1024]) rng-bit-generator(%i.1), algorithm=rng_default
  %copying = (bf16[1024,1024], bf16[1024,1024]{{1,0:S(1)}}, u32[]) copy-start(%a)
  %copied = bf16[1024,1024]{{1,0:S(1)}} copy-done(%copying)
  %joined = bf16[2048,1024] custom-call(%a, %a), custom_call_target="ConcatBitcast"
  %zero = s32[] constant(0)
  %start = (s32[], f32[1024,1024]) tuple(%zero, %x)
  %loop = (s32[], f32[1024,1024]) while(%start), condition=%condition, body=%body
  %summing = f32[1024,1024] all-reduce-start(%x), channel_id=1, replica_groups={{{{0,1}}}}
  %summed = f32[1024,1024] all-reduce-done(%summing)
  ROOT %y = f32[] constant(0)
}}
"""


def costs_of(program: str, where: str = 'v5e:2x2') -> list[prices.Cost]:
    """What a program's instructions add to a step."""
    return timeline.costs(program, links.collectives(program, {'data': 4}), topology(where))


@pytest.fixture(scope='module')
def found() -> dict[str, prices.Cost]:
    return {cost.opcode: cost for cost in costs_of(PROGRAM)}


def test_every_instruction_that_takes_time_has_a_price_and_no_other(found):
    assert sorted(found) == [
        'all-reduce', 'asynchronous copy', 'compare', 'fusion', 'gather', 'multiply',
        'rng-bit-generator',
    ]  # fmt: skip


def test_products_cost_what_libtpu_says(found):
    product = found['fusion']
    assert product.low == product.high == pytest.approx(50_000 * CYCLE)
    assert (product.basis, product.origin) == ('libtpu', 'jit(step)/f')


def test_elementwise_work_costs_its_bytes_and_a_third_of_what_libtpu_says(found):
    # 60,000 cycles are 40 us; a third is 13.3, and reading twice 4 MiB and writing 1 takes 11.5.
    narrow, moved = found['compare'], (2 * 2**22 + 2**20) * BYTE
    assert narrow.low == pytest.approx(20_000 * CYCLE)
    assert narrow.high == pytest.approx(20_000 * CYCLE + moved)
    assert narrow.libtpu == pytest.approx(60_000 * CYCLE)
    # 40,000 cycles are 26.6 us, a third is 8.9, and three arrays of 4 MiB take 15.4.
    wide, moved = found['multiply'], 3 * 2**22 * BYTE
    assert wide.low == pytest.approx(6 * moved)
    assert wide.high == pytest.approx(6 * (40_000 / 3 * CYCLE + moved))
    assert wide.libtpu == pytest.approx(6 * 40_000 * CYCLE)
    assert (wide.count, wide.basis) == (6, 'elementwise')


@pytest.mark.parametrize('opcode', ['reduce', 'pad', 'convert'])
def test_a_sum_by_itself_costs_its_bytes_and_a_tenth_of_what_libtpu_says(opcode):
    program = f"""ENTRY %main (g: bf16[4096,1024]) -> bf16[1024] {{
  %g = bf16[4096,1024] parameter(0)
  %summed = bf16[1024] {opcode}(%g), dimensions={{0}}, {said(110_000)}
  ROOT %y = bf16[1024] add(%summed, %summed)
}}
"""
    [cost] = [cost for cost in costs_of(program) if cost.opcode == opcode]
    moved = (2**23 + 2**11) * BYTE  # 10.2 us; 110,000 cycles are 73
    assert cost.low == pytest.approx(moved)
    assert cost.high == pytest.approx(11_000 * CYCLE + moved)
    assert cost.libtpu == pytest.approx(110_000 * CYCLE)


DRAWN = f"""HloModule step

%threefry (k: u32[1024,1024]) -> pred[1024,1024] {{
  %k = u32[1024,1024] parameter(0)
  %mixed = u32[1024,1024] xor(%k, %k)
  ROOT %kept = pred[1024,1024] compare(%mixed, %k), direction=LT
}}

ENTRY %main (k: u32[1024,1024], x: f32[1024,1024]) -> f32[] {{
  %k.1 = u32[1024,1024] parameter(0)
  %x = f32[1024,1024] parameter(1)
  %mask = pred[1024,1024] fusion(%k.1), kind=kLoop, calls=%threefry, {said(60_000)}
  %least = f32[1024,1024] negate(%x), {said(3_000)}
  ROOT %y = f32[] constant(0)
}}
"""


def test_drawn_bits_cost_what_libtpu_says_or_more():
    mask = {c.basis: c for c in costs_of(DRAWN)}['drawn']
    assert mask.low == mask.libtpu == pytest.approx(60_000 * CYCLE)
    assert mask.high == pytest.approx(1.4 * 60_000 * CYCLE)


def test_libtpu_is_believed_where_it_expects_less_than_bytes_take():
    # 3,000 cycles are 2 us; two arrays of 4 MiB would take 10, from a memory that is not the chip's
    # fast one.
    small = {c.opcode: c for c in costs_of(DRAWN)}['negate']
    assert small.low == small.high == small.libtpu == pytest.approx(3_000 * CYCLE)


def test_what_libtpu_does_not_price_costs_its_bytes(found):
    # The rows that are looked up, read and written, and their numbers; not the table.
    rows = found['gather']
    assert rows.low == pytest.approx((2 * 4096 * 1024 * 4 + 4096 * 4) * BYTE)
    assert rows.high == pytest.approx(4 * rows.low)
    bits = found['rng-bit-generator']
    assert bits.low == pytest.approx((1024 * 1024 * 4 + 4 * 4) * BYTE)
    assert {rows.basis, bits.basis} == {'bytes'}


STACKS = f"""HloModule step

%put (s: f32[24,1024,1024], x: f32[1024,1024], n: s32[]) -> f32[24,1024,1024] {{
  %s = f32[24,1024,1024] parameter(0)
  %x = f32[1024,1024] parameter(1)
  %n = s32[] parameter(2)
  %twice = f32[1024,1024] add(%x, %x)
  %layer = f32[1,1024,1024] bitcast(%twice)
  ROOT %written = f32[24,1024,1024] dynamic-update-slice(%s, %layer, %n, %n, %n)
}}

%take (n: s32[], s: f32[24,1024,1024], a: f32[24,1024,1024]) -> (f32[1024], f32[1,1024,1024]) {{
  %n.1 = s32[] parameter(0)
  %s.1 = f32[24,1024,1024] parameter(1)
  %a = f32[24,1024,1024] parameter(2)
  %same = f32[24,1048576] bitcast(%s.1)
  %cut = f32[1,1048576] dynamic-slice(%same, %n.1, %n.1), dynamic_slice_sizes={{1,1048576}}
  %cut.1 = f32[1,1024,1024] bitcast(%cut)
  %all = f32[1024] reduce(%a), dimensions={{0,1}}
  ROOT %both = (f32[1024], f32[1,1024,1024]) tuple(%all, %cut.1)
}}

ENTRY %main (s: f32[24,1024,1024], x: f32[1024,1024], n: s32[]) -> f32[] {{
  %s.2 = f32[24,1024,1024] parameter(0)
  %x.2 = f32[1024,1024] parameter(1)
  %n.2 = s32[] parameter(2)
  %put.1 = f32[24,1024,1024] fusion(%s.2, %x.2, %n.2), kind=kLoop, calls=%put, {said(60_000)}
  %took = (f32[1024], f32[1,1024,1024]) fusion(%n.2, %s.2, %put.1), calls=%take, {said(600_000)}
  %bare = f32[1,1024,1024] dynamic-slice(%s.2, %n.2, %n.2, %n.2), {said(60_000)}
  ROOT %y = f32[] constant(0)
}}
"""


def test_of_a_stack_only_the_slice_that_is_taken_or_written_in_place_costs():
    layer, number = 4 * 2**20, 4
    computation = hlo.parse(STACKS)[0]['main']
    bytes_of = lambda name: hlo.touched(STACKS, computation.instructions[name], computation)
    # A layer read and, in place, written.
    assert bytes_of('put.1') == 2 * layer + number
    # A slice of one stack by another name, and all of the other, which is summed.
    assert bytes_of('took') == (1 + 24 + 1) * layer + 4 * 1024 + number
    assert bytes_of('bare') == 2 * layer + 3 * number

    # 60,000 cycles are 40 us, a third is 13.3; two layers take 10.2, and two stacks would take 246.
    costs = {(c.opcode, c.shape): c for c in costs_of(STACKS)}
    assert costs['fusion', 'f32[24,1024,1024]'].low == pytest.approx(20_000 * CYCLE)


HEADS = 'bf16[8,16,512,64]{3,2,1,0}'


def kernel(result: str, stated: str = '') -> str:
    config = f'backend_config={{"custom_call_config":{{"body":"x"{stated}}}}}'
    return f"""ENTRY %main (q: {HEADS}) -> {HEADS} {{
  %q = {HEADS} parameter(0)
  %flash.7 = {result} custom-call(%q, %q, %q), custom_call_target="tpu_custom_call", {config}
  %e = f32[4,4] multiply(%q), {said(1)}
}}
"""


PRODUCT = 2 * 8 * 16 * 512 * 512 * 64  # FLOPs of scores, or of any other product of attention


@pytest.mark.parametrize(
    ('result', 'stated', 'flops'),
    [
        (HEADS, f',"cost_estimate":{{"flops":{2 * PRODUCT},"bytes_accessed":9}}', 2 * PRODUCT),
        (HEADS, '', 3 * PRODUCT),  # scores, their gradient, and that of the queries
        (f'({HEADS}, {HEADS})', '', 4 * PRODUCT),  # those of keys and values
    ],
)
def test_kernels_cost_their_flops(result, stated, flops):
    arrays = 4 if result == HEADS else 5
    moved = arrays * 2 * 8 * 16 * 512 * 64 * BYTE
    found = {c.basis: c for c in costs_of(kernel(result, stated))}['kernel']
    assert found.low == pytest.approx(max(flops / 197e12, moved))
    # Heads of 64 fill half of a unit of 128, and a quarter of a v6e's.
    assert found.high == pytest.approx(2 * flops / 197e12 + moved)
    on_v6e = {c.basis: c for c in costs_of(kernel(result, stated), 'v6e:1x1')}['kernel']
    assert on_v6e.high == pytest.approx(4 * flops / 918e12 + moved * 819 / 1638)
    assert found.opcode == 'kernel flash'


# As it is called in a train step, and in a program of attention alone.
@pytest.mark.parametrize('called', ['fused_attention', 'transpose_jvp_fused_attention_backward__'])
@pytest.mark.parametrize(('name', 'least'), [('v5e:1x1', 0.9), ('v6e:1x1', 0.7)])
def test_a_kernel_of_ours_costs_the_time_that_it_states(name, least, called):
    """By the clock of the vector units, 4,096 operations a cycle: products are in it."""
    operations = 10**9
    vector = operations / 4096 / topology(name).chip.clock
    stated = f',"cost_estimate":{{"flops":{PRODUCT},"transcendentals":{operations}}}'
    text = kernel(HEADS, stated).replace('%flash.7', f'%{called}.7')
    found = {c.basis: c for c in costs_of(text, name)}['kernel']
    assert found.low == pytest.approx(least * vector)
    assert found.high == pytest.approx(1.25 * vector)


def test_what_another_kernel_states_of_the_vector_units_is_a_part_of_its_time():
    operations = 10**9
    stated = f',"cost_estimate":{{"flops":{PRODUCT},"transcendentals":{operations}}}'
    found = {c.basis: c for c in costs_of(kernel(HEADS, stated))}['kernel']
    vector, moved = operations / 4096 * CYCLE, 4 * 2 * 8 * 16 * 512 * 64 * BYTE
    assert found.low == pytest.approx(vector)
    assert found.high == pytest.approx(vector + 2 * PRODUCT / 197e12 + moved)


def test_a_step_costs_the_sum_of_its_parts():
    costs = [
        prices.Cost(3e-3, 3e-3, 1, 'fusion', 'f32[8]', 'a', 'libtpu', libtpu=3e-3),
        prices.Cost(1e-3, 2e-3, 2, 'fusion', 'f32[8]', 'b', 'elementwise', libtpu=4e-3),
        prices.Cost(1e-3, 4e-3, 1, 'gather', 'f32[8]', 'c', 'bytes'),
        prices.Cost(0.0, 1e-3, 5, 'asynchronous copy', 'f32[8]', '', 'copy'),
        prices.Cost(5e-4, 3e-3, 5, 'all-reduce', 'f32[8]', '', 'links'),
    ]
    found = prices.expected(costs, (2e-3, 6e-3))
    assert found['low_s'] == pytest.approx(5.5e-3)
    assert found['high_s'] == pytest.approx(13e-3)
    assert found['libtpu_s'] == pytest.approx(7e-3)
    assert found['parts']['elementwise'] == {'low_s': 1e-3, 'high_s': 2e-3, 'count': 2}
    assert found['parts']['links'] == {'low_s': 5e-4, 'high_s': 3e-3, 'count': 5}
    # What the links do beside other work is told, and not added.
    assert found['collectives'] == {'low_s': 2e-3, 'high_s': 6e-3}
    rows = [row['opcode'] for row in found['unpriced']]
    assert rows == ['gather', 'all-reduce', 'asynchronous copy']


def test_much_reordering_is_a_warning():
    costs = [
        prices.Cost(6e-3, 6e-3, 2, 'fusion', 'f32[8]', 'a/b', 'libtpu', libtpu=6e-3),
        prices.Cost(1e-3, 3e-3, 1, 'broadcast', 'u32[8,2]', 'a/c', 'elementwise', libtpu=3e-3),
        prices.Cost(1e-3, 1e-3, 1, 'copy', 'f32[8]', '', 'elementwise', libtpu=1e-3),
    ]
    found = prices.expected(costs, (0.0, 0.0))
    assert found['moving'] == pytest.approx(0.4)
    assert [row['share'] for row in found['costliest']] == pytest.approx([0.6, 0.3, 0.1])
    assert prices.reordering(found) == [
        'the compiler expects 40% of a step to copy and spread out arrays, computing nothing, most'
        ' of all u32[8,2] at a/c'
    ]
    assert prices.reordering(prices.expected(costs[:1], (0.0, 0.0))) == []
    assert prices.reordering({}) == []


def test_another_compiler_tells_no_prices():
    assert costs_of(PROGRAM, 'h100:1') == []
    assert costs_of(PROGRAM.replace('estimated_cycles', 'other')) == []
    assert prices.expected([], (1.0, 2.0)) == {}
