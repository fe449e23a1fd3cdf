"""BitFit (Ben Zaken et al. 2022): biases are trained, and nothing is added."""

from __future__ import annotations

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.peft.method import Efficient


class BitFit(Efficient):
    """All biases, or those of query and intermediate."""

    def __init__(self, config: ModelConfig):
        """Make the method: see Method."""
        super().__init__(config)
        self._has_all = self.tuning.option('biases') == 'all'
        self.trained = r'/bias$' if self._has_all else r'/(query|intermediate)/bias$'

    def trains_outside(self, path: str) -> bool:
        """Tell whether it is a bias above the blocks, or one of the embeddings, that is trained.

        Below frozen blocks nothing may be differentiated: not the embeddings' norm either.
        """
        is_above = '/pooler/' in path or '/final_norm/' in path
        below = self._has_all and not self.tuning.option('frozen_layers')
        return path.endswith('/bias') and (is_above or below)
