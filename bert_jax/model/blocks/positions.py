"""How a model knows the order of tokens: a class for each value of `model.positions`.

Positions are added to the embeddings, turn queries and keys, or are added to scores. What is added
to scores depends on the distance of two tokens alone. So packed rows need no more: inside an
example distances are those of the row, and other examples are not seen.

Dims: as in model/encoder.py; S key position, R rows of a table of distances, C distances in a row
of T tokens, from -(T - 1) to T - 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.configs.schema import ModelConfig
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.blocks.part import Linear, Rows
from bert_jax.model.dropout import dropout

# Sites of dropout on a table of distances, one for each block: beyond those of tuning.
_TABLE_SITE = 1 << 22
# MPNet's buckets of distances, which its code fixes (transformers modeling_mpnet.py:312,330-347):
# so many on each side, the distance that the last one begins at.
_BUCKETS_A_SIDE, _FARTHEST = 16, 128


class Positions:
    """No positions: nothing is added to the embeddings, and queries and keys stay as they are.

    Attributes:
      has_rows: whether the embeddings have a row for each position.
      shared: makes the module `relative` of the encoder, whose result all blocks are given as
        `Rows.relative`; None: there is nothing to share. Only positions that add to scores have it.
      columns: names of the matrices that a block may have for distances, beside those for tokens.
    """

    has_rows = False
    shared: ClassVar[Callable[..., nn.Module] | None] = None
    columns: tuple[str, ...] = ()

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

    @property
    def matrices(self) -> tuple[str, ...]:
        """Those of `columns` that the blocks have."""
        return ()

    @property
    def terms(self) -> int:
        """Products whose sum a score is: it is divided by the root of as many widths of a head."""
        return 1

    def flops(self, seq_len: int) -> int:
        """Return the FLOPs of a sequence in products with distances, forward.

        Left out is what is computed once for a batch.
        """
        return 0

    def biased(
        self, q_BTND: Array, k_BSND: Array, linear: Linear, rows: Rows, site: Array | int
    ) -> Array | None:
        """Return what is added to scores, float32 [B or 1, N, T, S]; None for nothing.

        Args:
          q_BTND: queries.
          k_BSND: keys.
          linear: as of Part.
          rows: what is known of the batch.
          site: the dropout site of the block's attention.
        """
        return None


class LearnedPositions(Positions):
    """A row of trained weights for each position (the paper; modeling.py:480-520)."""

    has_rows = True

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


def align(x_TC: Array) -> Array:
    """Return x [..., T, C] as [..., T, S]: row t of the result is row t of x from T - 1 - t on.

    So column s has what x has of distance s - t. Rows are moved by a reshape: a look-up would cost
    a scatter in the backward pass.
    """
    *batch, T, C = x_TC.shape
    flat = jnp.pad(x_TC, [(0, 0)] * (x_TC.ndim - 1) + [(0, 1)]).reshape(*batch, T * (C + 1))
    flat = jax.lax.slice_in_dim(flat, T - 1, T - 1 + T * C, axis=-1)
    return jax.lax.slice_in_dim(flat.reshape(*batch, T, C), 0, T, axis=-1)


def _take_distances(buckets: np.ndarray, tokens: int) -> Array:
    """Return the buckets [C] of the distances in a row, from those of the longest row."""
    middle = len(buckets) // 2
    return jax.lax.slice_in_dim(jnp.asarray(buckets), middle + 1 - tokens, middle + tokens)


def find_bias_buckets(farthest: int) -> np.ndarray:
    """Return MPNet's bucket of each distance key - query from -farthest to farthest.

    Keys on the right have buckets from 16 on. Of each side the first eight distances have their
    own, farther ones share them by their logarithm (transformers modeling_mpnet.py:330-347).
    """
    distances = np.arange(-farthest, farthest + 1)
    away, exact = np.abs(distances), _BUCKETS_A_SIDE // 2
    # float32, as there: on powers of two the rounding decides.
    logs = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    scaled = logs / np.float32(np.log(_FARTHEST / exact)) * np.float32(_BUCKETS_A_SIDE - exact)
    far = np.minimum(exact + scaled.astype(np.int32), _BUCKETS_A_SIDE - 1)
    return np.where(away < exact, away, far) + _BUCKETS_A_SIDE * (distances > 0)


class BiasTable(nn.Module):
    """MPNet's table of numbers, one for each bucket of distances and each head."""

    config: ModelConfig
    dtype: Any

    @nn.compact
    def __call__(self, tokens: int) -> Array:
        """Return what is added to the scores of rows of so many tokens: [1, N, T, S]."""
        c = self.config
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        table_RN = self.param('table', normal, (2 * _BUCKETS_A_SIDE, c.num_heads))
        buckets_C = _take_distances(find_bias_buckets(c.max_position - 1), tokens)
        bias_NC = table_RN[buckets_C].T
        return align(
            jnp.broadcast_to(bias_NC[None, :, None], (1, c.num_heads, tokens, len(buckets_C)))
        )


class BiasedPositions(LearnedPositions):
    """Rows of positions, and a number added to scores for each distance (MPNet; Song et al. 2020).

    It is added after the division by the root of a head's width, in all blocks alike (transformers
    modeling_mpnet.py:150-158).
    """

    shared = BiasTable

    def biased(
        self, q_BTND: Array, k_BSND: Array, linear: Linear, rows: Rows, site: Array | int
    ) -> Array | None:
        """Return the numbers of the distances: see Positions."""
        return rows.relative


def find_distance_rows(shape: ModelConfig) -> np.ndarray:
    """Return the row of DeBERTa's table of each distance query - key in the longest row.

    From -(max_position - 1) on. Distances up to half of the buckets have their own, farther ones
    share them by their logarithm (transformers modeling_deberta_v2.py:56-68,283).
    """
    distances = np.arange(1 - shape.max_position, shape.max_position)
    span, farthest = shape.relative_span, shape.relative_max or shape.max_position
    rows = distances
    if shape.relative_buckets:
        half = shape.relative_buckets // 2
        away = np.maximum(np.abs(distances), half).astype(np.float32)
        whole = np.log(np.float32((farthest - 1) / half))
        logs = np.log(away / np.float32(half)) / whole * np.float32(half - 1)
        far = np.sign(distances) * (np.ceil(logs) + half)
        rows = np.where(np.abs(distances) <= half, distances, far).astype(np.int32)
    return np.clip(rows + span, 0, 2 * span - 1)


class DistanceTable(nn.Module):
    """DeBERTa's table of vectors, one for each bucket of distances, for all blocks."""

    config: ModelConfig
    dtype: Any

    @nn.compact
    def __call__(self, tokens: int) -> Array:
        """Return the vectors, normalised: [R, H]."""
        c = self.config
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        table_RH = self.param('table', normal, (2 * c.relative_span, c.hidden_size))
        if c.relative_norm:
            table_RH = make_norm(c, 'norm')(table_RH)
        return table_RH.astype(self.dtype)


class DisentangledPositions(Positions):
    """Products of tokens with distances in the scores (DeBERTa; He et al. 2021, section 3.1).

    A query times the key of a distance (c2p), and a key times the query of one (p2c). Both are of
    the distance query - key, as the released models have it (transformers
    modeling_deberta_v2.py:253-309); the paper has the opposite sign in p2c.
    """

    shared = DistanceTable
    columns = ('position_key', 'position_query')

    @property
    def matrices(self) -> tuple[str, ...]:
        """A matrix for each kind of product, where the blocks' own are not read for it."""
        if self.config.relative_projections == 'shared':
            return ()
        of_product = {'c2p': 'position_key', 'p2c': 'position_query'}
        return tuple(of_product[product] for product in self._products)

    @property
    def terms(self) -> int:
        """The product of query and key, and those with distances."""
        return 1 + len(self._products)

    @property
    def _products(self) -> list[str]:
        return self.config.relative_terms.split('_')

    def flops(self, seq_len: int) -> int:
        """Return 2 S H for each distance of a row and each kind of product."""
        return len(self._products) * 2 * seq_len * (2 * seq_len - 1) * self.config.hidden_size

    def biased(
        self, q_BTND: Array, k_BSND: Array, linear: Linear, rows: Rows, site: Array | int
    ) -> Array:
        """Return the products with distances: see Positions."""
        c, (_, T, N, D) = self.config, q_BTND.shape
        # One mask for all rows of a step, so that it is the same on any mesh.
        rng = rows.dropout_rng
        if rng is not None:
            rng = dataclasses.replace(rng, rows_B=jnp.zeros(1, jnp.uint32))
        table_RH = dropout(rows.relative[None], c.hidden_dropout, rng, _TABLE_SITE + site)[0]
        buckets_C = _take_distances(find_distance_rows(c), T)
        own = 'position_' if c.relative_projections == 'own' else ''

        def make(name: str) -> Array:
            return linear(f'{own}{name}', table_RH).reshape(-1, N, D)

        multiply = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        bias: Any = 0.0
        if 'c2p' in self._products:
            # Columns are distances key - query: those of the table turned round.
            keys_CND = make('key')[buckets_C[::-1]]
            bias = bias + align(multiply('BTND,CND->BNTC', q_BTND, keys_CND))
        if 'p2c' in self._products:
            queries_CND = make('query')[buckets_C]
            bias_BNST = align(multiply('BSND,CND->BNSC', k_BSND, queries_CND))
            bias = bias + bias_BNST.swapaxes(-1, -2)
        return bias * (D * self.terms) ** -0.5


POSITIONS: dict[str, type[Positions]] = {
    'learned': LearnedPositions,
    'rotary': RotaryPositions,
    'relative_bias': BiasedPositions,
    'disentangled': DisentangledPositions,
    'none': Positions,
}
