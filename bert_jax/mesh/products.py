"""Products of matrices whose sides are read as bfloat16, whatever the arithmetic around them.

A TPU multiplies float32 so by itself. On a CPU with a unit for bfloat16 (AMX, in servers by Intel
since 2023) it is worth the trouble of saying so: forward products and those for the gradient of
what a layer reads take a fifth of the time. Those for the gradient of its weights stay as they are,
since XLA hands the unit no product whose left side lies transposed, and so do the batched ones of
attention. Owns the rule and its gradient; knows no layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# ((the last dimension of x), (0 of a kernel [K, M], 1 of a table [M, K])), and no batch dimensions.
Dimensions = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple, tuple]]


@functools.cache  # one function for each dtype, so that equal modules are equal
def reading_as(dtype: str) -> Callable[..., jax.Array]:
    """jax.lax.dot_general for x [..., K] and a matrix, both read as `dtype`, with float32 sums.

    The result has x's dtype, or `preferred_element_type`. The gradient of x is such a product too;
    that of the matrix is of both sides as they are.
    """

    def dot(x: jax.Array, w: jax.Array, of_w: int) -> jax.Array:
        return jax.lax.dot_general(
            x.astype(dtype),
            w.astype(dtype),
            (((1,), (of_w,)), ((), ())),
            preferred_element_type=jnp.float32,
        )

    @functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
    def product(x: jax.Array, w: jax.Array, of_w: int, result: jnp.dtype) -> jax.Array:
        return dot(x, w, of_w).astype(result)

    def forward(
        x: jax.Array, w: jax.Array, of_w: int, result: jnp.dtype
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return product(x, w, of_w, result), (x, w)

    def backward(
        of_w: int, result: jnp.dtype, kept: tuple[jax.Array, jax.Array], g: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        del result
        x, w = kept
        of_x = dot(g, w, 1 - of_w).astype(x.dtype)
        # Summed over the rows; the kernel is [K, M], the table [M, K].
        sides = (x, g.astype(x.dtype)) if of_w == 0 else (g.astype(x.dtype), x)
        of_matrix = jax.lax.dot_general(
            *sides, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        return of_x, of_matrix.astype(w.dtype)

    product.defvjp(forward, backward)

    def dot_general(
        x: jax.Array,
        w: jax.Array,
        dimensions: Dimensions,
        precision: Any = None,
        preferred_element_type: Any = None,
    ) -> jax.Array:
        del precision
        ((of_x,), (of_w,)), batch = dimensions
        if of_x != x.ndim - 1 or w.ndim != 2 or batch != ((), ()):
            raise ValueError(f'{dimensions}: not a product of x [..., K] and a matrix')
        # As a matrix: of [B, T, K] XLA's CPU compiler makes a transposed copy, element by element,
        # for the gradient of w, and of what x is computed from too.
        rows = x.reshape(-1, x.shape[-1])
        y = product(rows, w, of_w, jnp.dtype(preferred_element_type or x.dtype))
        return y.reshape(*x.shape[:-1], y.shape[-1])

    return dot_general


def dot_general(dtype: str | None) -> Callable[..., jax.Array]:
    """The product whose sides are read as `dtype`; None: jax.lax's own."""
    return jax.lax.dot_general if dtype is None else reading_as(dtype)
