"""(IA)3 (Liu et al. 2022): activations of a block are scaled by learned vectors."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
from jax import Array

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.peft.method import Context, Efficient, Function

_AFTER = ('key', 'value')  # scaled after their product, the others before it


class Scale(nn.Module):
    """x times a learned vector, ones at first."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Scale x [..., width]; the result has the same shape and dtype."""
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],))
        return x * scale.astype(x.dtype).reshape(*(1,) * (x.ndim - 1), -1)


class IA3(Efficient):
    """Keys, values and what the feed-forward part's second product reads.

    t-few src/models/lora.py:30-55; of a BERT the activation's output is what t-few's wi_1 is.
    """

    begins = 'key'

    def __init__(self, config: ModelConfig):
        """Make the method: see Method."""
        super().__init__(config)
        # peft finds 'output.dense' at the end of the attention's output's name too.
        of_peft = self.tuning.option('vectors') == 'peft'
        self._before = ('attention_output', 'output') if of_peft else ('output',)

    def linear(self, name: str, product: Function, x: Array, context: Context) -> Array:
        """Return the scaled product, or the product of what is scaled: see Method."""
        if name in _AFTER:
            return Scale(name=f'{name}_ia3')(product(x))
        if name in self._before:
            return product(Scale(name=f'{name}_ia3')(x))
        return product(x)

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks with the scales in the rows or columns next to them."""
        layers = dict(layers)
        for name in (*_AFTER, *self._before):
            scale, arrays = layers.pop(f'{name}_ia3')['scale'], layers[name]
            if name in _AFTER:
                # Of a kernel [L, inputs, outputs] the outputs, and so the bias [L, outputs] too.
                layers[name] = {
                    key: leaf * scale.reshape(len(scale), *(1,) * (leaf.ndim - 2), -1)
                    for key, leaf in arrays.items()
                }
            else:
                layers[name] = {**arrays, 'kernel': arrays['kernel'] * scale[:, :, None]}
        return layers
