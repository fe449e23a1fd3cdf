"""An adapter after the feed-forward part (Pfeiffer et al. 2021)."""

from __future__ import annotations

import flax.linen as nn
import jax

from bert_jax.model.peft.method import Context, Efficient, Function


class Pfeiffer(Efficient):
    """total + W2 relu(W1 norm(total) + b1) + b2 in place of the feed-forward part's residual sum.

    AdapterHub's 'pfeiffer': both norms are the block's own.
    """

    begins = 'output'
    folds = False
    bottlenecks = ('output',)

    def total(self, name: str, context: Context, total: jax.Array, norm: Function) -> jax.Array:
        """Return the sum and the adapter's change of it: see Method."""
        if name != 'output':
            return total
        init = nn.initializers.normal(0.02)
        return total + self.bottleneck(name, norm(total), nn.relu, init, context)
