"""AdaMix (Wang et al. 2022): a mixture of adapters, of which each step draws one."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.model.tuning import TuningConfig
from bert_jax.model.blocks.feed_forward import ACTIVATIONS
from bert_jax.model.peft.method import Context, Efficient, Function


class Experts(nn.Module):
    """M dense layers of one shape, of which one, or their mean, is computed."""

    features: int
    experts: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, chosen: Array | None) -> Array:
        """Return x [..., inputs] through the layer number `chosen`, or through the mean one."""
        shape = (self.experts, x.shape[-1], self.features)
        kernel = self.param('kernel', nn.initializers.normal(0.02), shape)
        bias = self.param('bias', nn.initializers.zeros, (self.experts, self.features))
        # The mean of weights is in float32, whatever the products are computed in.
        take: Any = (lambda w: w.mean(0)) if chosen is None else (lambda w: w[chosen])
        y = x @ take(kernel).astype(self.dtype)
        return y + take(bias).astype(self.dtype).reshape(*(1,) * (x.ndim - 1), -1)


class AdaMix(Efficient):
    """x + W2 gelu(W1 x + b1) + b2 on the feed-forward output, before dropout and the sum.

    W1 is one of M, drawn anew in each block and pass for the whole batch; W2 is shared
    (expert_soup.py:14-110 with --sharing_up 1). Outside of training W1 is the mean of all.
    """

    begins = 'output'
    folds = False
    bottlenecks = ('output',)  # of one expert and the shared matrix

    def branch(self, name: str, out: Array, drop: Function, context: Context) -> Array:
        """Return the output with the change of the expert that was drawn: see Method."""
        if name != 'output':
            return drop(out)
        M, width, chosen = self.tuning.option('experts'), self.tuning.option('width'), None
        if context.dropout_rng is not None and M > 1:
            key = jax.random.fold_in(context.dropout_rng.key, context.site(7))
            chosen = jax.random.randint(key, (), 0, M)
        experts = Experts(width, M, context.dtype, name=f'{name}_adapter_down')
        down, init = (lambda x: experts(x, chosen)), nn.initializers.normal(0.02)
        act = ACTIVATIONS['gelu_erf']
        return drop(out + self.bottleneck(name, out, act, init, context, down))

    def fold(self, layers: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks with one expert, the mean of all, which answers are computed by."""
        mean = {
            name: leaf.mean(1, keepdims=True)
            for name, leaf in layers['output_adapter_down'].items()
        }
        return {**layers, 'output_adapter_down': mean}

    def left(self) -> TuningConfig:
        """Return the tuning of a single expert."""
        return dataclasses.replace(self.tuning, experts=1)
