"""The TPU kernel of attention with dropout, computed on a CPU: it gives what plain attention gives.

Plain attention is held to numpy in test_attention.py, its masks to their names in test_dropout.py.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import construction
from bert_jax.model.blocks.attend import AttentionMask, attend
from bert_jax.model.dropout import GENERATORS, DropoutRng

# 3 rows in the global batch: masks are named by them. Padding comes last.
ROWS = np.array([5, 0, 2**31], np.uint32)
LENGTHS = (1.0, 0.6, 0.25)


class Case(NamedTuple):
    """Shapes and switches of a comparison."""

    tokens: int = 128
    heads: int = 2
    width: int = 64
    rate: float = 0.1
    generator: str = 'threefry'
    causal: bool = False
    packed: bool = False
    dtype: str = 'float32'
    tolerance: float = 2e-5


def arrays(case: Case):
    """(q, k and v [3, B, T, N, D], weights of the output, the mask), padding's weights being 0."""
    shape = (len(ROWS), case.tokens, case.heads, case.width)
    random = np.random.RandomState(0)
    qkv = jnp.asarray(random.normal(size=(3, *shape)), case.dtype)
    keys = np.array([np.arange(case.tokens) < n * case.tokens for n in LENGTHS], np.int32)
    packs = keys * (1 + (np.arange(case.tokens) >= 30).astype(np.int32))
    weights = random.normal(size=shape) * keys[..., None, None]
    mask = AttentionMask(keys, packs if case.packed else None)
    return qkv, jnp.asarray(weights, np.float32), mask


def outputs_and_gradients(case: Case, kernel: str):
    """[output, gradients of q, k and v]; of what is no padding."""
    qkv, weights, mask = arrays(case)

    @jax.jit
    def run(qkv, rows):
        rng = DropoutRng(jax.random.key(3), rows, GENERATORS[case.generator])

        def total(qkv):
            out = attend(*qkv, mask, case.rate, rng, 7, case.causal, kernel)
            return jnp.sum(out.astype(jnp.float32) * weights), out

        gradients, out = jax.grad(total, has_aux=True)(qkv)
        return [jnp.where(weights != 0, out, 0), *gradients]

    return [np.asarray(x, np.float32) for x in run(qkv, ROWS)]


@pytest.mark.oldest
@pytest.mark.parametrize(
    'case',
    [
        Case(),
        Case(heads=4, generator='threefry13', causal=True, packed=True),
        # Masks that fill more than one row of words, and turns of a loop that four do not divide.
        Case(tokens=384, generator='threefry_8bit'),
        Case(dtype='bfloat16', tolerance=4e-2),
    ],
    ids=str,
)
def test_it_gives_what_plain_attention_gives(case):
    plain = outputs_and_gradients(case, 'xla')
    with pltpu.force_tpu_interpret_mode():
        fused = outputs_and_gradients(case, 'tpu_fused')
    for name, ours, theirs in zip(('out', 'dq', 'dk', 'dv'), fused, plain, strict=True):
        assert np.abs(theirs).max() > 0.1, name
        np.testing.assert_allclose(
            ours, theirs, atol=case.tolerance * np.abs(theirs).max(), err_msg=name
        )


def test_rows_and_heads_on_devices_of_their_own_draw_the_same():
    case = Case(heads=4)
    with pltpu.force_tpu_interpret_mode():
        alone = outputs_and_gradients(case, 'tpu_fused')
        mesh = construction.make_mesh(
            RuntimeConfig(data_parallel=3, model_parallel=2), jax.devices()[:6]
        )
        with jax.set_mesh(mesh):
            split = outputs_and_gradients(case, 'tpu_fused')
    for ours, theirs in zip(split, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
