"""Products that read bfloat16, against numpy with the rounding written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import RuntimeConfig
from bert_jax.mesh import before_jax
from bert_jax.model.blocks.matmul import (
    choose_inference_dtype,
    choose_inference_products,
    choose_matmul_dtype,
    dot_general,
)

RNG = np.random.RandomState(0)
X, KERNEL = RNG.normal(size=(3, 4, 8)).astype('f'), RNG.normal(size=(8, 5)).astype('f')
WANTED = RNG.normal(size=(3, 4, 5)).astype('f')  # what the gradients are taken along


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize('table', [False, True], ids=['kernel', 'table'])
def test_forward_and_gradients(table):
    """A kernel is [K, M], a table of words [M, K]."""
    w = KERNEL.T if table else KERNEL
    dimensions = (((2,), (1 if table else 0,)), ((), ()))
    product = lambda x, w: dot_general('bfloat16')(x, w, dimensions)
    found, backward = jax.vjp(product, X, w)
    of_x, of_w = backward(WANTED)

    np.testing.assert_allclose(found, rounded(X) @ rounded(KERNEL), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, rounded(WANTED) @ rounded(KERNEL.T), rtol=1e-5, atol=1e-6)
    of_kernel = np.einsum('btk,btm->km', rounded(X), rounded(WANTED))
    np.testing.assert_allclose(of_w, of_kernel.T if table else of_kernel, rtol=1e-5, atol=1e-6)
    assert np.abs(found - X @ KERNEL).max() > 1e-3  # it is rounded, and the test can see that


@pytest.mark.parametrize(
    ('flags', 'settings', 'platform', 'chosen'),
    [
        ('sse2 avx2 amx_tile amx_bf16', {}, 'cpu', 'bfloat16'),
        ('avx2 avx512f amx_int8', {}, 'cpu', 'float32'),
        ('amx_bf16', {}, 'tpu', None),
        ('amx_bf16', {'compute_dtype': 'bfloat16'}, 'cpu', None),
        ('amx_bf16', {'matmul_dtype': 'float32'}, 'cpu', 'float32'),
    ],
)
def test_auto_follows_the_processor_and_a_name_overrules_it(
    monkeypatch, flags, settings, platform, chosen
):
    monkeypatch.setattr(before_jax, 'read_processor_flags', lambda: frozenset(flags.split()))
    assert choose_matmul_dtype(RuntimeConfig(**settings), platform) == chosen


def test_a_model_that_answers_computes_as_the_processor_is_fast_in(monkeypatch):
    # On a CPU bfloat16 is for products alone.
    assert choose_inference_products('bfloat16', 'cpu') == (jnp.float32, 'bfloat16')
    assert choose_inference_products('bfloat16', 'gpu') == ('bfloat16', None)
    for flags, wanted in (('amx_bf16', 'bfloat16'), ('avx2', 'float32')):
        monkeypatch.setattr(before_jax, 'read_processor_flags', lambda: frozenset(flags.split()))
        assert choose_inference_dtype('auto') == wanted
    with pytest.raises(UserError, match="'half' must be auto, float32 or bfloat16"):
        choose_inference_dtype('half')
