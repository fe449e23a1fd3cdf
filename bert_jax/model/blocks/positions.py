"""How a model knows the order of tokens: a class for each value of `model.positions`.

Dims: as in model/encoder.py.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.configs.schema import ModelConfig


class Positions:
    """No positions: nothing is added to the embeddings, and queries and keys stay as they are."""

    def __init__(self, shape: ModelConfig, is_local: bool = False):
        """Make the positions of an encoder of this shape, for its blocks of one kind of attention.

        Args:
          shape: the shape.
          is_local: whether the blocks have a window.
        """
        self.config, self.is_local = shape, is_local

    def added(
        self,
        module: nn.Module,
        seq_len: int,
        position_ids_BT: Array | None,
        input_mask_BT: Array | None,
    ) -> Array | None:
        """Return what is added to the embeddings, [B, T, E] or [1, T, E]; None for nothing.

        Args:
          module: the embeddings, whose parameters a table of positions is one of.
          seq_len: T.
          position_ids_BT: a token's position in its example; None: they count from 0.
          input_mask_BT: 0 where there is padding; None: there is none.
        """
        return None

    def turned(self, x_BTND: Array, position_ids_BT: Array | None) -> Array:
        """Return queries or keys [B, T, N, D] as the scores of attention read them."""
        return x_BTND


class LearnedPositions(Positions):
    """A row of trained weights for each position (the paper; modeling.py:480-520)."""

    def added(
        self,
        module: nn.Module,
        seq_len: int,
        position_ids_BT: Array | None,
        input_mask_BT: Array | None,
    ) -> Array:
        """Return the rows of the tokens' positions: see Positions."""
        c = self.config
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        position_TE = module.param('position', normal, (c.position_rows, c.embedding_width))
        # Rows of one example take T positions in order, which is a slice and not a gather.
        first = c.traits.first_position
        if position_ids_BT is None:
            positions_BTE = position_TE[None, first : first + seq_len]
        else:
            positions_BTE = position_TE[position_ids_BT + first]
        # RoBERTa's padding is all at the row before its first token's, which is not trained
        # (transformers modeling_roberta.py): losses over all positions read its hidden states.
        if first and input_mask_BT is not None:
            padding_E = jax.lax.stop_gradient(position_TE[first - 1])
            is_real_BT1 = input_mask_BT[..., None] > 0
            positions_BTE = jnp.where(is_real_BT1, positions_BTE, padding_E[None, None])
        return positions_BTE


class RotaryPositions(Positions):
    """Queries and keys turned by angles that grow with the position (RoFormer; Su et al. 2021).

    The first half of a head's width is turned with the second (transformers
    modeling_modernbert.py:138-206). Angles are float32.
    """

    def turned(self, x_BTND: Array, position_ids_BT: Array | None) -> Array:
        """Return queries or keys turned: see Positions."""
        c, half = self.config, x_BTND.shape[-1] // 2
        theta = c.local_rope_theta if self.is_local and c.local_rope_theta else c.rope_theta
        if position_ids_BT is None:
            position_ids_BT = jnp.arange(x_BTND.shape[1])[None]
        speeds_D = theta ** -(np.arange(half, dtype=np.float32) / half)
        angles_BTD = position_ids_BT[..., None].astype(jnp.float32) * speeds_D[None, None]
        cos_BT1D, sin_BT1D = jnp.cos(angles_BTD)[:, :, None], jnp.sin(angles_BTD)[:, :, None]
        first, second = jnp.split(x_BTND.astype(jnp.float32), 2, axis=-1)
        turned = (first * cos_BT1D - second * sin_BT1D, second * cos_BT1D + first * sin_BT1D)
        return jnp.concatenate(turned, axis=-1).astype(x_BTND.dtype)


POSITIONS: dict[str, type[Positions]] = {
    'learned': LearnedPositions,
    'rotary': RotaryPositions,
    'none': Positions,
}
