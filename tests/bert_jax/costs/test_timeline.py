"""The walk through small programs, written by hand in the compiler's notation, against arithmetic.

A chip works for 100 us at a time here, and what it waits for is read off a sheet of paper.
"""

from __future__ import annotations

import pytest

from bert_jax.costs import links, prices, timeline
from bert_jax.costs.chips import topology

WHERE = topology('v5e:2x4')
MESH = {'data': 8, 'fsdp': 1, 'model': 1}
US = 1e-6
CYCLE = 131072 / 197e12  # of a v5e's clock
WORK = f'{100 * US / CYCLE:.0f}'  # cycles of 100 us
# 8 MiB gathered by eight chips: 7/8 of it over 200 GB/s at best, over 50 and six hops at worst.
GATHER = (36.7 * US, 152.8 * US)
COPY = 25.6 * US  # of 20 MiB at 819 GB/s


def product(name: str, of: str = 'a') -> str:
    """100 us of matrix products, of so few bytes that the memory has nothing to do."""
    estimate = f'backend_config={{"estimated_cycles":"{WORK}"}}'
    return f'  %{name} = bf16[8,8] convolution(%{of}, %{of}), dim_labels=bf_io->bf, {estimate}\n'


def busy(name: str) -> str:
    """100 us, in which the memory reads and writes all the time: 41 MB each."""
    estimate = f'backend_config={{"estimated_cycles":"{WORK}"}}'
    return f'  %{name} = f32[10240000] negate(%big), {estimate}\n'


def program(*lines: str) -> str:
    return (
        'HloModule step, is_scheduled=true\n\n'
        'ENTRY %main (a: bf16[8,8], s: bf16[524288], big: f32[10240000]) -> f32[] {\n'
        '  %a = bf16[8,8] parameter(0)\n'
        '  %s = bf16[524288] parameter(1)\n'
        '  %big = f32[10240000] parameter(2)\n' + ''.join(lines) + '}\n'
    )


GROUPS = 'channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}'
GATHERED = f'  %g = bf16[4194304] all-gather(%s), {GROUPS}\n'
START = f'  %g = (bf16[524288], bf16[4194304]) all-gather-start(%s), {GROUPS}\n'
DONE = '  %gd = bf16[4194304] all-gather-done(%g)\n'
COPY_START = '  %c = (f32[5242880], f32[5242880], u32[]) copy-start(%big)\n'
COPY_DONE = '  %cd = f32[5242880] copy-done(%c)\n'


def costs_of(text: str) -> list[prices.Cost]:
    return timeline.costs(text, links.collectives(text, MESH), WHERE)


def waited(text: str, opcode: str = 'all-gather') -> tuple[float, float]:
    """Seconds that a step waits for what is of one kind, at best and at worst."""
    [cost] = [c for c in costs_of(text) if c.opcode == opcode]
    return cost.low, cost.high


def approx(low: float, high: float) -> object:
    return pytest.approx((low, high), abs=0.2 * US)


def test_what_nothing_runs_beside_costs_all_of_its_time():
    assert waited(program(product('p'), GATHERED, product('q'))) == approx(*GATHER)
    assert waited(program(product('p'), START, DONE, product('q'))) == approx(*GATHER)


def test_work_between_the_beginning_and_the_end_hides_a_collective():
    # 100 us beside it are enough at best; at worst 52.8 are left, and with 200 nothing is.
    assert waited(program(START, product('p'), DONE)) == approx(0, GATHER[1] - 100 * US)
    assert waited(program(START, product('p'), product('q'), DONE)) == approx(0, 0)
    # Work before the beginning and after the end is not beside it.
    text = program(product('p'), START, DONE, product('q'))
    assert waited(text) == approx(*GATHER)


def test_collectives_go_over_the_links_one_after_the_other():
    second = START.replace('%g ', '%h ') + product('p') + DONE
    text = program(START, second, DONE.replace('%gd', '%hd').replace('(%g)', '(%h)'))
    # Both have begun before the work, and both have to be done after it.
    assert waited(text) == approx(0, 2 * GATHER[1] - 100 * US)


def test_another_unit_of_the_chip_runs_a_collective_beside_the_work():
    """The sparse cores of a TPU: what they are called for is none of the other units' work."""
    body = (
        '%scatter (g: bf16[4194304]) -> bf16[524288] {\n  %g.1 = bf16[4194304] parameter(0)\n'
        f'{product("n", of="g.1")}'
        f'  ROOT %r = bf16[524288] reduce-scatter(%g.1), {GROUPS}\n}}\n\n'
    )
    begin = (
        '  %c = ((bf16[4194304]), bf16[524288]) call-start(%big),'
        ' async_execution_thread="sparsecore", to_apply=%scatter\n'
    )
    end = '  %cd = bf16[524288] call-done(%c)\n'
    text = program(begin, product('p'), end, product('q')).replace('ENTRY', body + 'ENTRY')
    assert waited(text, 'reduce-scatter') == approx(0, GATHER[1] - 100 * US)
    work = {cost.opcode: cost.high for cost in costs_of(text) if cost.opcode != 'reduce-scatter'}
    assert work == {'convolution': pytest.approx(200 * US)}
    text = program(product('p'), begin, end).replace('ENTRY', body + 'ENTRY')
    assert waited(text, 'reduce-scatter') == approx(*GATHER)


CHAIN = ', frontend_attributes={chain_id="0"}'
STEP = (
    f'%step.NUMBER (s: bf16[524288]) -> bf16[4194304] {{\n  %s.NUMBER = bf16[524288] parameter(0)\n'
    f'  ROOT %g.NUMBER = bf16[4194304] all-gather(%s.NUMBER), {GROUPS}{CHAIN}\n}}\n\n'
)


def steps(*between: str) -> str:
    """A collective that XLA has cut into three steps, with these lines between them."""
    fusion = '  %f.NUMBER = bf16[4194304] fusion(%s), kind=kCustom, calls=%step.NUMBER\n'
    lines = [fusion.replace('NUMBER', str(n)) for n in range(3)]
    text = program(lines[0], between[0], lines[1], between[1], lines[2])
    return text.replace(
        'ENTRY', ''.join(STEP.replace('NUMBER', str(n)) for n in range(3)) + 'ENTRY'
    )


def test_a_collective_that_is_cut_into_steps_ends_with_the_last_of_them():
    assert waited(steps('', product('p'))) == approx(0, GATHER[1] - 100 * US)
    assert waited(steps(product('p'), product('q'))) == approx(0, 0)


def loop(body: str) -> str:
    """The computations of a loop of six turns, the body's lines in each."""
    return f"""
%condition (t: (s32[], bf16[8,8], bf16[524288])) -> pred[] {{
  %limit = s32[] constant(6)
  %t = (s32[], bf16[8,8], bf16[524288]) parameter(0)
  %turn = s32[] get-tuple-element(%t), index=0
  ROOT %less = pred[] compare(%turn, %limit), direction=LT
}}

%body (t: (s32[], bf16[8,8], bf16[524288])) -> (s32[], bf16[8,8], bf16[524288]) {{
  %t.1 = (s32[], bf16[8,8], bf16[524288]) parameter(0)
  %turn.1 = s32[] get-tuple-element(%t.1), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%turn.1, %one)
  %a.1 = bf16[8,8] get-tuple-element(%t.1), index=1
  %s = bf16[524288] get-tuple-element(%t.1), index=2
{body}  ROOT %state = (s32[], bf16[8,8], bf16[524288]) tuple(%next, %a.1, %s)
}}

"""


def in_loop(body: str, before: str = '', after: str = '') -> str:
    while_line = (
        '  %zero = s32[] constant(0)\n'
        '  %t.2 = (s32[], bf16[8,8], bf16[524288]) tuple(%zero, %a, %s)\n'
        '  %w = (s32[], bf16[8,8], bf16[524288]) while(%t.2), condition=%condition, body=%body\n'
    )
    return program(before, while_line, after).replace('ENTRY', loop(body) + 'ENTRY')


def test_a_loop_waits_at_each_of_its_turns():
    text = in_loop(START + product('p', of='a.1') + DONE)
    assert waited(text) == approx(0, 6 * (GATHER[1] - 100 * US))


def test_a_whole_loop_may_run_beside_a_collective():
    assert waited(in_loop(product('p', of='a.1'), before=START, after=DONE)) == approx(0, 0)


def test_what_was_begun_elsewhere_has_nothing_beside_it():
    """A step of a collective in a computation of its own, and its last one here."""
    elsewhere = (
        '%elsewhere (x: bf16[524288]) -> bf16[4194304] {\n  %x = bf16[524288] parameter(0)\n'
        '  ROOT %e.0 = bf16[4194304] fusion(%x), kind=kCustom, calls=%step.0\n}\n\n'
    )
    text = steps('', product('p')).replace(
        '  %f.0 = bf16[4194304] fusion(%s), kind=kCustom, calls=%step.0\n',
        '  %f.0 = bf16[4194304] call(%s), to_apply=%elsewhere\n',
    )
    assert waited(text.replace('ENTRY', elsewhere + 'ENTRY')) == approx(*GATHER)


def test_a_copy_gets_on_while_the_memory_is_free():
    name = 'asynchronous copy'
    assert waited(program(product('p'), COPY_START, COPY_DONE), name) == approx(COPY, COPY)
    assert waited(program(COPY_START, product('p'), COPY_DONE), name) == approx(0, 0)
    assert waited(program(busy('p'), COPY_START, COPY_DONE), name) == approx(COPY, COPY)
    # One after the other: both have begun before the first is waited for.
    second = [line.replace('%c', '%k') for line in (COPY_START, COPY_DONE)]
    text = program(COPY_START, second[0], COPY_DONE, second[1], product('p'))
    assert waited(text, name) == approx(2 * COPY, 2 * COPY)
    # Beside work that has the memory to itself it gets on at best alone.
    assert waited(program(COPY_START, busy('p'), COPY_DONE), name) == approx(0, COPY)
    # While the units wait for the links the memory is free.
    text = program(START, COPY_START, DONE, COPY_DONE, product('p'))
    assert waited(text, name) == approx(0, 0)


def test_a_step_takes_its_work_and_its_waiting():
    text = program(START, product('p'), DONE, product('q'), GATHERED.replace('%g ', '%h '))
    costs = costs_of(text)
    assert sum(c.low for c in costs) == pytest.approx(200 * US + GATHER[0], abs=US)
    assert sum(c.high for c in costs) == pytest.approx(100 * US + 2 * GATHER[1], abs=US)
    # Dearest first, and both gathers as one kind.
    assert [(c.opcode, c.count) for c in costs] == [('all-gather', 2), ('convolution', 2)]
