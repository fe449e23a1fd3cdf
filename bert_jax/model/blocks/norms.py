"""Normalisation: a class for each value of `model.norm_class`."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.configs.options import find_class
from bert_jax.configs.schema import ModelConfig


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, with float32 statistics and population variance.

    modeling.py:362.
    """

    epsilon: float
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalise x [..., H]; the result has the same shape and dtype."""
        shape = (1,) * (x.ndim - 1) + (x.shape[-1],)
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],)).reshape(shape)

        # Statistics in float32 also where x is bfloat16: a mean of squares there has two digits.
        x32 = x.astype(jnp.float32)
        centred = x32 - x32.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.epsilon) * scale
        if self.use_bias:
            y = y + self.param('bias', nn.initializers.zeros, (x.shape[-1],)).reshape(shape)
        return y.astype(x.dtype)


class RMSNorm(nn.Module):
    """Division by the root of the mean square, in float32 (Zhang and Sennrich 2019).

    Nothing is subtracted, and there is never a bias (transformers modeling_eurobert.py:43-60).
    """

    epsilon: float
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalise x [..., H]; the result has the same shape and dtype."""
        shape = (1,) * (x.ndim - 1) + (x.shape[-1],)
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],)).reshape(shape)
        x32 = x.astype(jnp.float32)
        mean_square = jnp.square(x32).mean(-1, keepdims=True)
        return (x32 * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(x.dtype)


NORMS: dict[str, type[nn.Module]] = {'layer_norm': LayerNorm, 'rms_norm': RMSNorm}


def make_norm(shape: ModelConfig, name: str | None = None, use_bias: bool | None = None) -> Any:
    """Return a norm of a model, as a module of that name; use_bias: None: as of the blocks."""
    norm = find_class('norm_class', shape.norm_class, NORMS)
    biased = shape.use_bias if use_bias is None else use_bias
    return norm(shape.layer_norm_eps, biased, name=name)
