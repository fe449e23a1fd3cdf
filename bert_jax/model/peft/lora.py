"""LoRA (Hu et al. 2021): low-rank updates of chosen matrices."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.model.tuning import MATRICES
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.dropout import dropout
from bert_jax.model.peft.method import Context, Efficient, Function


class LoRA(Efficient):
    """y + alpha / rank * drop(x) A B (loralib layers.py:90-150); B is 0 at first."""

    def __init__(self, config: ModelConfig):
        """Make the method: see Method."""
        super().__init__(config)
        self._matrices = self.tuning.option('matrices').split(',')
        self._rank, self._rate = self.tuning.option('rank'), self.tuning.option('lora_dropout')
        self._scale = self.tuning.option('alpha') / self._rank
        self.begins = min(self._matrices, key=MATRICES.index)

    def weights(self, name: str, inputs: int, outputs: int) -> int:
        """Return the weights of an update's two matrices: see Method."""
        return self._rank * (inputs + outputs) if name in self._matrices else 0

    def linear(self, name: str, product: Function, x: jax.Array, context: Context) -> jax.Array:
        """Return the product and its update: see Method."""
        y = product(x)
        if name not in self._matrices:
            return y
        # Uniform within 1 / sqrt(inputs): torch's kaiming_uniform_ with a = sqrt(5).
        uniform = jax.nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        plain = functools.partial(nn.Dense, use_bias=False, dtype=context.dtype)
        down = plain(self._rank, kernel_init=uniform, name=f'{name}_lora_a')
        up = plain(y.shape[-1], kernel_init=nn.initializers.zeros, name=f'{name}_lora_b')
        x = dropout(x, self._rate, context.dropout_rng, context.site(MATRICES.index(name)))
        return y + jnp.asarray(self._scale, y.dtype) * up(down(x))

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks with W + alpha / rank * A B for W, in float32."""
        layers = dict(layers)
        for name in self._matrices:
            a, b = (layers.pop(f'{name}_lora_{ab}')['kernel'] for ab in 'ab')
            update = np.float32(self._scale) * np.matmul(a, b)
            layers[name] = {**layers[name], 'kernel': layers[name]['kernel'] + update}
        return layers
