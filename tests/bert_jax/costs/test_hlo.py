"""Sizes, random bits and refusals in small texts written by hand in the compiler's notation."""

from __future__ import annotations

import pytest

from bert_jax.costs import hlo

DRAWN = """ENTRY %main (k: u32[4]) -> u16[8,16] {
  %k = u32[4] parameter(0)
  %bits = (u32[4]{0:T(128)}, u16[64,16]{1,0:T(8,128)(2,1)}) rng-bit-generator(%k), \
algorithm=rng_default
  %others = u16[8,4] rng-bit-generator(%k), algorithm=rng_default
  %all = u16[64,16] get-tuple-element(%bits), index=1
  ROOT %own = u16[8,16] dynamic-slice(%all), dynamic_slice_sizes={8,16}
}
"""


def test_a_generator_that_draws_for_every_chip_is_warned_of():
    from bert_jax.costs import plan

    assert hlo.generators(DRAWN) == [((64, 16), 2048), ((8, 4), 64)]
    (warning,) = plan.random_bits_of_others(hlo.generators(DRAWN), own_rows=8)
    assert 'random bits of 64 rows and uses those of its own 8: 1 arrays' in warning
    assert plan.random_bits_of_others(hlo.generators(DRAWN), own_rows=64) == []  # a single chip


def test_what_the_forward_pass_leaves_for_the_backward_pass():
    forward, backward = (
        'metadata={op_name="jit(step)/jvp(Model)/a"}',
        'metadata={op_name="jit(step)/transpose(jvp(Model))/a"}',
    )
    text = f"""ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  %kept = bf16[100] fusion(%x), kind=kLoop, {forward}
  %renamed = bf16[10,10] bitcast(%kept), {forward}
  %moving = (bf16[10,10], bf16[10,10], u32[]) copy-start(%renamed)
  %moved = bf16[10,10] copy-done(%moving)
  %used = f32[1000] fusion(%kept), kind=kLoop, {forward}
  %loop = (s32[], f32[3,8], f32[8]) while(%used), condition=%c, body=%b, {forward}
  %stacked = f32[3,8] get-tuple-element(%loop), index=1
  %gradient = f32[8] fusion(%moved, %kept, %x), kind=kLoop, {backward}
  %state = (f32[8], f32[3,8]) tuple(%gradient, %stacked)
  %back = (f32[8], f32[3,8]) while(%state), condition=%c, body=%b, {backward}
  ROOT %y = f32[8] get-tuple-element(%back), index=0
}}
"""
    # A buffer counts once; what only goes forward does not, nor does the parameter.
    assert hlo.kept_for_backward(text) == 200 + 3 * 8 * 4


REFUSED = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. \
Ran out of memory in memory space hbm. Used 24.50G of 15.75G hbm. Exceeded hbm capacity by 8.75G.

  Largest program allocations in hbm:

  1. Size: 1.50G
     Operator: op_name="jit(step)/jvp(Model)/scores" source_file="model/encoder.py" source_line=7
     Shape: f32[32,16,128,128]{3,2,1,0:T(8,128)}
     Unpadded size: 1.50G
     Allocation type: HLO temp
     ==========================

  2. Size: 1.50G
     Operator: op_name="jit(step)/jvp(Model)/scores" source_file="model/encoder.py" source_line=7
     Shape: f32[32,16,128,128]{3,2,1,0:T(8,128)}
     Unpadded size: 1.50G
     ==========================

  3. Size: 512.0M
     Shape: bf16[7]{0}
     ==========================
"""


def test_a_refusal_of_the_tpu_compiler():
    scores, other = hlo.allocations(REFUSED)
    assert scores == hlo.Allocation(
        3 * 2**30, 2, 'f32[32,16,128,128]', 'jit(step)/jvp(Model)/scores'
    )
    assert (other.bytes, other.shape, other.origin) == (2**29, 'bf16[7]', '')
    assert hlo.refused_sizes(REFUSED) == (24.5 * 2**30, 15.75 * 2**30)
    short = (
        'RESOURCE_EXHAUSTED: Ran out of memory on HBM, '
        'the total memory required for HLO temporaries (287.16G) exceeds available HBM (512M).'
    )
    assert hlo.refused_sizes(short) == (287.16 * 2**30, 2**29) and hlo.allocations(short) == []
    assert hlo.refused_sizes('RESOURCE_EXHAUSTED: something else') is None


SIZES = {
    'f32[]': 4,
    'bf16[3,5]{1,0:T(8,128)(2,1)S(1)}': 30,
    'pred[7]': 7,
    '(s8[2], (u64[3], f8e4m3fn[4]))': 30,
    '()': 0,
}


@pytest.mark.parametrize(('shape', 'size'), SIZES.items())
def test_size_of(shape, size):
    assert hlo.size_of(shape) == size
