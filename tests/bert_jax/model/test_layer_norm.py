"""Layer normalisation against its formula in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.blocks.norms import LayerNorm

H, EPSILON = 256, 1e-12


def rows(mean: float) -> np.ndarray:
    """Four rows of H numbers, of that mean in units of their standard deviation."""
    return np.random.default_rng(0).normal(mean, 1, (4, H))


def normalised(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * scale + bias


def slope(x, scale, gradient):
    """The gradient of x, by hand."""
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    y, g = centred / deviation, gradient * scale
    return (g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True)) / deviation


@pytest.mark.parametrize(
    ('dtype', 'digits', 'mean'), [('float32', 2**-20, -300.0), ('bfloat16', 2**-7, 0.0)]
)
def test_values_and_gradients(dtype, digits, mean):
    """To a rounding or two of the dtype, also where rows lie far from 0.

    What x has lost by its own rounding is in the formula too: it is given the rounded rows.
    """
    random = np.random.default_rng(1)
    scale, bias = random.normal(1, 0.2, H), random.normal(0, 0.2, H)
    params = {'params': {'scale': jnp.float32(scale), 'bias': jnp.float32(bias)}}
    x, gradient = jnp.asarray(rows(mean), dtype), jnp.asarray(rows(0.0), dtype)
    out, pull = jax.vjp(lambda x: LayerNorm(EPSILON).apply(params, x), x)
    assert out.dtype == x.dtype

    exact = np.asarray(x, np.float64)
    # Of a mean of 300 deviations float32 loses two digits more, in whatever order it sums.
    tolerance = 8 * digits if dtype == 'bfloat16' else digits * (4 + 2 * abs(mean))
    np.testing.assert_allclose(
        np.asarray(out, np.float64), normalised(exact, scale, bias), atol=tolerance
    )
    np.testing.assert_allclose(
        np.asarray(pull(gradient)[0], np.float64),
        slope(exact, scale, np.asarray(gradient, np.float64)),
        atol=tolerance,
    )
