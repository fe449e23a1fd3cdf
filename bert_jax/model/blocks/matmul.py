"""Products of matrices whose sides are read as bfloat16, whatever the arithmetic around them.

A TPU multiplies float32 so by itself. On a CPU with instructions for bfloat16 (AMX, in Intel's
servers since 2023; avx512_bf16, in AMD's since 2022) it is worth the trouble of saying so: each of
the three products of a dense layer, forward and for both gradients, takes between a third and a
sixth of the time with AMX. XLA uses them where both sides are bfloat16 and the result is float32;
asked for a result in bfloat16, it multiplies in float32. Owns the choice between both, the rule and
its gradient, and the dense layer that takes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.runtime import MatmulDtype
from bert_jax.configs.schema import ModelConfig, RuntimeConfig
from bert_jax.mesh import before_jax


def choose_matmul_dtype(
    runtime: RuntimeConfig,
    platform: str | None = None,
    is_fast: Callable[[], bool] = before_jax.multiplies_bfloat16,
) -> MatmulDtype | None:
    """Return runtime.matmul_dtype with 'auto' replaced by what it is here: a name, or None.

    Args:
      runtime: the settings.
      platform: 'cpu', 'gpu' or 'tpu', by default that of the devices here.
      is_fast: tells whether the processor here multiplies bfloat16 faster.
    """
    if runtime.matmul_dtype != 'auto':
        return runtime.matmul_dtype
    # GPUs and TPUs multiply as compute_dtype says, and so does a CPU that was asked for bfloat16.
    if (platform or jax.default_backend()) != 'cpu' or runtime.compute_dtype != 'float32':
        return None
    return 'bfloat16' if is_fast() else 'float32'


def read_in_training(runtime: RuntimeConfig, platform: str | None = None) -> str | None:
    """Return what `dense` and `dot_general` take; arguments as of `choose_matmul_dtype`."""
    chosen = choose_matmul_dtype(runtime, platform)
    return None if chosen == 'float32' else chosen


def choose_inference_dtype(name: str) -> str:
    """Return the arithmetic of a model that only answers: a name, or what 'auto' is here.

    On a CPU with instructions for bfloat16 'auto' is bfloat16, which `choose_inference_products`
    takes for the products alone: vectors keep a cosine of 0.9999 with float32's. Elsewhere it is
    float32.

    Raises:
      UserError: there is no such arithmetic.
    """
    if name == 'auto':
        is_fast = jax.default_backend() == 'cpu' and before_jax.multiplies_bfloat16()
        return 'bfloat16' if is_fast else 'float32'
    if name not in ('float32', 'bfloat16'):
        raise UserError(f'compute_dtype={name!r} must be auto, float32 or bfloat16')
    return name


def choose_inference_products(
    compute_dtype: DTypeLike, platform: str | None = None
) -> tuple[Any, str | None]:
    """Return (arithmetic, what dense layers' products read) of a model that only answers.

    On a CPU bfloat16 is for those products alone: its instructions are for nothing else, and all
    other arithmetic in bfloat16 converts each array on the way.
    platform: as of `choose_matmul_dtype`.
    """
    is_half = jnp.dtype(compute_dtype) == jnp.bfloat16
    if is_half and (platform or jax.default_backend()) == 'cpu':
        return jnp.float32, 'bfloat16'
    return compute_dtype, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _multiply(x: Array, w: Array, dtype: str, axis: int) -> Array:
    """Return x [..., K] times a matrix whose `axis` is K, both read as `dtype`, with float32 sums.

    Both gradients are such products too.
    """
    return _multiply_forward(x, w, dtype, axis)[0]


def _multiply_forward(x: Array, w: Array, dtype: str, axis: int) -> tuple[Array, tuple[Array, ...]]:
    # What the backward pass reads of x is what was read here: half of the memory.
    read = x.astype(dtype)
    product = _contract(read, w, dtype, (x.ndim - 1,), (axis,))
    return product, (read, w, jnp.zeros((), x.dtype))


def _multiply_backward(
    dtype: str, axis: int, kept: tuple[Array, ...], g: Array
) -> tuple[Array, ...]:
    x, w, like_x = kept
    g = g.astype(dtype)
    of_x = _contract(g, w, dtype, (g.ndim - 1,), (1 - axis,))
    rows = tuple(range(x.ndim - 1))
    if axis == 0:
        of_matrix = _contract(x, g, dtype, rows, rows)
    else:
        of_matrix = _contract(g, x, dtype, rows, rows)
    return of_x.astype(like_x.dtype), of_matrix.astype(w.dtype)


_multiply.defvjp(_multiply_forward, _multiply_backward)


def _contract(
    a: Array, b: Array, dtype: str, axes_a: tuple[int, ...], axes_b: tuple[int, ...]
) -> Array:
    """Return the sums over these axes, float32, of two arrays that are read as `dtype`."""
    dimensions = ((axes_a, axes_b), ((), ()))
    return jax.lax.dot_general(
        a.astype(dtype), b.astype(dtype), dimensions, preferred_element_type=jnp.float32
    )


@functools.cache  # one function for each dtype, so that equal modules are equal
def dot_general(dtype: str | None) -> Callable[..., Array]:
    """Return jax.lax.dot_general for x [..., K] and a matrix, both read as `dtype`.

    The matrix is a kernel [K, M] or a table [M, K]. The result has x's dtype, or
    `preferred_element_type`. None: jax.lax's own.
    """
    if dtype is None:
        return jax.lax.dot_general

    def multiply(
        x: Array,
        w: Array,
        dimensions: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
    ) -> Array:
        ((of_x,), (axis,)), batch = dimensions
        if of_x != x.ndim - 1 or w.ndim != 2 or batch != ((), ()):
            raise ValueError(f'{dimensions}: not a product of x [..., K] and a matrix')
        return _multiply(x, w, dtype, axis).astype(preferred_element_type or x.dtype)

    return multiply


def dense(
    shape: ModelConfig,
    features: int,
    dtype: DTypeLike,
    name: str,
    matmul_dtype: str | None = None,
    use_bias: bool = True,
    std: float | None = None,
) -> nn.Dense:
    """Make a dense layer, `features` wide, initialised as BERT's: truncated normal, zero bias.

    Parameters are float32, arithmetic is in `dtype` (modeling.py:375), and its product reads both
    sides as `matmul_dtype`. std: the normal's, before it is truncated; None: initializer_range.
    """
    return nn.Dense(
        features,
        use_bias,
        dtype=dtype,
        kernel_init=jax.nn.initializers.truncated_normal(std or shape.initializer_range),
        dot_general=dot_general(matmul_dtype),
        name=name,
    )
