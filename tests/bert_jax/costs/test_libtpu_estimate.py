"""libtpu's estimate of small programs, written by hand in its notation, against arithmetic."""

from __future__ import annotations

import pytest

from bert_jax.costs import libtpu_estimate, links
from bert_jax.costs.chips import topology

CYCLE = 131072 / 197e12  # seconds, of a v5e's clock


def said(cycles: int) -> str:
    """What stands behind an instruction that libtpu has an estimate for."""
    return f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'


PROGRAM = f"""HloModule step

%looked_up (t: f32[50000,1024], i: s32[4096]) -> f32[4096,1024] {{
  %t = f32[50000,1024] parameter(0)
  %i = s32[4096] parameter(1)
  ROOT %rows = f32[4096,1024] gather(%t, %i), offset_dims={{1}}
}}

%scatter (g: f32[1024,1024]) -> f32[256,1024] {{
  %g = f32[1024,1024] parameter(0)
  %n = f32[1024,1024] negate(%g), {said(7_000)}
  ROOT %r = f32[256,1024] reduce-scatter(%n), channel_id=2, replica_groups={{{{0,1,2,3}}}}
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
  %plain = f32[1024,1024] negate(%scaled)
  ROOT %state = (s32[], f32[1024,1024]) tuple(%next, %plain)
}}

ENTRY %main (a: bf16[1024,1024], x: f32[1024,1024], t: f32[50000,1024], i: s32[4096]) -> f32[] {{
  %a = bf16[1024,1024] parameter(0)
  %x = f32[1024,1024] parameter(1)
  %t.1 = f32[50000,1024] parameter(2)
  %i.1 = s32[4096] parameter(3)
  %kept = pred[1024,1024] compare(%x, %x), direction=LT, {said(60_000)}
  %embedded = f32[4096,1024] fusion(%t.1, %i.1), kind=kCustom, calls=%looked_up
  %bits = (u32[4], u32[1024,1024]) rng-bit-generator(%i.1), algorithm=rng_default
  %copying = (bf16[1024,1024], bf16[1024,1024]{{1,0:S(1)}}, u32[]) copy-start(%a)
  %copied = bf16[1024,1024]{{1,0:S(1)}} copy-done(%copying)
  %joined = bf16[2048,1024] custom-call(%a, %a), custom_call_target="ConcatBitcast"
  %flash.7 = bf16[1024,1024] custom-call(%a), custom_call_target="tpu_custom_call"
  %zero = s32[] constant(0)
  %start = (s32[], f32[1024,1024]) tuple(%zero, %x)
  %loop = (s32[], f32[1024,1024]) while(%start), condition=%condition, body=%body
  %summing = f32[1024,1024] all-reduce-start(%x), channel_id=1, replica_groups={{{{0,1}}}}
  %summed = f32[1024,1024] all-reduce-done(%summing)
  %c = ((f32[1024,1024]), f32[256,1024]) call-start(%x), to_apply=%scatter
  %cd = f32[256,1024] call-done(%c)
  %gathered = f32[4096,1024] all-gather(%x), replica_groups={{{{0,1,2,3}}}}, {said(90_000)}
  ROOT %y = f32[] constant(0)
}}
"""


def estimate(text: str, where: str = 'v5e:2x2') -> dict | None:
    return libtpu_estimate.read(text, links.collectives(text, {'data': 4}), topology(where).chip)


def test_the_estimate_adds_up_what_libtpu_says_by_the_turns_of_loops():
    found = estimate(PROGRAM)
    # Of a collective nothing counts, nor of what another unit of the chip does for one.
    assert found['step_s'] == pytest.approx((60_000 + 6 * 40_000) * CYCLE)
    faster = estimate(PROGRAM, 'v6e:2x2')
    assert faster['step_s'] == pytest.approx(found['step_s'] * (197 / 131072) / (918 / 524288))


def test_what_libtpu_says_nothing_of_is_listed_once_and_what_takes_no_time_is_not():
    assert estimate(PROGRAM)['unpriced'] == {
        'negate': 6,
        'gather': 1,
        'rng-bit-generator': 1,
        'asynchronous copy': 1,
        'kernel flash': 1,
        'all-reduce': 1,
        'reduce-scatter': 1,
        'all-gather': 1,
    }


def test_another_compiler_has_no_estimate():
    assert estimate(PROGRAM, 'h100:4') is None
    assert estimate(PROGRAM.replace('estimated_cycles', 'other')) is None
