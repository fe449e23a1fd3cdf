"""The feed-forward part of a block: a class for each value of `model.feed_forward`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import numpy as np
from jax import Array

from bert_jax.model.blocks.part import Linear, Part, Rows


def gelu_erf(x: Array) -> Array:
    """Return x times the chance that a standard normal is below x.

    In float32 by erf, as PyTorch has it: jax takes erfc, which is exact where almost nothing is
    left of x, and takes twice as long on a CPU. In fewer digits 1 + erf would lose too many.
    """
    if x.dtype != np.float32:
        return nn.gelu(x, approximate=False)
    return 0.5 * x * (1 + jax.lax.erf(x * np.float32(np.sqrt(0.5))))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    'gelu_tanh': functools.partial(nn.gelu, approximate=True),
    'gelu_erf': gelu_erf,
    'relu': nn.relu,
    'silu': nn.silu,
    'tanh': nn.tanh,
}


class FeedForward(Part):
    """Two dense layers with an activation between them (modeling.py:855-870)."""

    columns: tuple[str, ...] = ('intermediate',)
    rows = ('output',)
    norm = 'output_norm'

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of a wide matrix and of one back."""
        H, wide = self.config.hidden_size, self.config.intermediate_size
        return {'intermediate': (H, wide), 'output': (wide, H)}

    def split_sizes(self) -> dict[str, int]:
        """Return the width between the two layers."""
        return {'intermediate_size': self.config.intermediate_size}

    def __call__(
        self, linear: Linear, x_BTH: Array, rows: Rows, site: Array | int, kernel: str
    ) -> Array:
        """Return the output of the second layer: see Part."""
        return linear('output', ACTIVATIONS[self.config.hidden_act](linear('intermediate', x_BTH)))


class GatedFeedForward(FeedForward):
    """A feed-forward part whose activations are multiplied by a second product (Shazeer 2020).

    The activation is on the first product (transformers modeling_modernbert.py:89-90).
    """

    columns = ('intermediate', 'gate')

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of two wide matrices and of one back."""
        shapes = super().shapes()
        return {'intermediate': shapes['intermediate'], 'gate': shapes['intermediate']} | shapes

    def __call__(
        self, linear: Linear, x_BTH: Array, rows: Rows, site: Array | int, kernel: str
    ) -> Array:
        """Return the output of the last layer: see Part."""
        activate = ACTIVATIONS[self.config.hidden_act]
        x_BTI = activate(linear('intermediate', x_BTH)) * linear('gate', x_BTH)
        return linear('output', x_BTI)


FEED_FORWARDS: dict[str, type[Part]] = {'mlp': FeedForward, 'geglu': GatedFeedForward}
