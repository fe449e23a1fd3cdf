"""Refusals in small texts written by hand in the compiler's notation."""

from __future__ import annotations

from bert_jax.costs import compiled

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
    scores, other = compiled.list_largest_buffers(REFUSED)
    assert list(scores.values()) == [
        3 * 2**30, 2, 'f32[32,16,128,128]', 'jit(step)/jvp(Model)/scores',
    ]  # fmt: skip
    assert list(other.values()) == [2**29, 1, 'bf16[7]', '']
    assert compiled.parse_refusal(REFUSED) == (24.5 * 2**30, 15.75 * 2**30)
    short = (
        'RESOURCE_EXHAUSTED: Ran out of memory on HBM, '
        'the total memory required for HLO temporaries (287.16G) exceeds available HBM (512M).'
    )
    assert (
        compiled.parse_refusal(short) == (287.16 * 2**30, 2**29)
        and compiled.list_largest_buffers(short) == []
    )
    assert compiled.parse_refusal('RESOURCE_EXHAUSTED: something else') is None
