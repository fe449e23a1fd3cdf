"""Adapters after both sub-layers (Houlsby et al. 2019)."""

from __future__ import annotations

import jax

from bert_jax.model.blocks.feed_forward import ACTIVATIONS
from bert_jax.model.peft.method import Context, Efficient, Function


class Houlsby(Efficient):
    """x + W2 act(W1 x + b1) + b2 on the output of both sub-layers, before the sum with its input.

    adapter-bert modeling.py:321-360: nearly the identity at first. Norms are trained too.
    """

    begins = 'attention_output'
    folds = False
    trained = r'_norm/(scale|bias)$'
    bottlenecks = ('attention_output', 'output')

    def trains_outside(self, path: str) -> bool:
        """Tell whether it is the norm above the last block, which is trained like the others."""
        return '/final_norm/' in path

    def branch(self, name: str, out: jax.Array, drop: Function, context: Context) -> jax.Array:
        """Return the dropped output and the adapter's change of it: see Method."""
        out, small = drop(out), jax.nn.initializers.truncated_normal(1e-3)
        act = ACTIVATIONS[context.config.hidden_act]
        return out + self.bottleneck(name, out, act, small, context)
