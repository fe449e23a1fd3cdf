"""The BERT encoder (Devlin et al., 2019, section 3), in Linen, used functionally.

Owns embeddings, Transformer blocks and pooler, and the layout of their parameters; heads are in
heads.py. The blocks' parameters are stacked: every leaf under `layers` has a leading axis L, or G
where blocks share them (ALBERT; Lan et al. 2020).

Dims: B batch, T position, H width, E that of the word table, N heads, D width of a head, I
feed-forward width, L layers, G groups of them, K examples packed into a row, V vocabulary rounded
up to a multiple of 128.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.configs.errors import UserError
from bert_jax.configs.model import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.products import dot_general
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model.added import ACTIVATIONS, Place, added_by
from bert_jax.model.attention.attention import AttentionMask, attend
from bert_jax.model.bilstm import BiLSTM
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.embeddings import KINDS

# Sites of dropout: 0 is the embeddings', block i has 1 + 3i + (0 probabilities, 1 attention output,
# 2 block output).
_SITES_PER_LAYER = 3
POOLER_SITE = (1 << 20) + 1  # beyond those of any depth, and the head's


def dense(
    config: ModelConfig,
    features: int,
    dtype: jnp.dtype,
    name: str,
    matmul_dtype: str | None = None,
) -> nn.Dense:
    """A dense layer, `features` wide, initialised as BERT's: truncated normal kernel, zero bias.

    Parameters are float32, arithmetic is in `dtype` (modeling.py:375), and its product reads both
    sides as `matmul_dtype`.
    """
    return nn.Dense(
        features,
        dtype=dtype,
        kernel_init=jax.nn.initializers.truncated_normal(config.initializer_range),
        dot_general=dot_general(matmul_dtype),
        name=name,
    )


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, with float32 statistics and population variance.

    modeling.py:362.
    """

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., H], normalised: the same shape and dtype."""
        shape = (1,) * (x.ndim - 1) + (x.shape[-1],)
        scale = self.param('scale', nn.initializers.ones, (x.shape[-1],)).reshape(shape)
        bias = self.param('bias', nn.initializers.zeros, (x.shape[-1],)).reshape(shape)

        # Statistics in float32 also where x is bfloat16: a mean of squares there has two digits.
        x32 = x.astype(jnp.float32)
        mean = x32.mean(-1, keepdims=True)
        centred = x32 - mean
        if x.dtype == jnp.bfloat16:
            # Both means in one pass over x, which XLA fuses with what makes it. What is lost where
            # they cancel is less than the rounding of x has lost there already. With the choice of
            # segments below libtpu estimated 5.59 ms a step in place of 6.05 (v5e:2x4, two layers
            # of BERT-large's width). No chip has confirmed it.
            variance = jnp.maximum(jnp.square(x32).mean(-1, keepdims=True) - jnp.square(mean), 0)
        else:
            variance = jnp.square(centred).mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(x.dtype)


class Embeddings(nn.Module):
    """Word + segment + position embeddings, then layer norm, dropout, and where they are narrower
    than the blocks a dense layer to their width.

    modeling.py:408-520, :362; google-research/albert modeling.py:1083-1086.
    """

    config: ModelConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        words: jax.Array,
        segment_ids_BT: jax.Array,
        dropout_rng: DropoutRng | None,
        position_ids_BT: jax.Array | None = None,
        input_mask_BT: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """(embeddings [B, T, H], the word table [V, E] that the masked-LM head shares, if any).

        words: what config.embedding reads: input_ids [B, T], or characters [B, T, 16]. Positions
        count from 0 unless given. Without a mask nothing is padding.
        """
        c = self.config

        # The three tables are float32 parameters; the sum becomes `dtype` after the norm.
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        words_BTE, shared_VE = KINDS[c.embedding](c).look_up(self, words)
        position_TE = self.param('position', normal, (c.position_rows, c.embedding_width))
        segment_2E = self.param('segment', normal, (c.type_vocab_size, c.embedding_width))

        # Rows of one example take T positions in order, which is a slice and not a gather.
        T, first = segment_ids_BT.shape[1], c.traits.first_position
        if position_ids_BT is None:
            positions_BTE = position_TE[None, first : first + T]
        else:
            positions_BTE = position_TE[position_ids_BT + first]
        # RoBERTa's padding is all at the row before its first token's, which is not trained
        # (transformers modeling_roberta.py): losses over all positions read its hidden states.
        if first and input_mask_BT is not None:
            padding_E = jax.lax.stop_gradient(position_TE[first - 1])
            is_real_BT1 = input_mask_BT[..., None] > 0
            positions_BTE = jnp.where(is_real_BT1, positions_BTE, padding_E[None, None])
        # Of so few rows a choice between them should be quicker on a TPU than to look them up: its
        # gradient is a sum where that of a look-up is a scatter. No chip has confirmed it.
        segments_BTE = segment_2E[None, None, 0]
        for segment in range(1, c.type_vocab_size):
            is_it_BT1 = segment_ids_BT[..., None] == segment
            segments_BTE = jnp.where(is_it_BT1, segment_2E[None, None, segment], segments_BTE)
        x_BTE = words_BTE + segments_BTE + positions_BTE
        x_BTE = LayerNorm(c.layer_norm_eps, name='norm')(x_BTE).astype(self.dtype)
        # Rows are pinned to their devices here and after each block; without it XLA may
        # lay the result out like the table, and move rows later.
        x_BTE = dropout(constrain_rows(x_BTE), c.hidden_dropout, dropout_rng, 0)
        if c.embedding_size is None:
            return x_BTE, shared_VE
        return dense(c, c.hidden_size, self.dtype, 'to_hidden')(x_BTE), shared_VE


class Layer(nn.Module):
    """One Transformer block, normalised after each residual sum (modeling.py:830-880)."""

    config: ModelConfig
    dtype: jnp.dtype
    kernel: str = 'xla'
    matmul_dtype: str | None = None

    @nn.compact
    def __call__(
        self,
        x_BTH: jax.Array,
        index: jax.Array,
        attention_mask: AttentionMask,
        dropout_rng: DropoutRng | None,
    ) -> tuple[jax.Array, None]:
        """(x [B, T, H] after block number `index`, None), as the body of a scan."""
        # Dropout sites are numbered by block, so that scanned and unrolled layers draw the same.
        c, H = self.config, self.config.hidden_size
        B, T, _ = x_BTH.shape
        site = 1 + _SITES_PER_LAYER * index
        # What tuning adds, if anything, comes in where products and sums are computed.
        added, place = added_by(c), Place(c, self.dtype, index, dropout_rng)

        def linear(name: str, width: int, x: jax.Array) -> jax.Array:
            layer = dense(c, width, self.dtype, name, self.matmul_dtype)
            # Kept with its bias: a loop then writes to its stack what the block goes on with. For
            # BERT-large scanned on v5e:2x4 libtpu estimated 98 ms a step in place of 107; no chip
            # has confirmed it.
            return checkpoint_name(added.linear(name, layer, x, place), 'kept')

        def add_norm(name: str, norm: str, x: jax.Array, out: jax.Array, at: jax.Array):
            drop = lambda out: dropout(out, c.hidden_dropout, dropout_rng, at)
            return added.residual(name, x, out, drop, LayerNorm(c.layer_norm_eps, name=norm), place)

        # [B, T, H] -> [B, T, N, D]: query, key and value of all heads are one product each.
        heads = lambda name: linear(name, H, x_BTH).reshape(B, T, c.num_heads, H // c.num_heads)
        ltr = c.attention == 'left_to_right'

        # Attention, then a residual sum and its norm ("post-norm", as in the original).
        out_BTND = attend(
            heads('query'),
            heads('key'),
            heads('value'),
            attention_mask,
            c.attention_dropout,
            dropout_rng,
            site,
            ltr,
            self.kernel,
        )
        out_BTH = linear('attention_output', H, out_BTND.reshape(B, T, H))
        x_BTH = add_norm('attention_output', 'attention_norm', x_BTH, out_BTH, site + 1)

        # The feed-forward part, then the same again.
        h_BTI = ACTIVATIONS[c.hidden_act](linear('intermediate', c.intermediate_size, x_BTH))
        out_BTH = linear('output', H, h_BTI)
        x_BTH = add_norm('output', 'output_norm', x_BTH, out_BTH, site + 2)
        x_BTH = constrain_rows(x_BTH)
        # Kept only where a caller asks for `intermediates`.
        self.sow('intermediates', 'hidden', x_BTH)
        return x_BTH, None


# What the forward pass of a block keeps for the backward pass; all else is made again. With 'none'
# that is what costs a product: outputs of the dense layers, attention's output and probabilities,
# all named 'kept'. Masks of dropout are drawn again, but for those that a kernel has packed: across
# a loop libtpu estimated 125 ms a step in place of 129 (BERT-large scanned, v5e:2x4, 32 rows of 128
# a chip), and its compiler takes 8.0 GiB in place of 8.4. No chip has confirmed the time.
REMAT_POLICIES = {
    'none': jax.checkpoint_policies.save_only_these_names('kept'),
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'full': jax.checkpoint_policies.nothing_saveable,
}


class Packing(NamedTuple):
    """What keeps the examples of a row apart, where rows hold several.

    pack_ids_BT: the example that each token is of, from 1, 0 for padding; position_ids_BT: its
    position in that example; cls_positions_BK: where each example begins.
    """

    pack_ids_BT: jax.Array
    position_ids_BT: jax.Array
    cls_positions_BK: jax.Array


class Encoder(nn.Module):
    """Embeddings, L blocks and the pooler.

    `remat`, `scan` and `kernel` change memory and speed, not the result. `pooler_dropout`: rate of
    dropout before the pooler. `matmul_dtype`: what products of the blocks' dense layers read; None:
    arithmetic is in `dtype` throughout.
    """

    config: ModelConfig
    dtype: jnp.dtype = jnp.float32
    remat: str = 'none'
    scan: bool = False
    kernel: str = 'xla'
    pooler_dropout: float = 0.0
    matmul_dtype: str | None = None

    @nn.compact
    def __call__(
        self,
        words: jax.Array,
        input_mask_BT: jax.Array,
        segment_ids_BT: jax.Array,
        dropout_rng: DropoutRng | None = None,
        packing: Packing | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """(hidden states [B, T, H], pooled token [B, H], word table [V, E] to share, if any).

        words: as of Embeddings. There is no dropout without `dropout_rng`. The pooled token is the
        first; left to right, where that sees itself alone, the last that is no padding. With
        `packing` the first tokens of all K examples of a row are pooled: [B, K, H].
        """
        # An LSTM would run over the border between two examples; left to right the pooled token is
        # an example's last, and packed rows tell the first.
        c = self.config
        if packing and (c.bilstm or c.attention == 'left_to_right'):
            raise UserError(
                'packed records are for an encoder of bidirectional attention without a BiLSTM:'
                ' make them without --packing'
            )
        position_ids_BT = packing.position_ids_BT if packing else None
        x_BTH, shared_VE = Embeddings(c, self.dtype, name='embeddings')(
            words, segment_ids_BT, dropout_rng, position_ids_BT, input_mask_BT
        )
        # hidden_states[0] for transformers; the blocks add theirs (hidden_states.py reads both).
        self.sow('intermediates', 'hidden', x_BTH)

        # One block's code for all layers: parameters stacked along L in any case, and the loop
        # either kept (scan: a small program) or unrolled (faster).
        layer = Layer
        # Unrolled, XLA sees by itself what is cheaper made again than kept, but not across a loop.
        if self.scan or self.remat != 'none':
            layer = nn.remat(Layer, policy=REMAT_POLICIES[self.remat], prevent_cse=not self.scan)
        # The blocks of a group are one block's weights, gone through again and again: an inner
        # loop, through which their gradients are summed.
        size = c.num_layers // c.own_blocks
        if c.num_groups:
            layer = nn.scan(
                layer,
                variable_axes={'intermediates': 0},
                variable_broadcast='params',
                split_rngs={'params': False},
                in_axes=(0, nn.broadcast, nn.broadcast),
                length=size,
                unroll=1 if self.scan else size,
            )
        # The lowest blocks in a stack of their own where tuning leaves them alone: nothing there is
        # differentiated then, and nothing kept for a backward pass.
        below, plain = c.tuning.frozen_layers or 0, c.tuned(TuningConfig())
        mask = AttentionMask(input_mask_BT, packing.pack_ids_BT if packing else None)
        for name, first, last in (('below_layers', 0, below), ('layers', below, c.num_layers)):
            if first == last:
                continue
            stacked = (last - first) // size
            layers = nn.scan(
                layer,
                variable_axes={'params': 0, 'intermediates': 0},
                split_rngs={'params': True},
                in_axes=(0, nn.broadcast, nn.broadcast),
                length=stacked,
                unroll=1 if self.scan else stacked,
            )(
                plain if name == 'below_layers' else c,
                self.dtype,
                self.kernel,
                self.matmul_dtype,
                name=name,
            )
            # In the order of in_axes: `index` is split over the layers, mask and random names go to
            # each.
            numbers = jnp.arange(first, last)
            numbers = numbers.reshape(stacked, size) if c.num_groups else numbers
            x_BTH, _ = layers(x_BTH, numbers, mask, dropout_rng)
        if c.bilstm:
            x_BTH = BiLSTM(c.hidden_size // 2, self.dtype, name='bilstm')(x_BTH, input_mask_BT)

        # The token that stands for an example: by then it has seen all of it.
        if packing:
            pooled = jnp.take_along_axis(x_BTH, packing.cls_positions_BK[..., None], axis=1)
        elif c.attention == 'left_to_right':
            last_B = input_mask_BT.astype(jnp.int32).sum(-1) - 1
            pooled = jnp.take_along_axis(x_BTH, last_B[:, None, None], axis=1)[:, 0]
        else:
            pooled = x_BTH[:, 0]
        pooled = dropout(pooled, self.pooler_dropout, dropout_rng, POOLER_SITE)
        return x_BTH, jnp.tanh(dense(c, c.hidden_size, self.dtype, 'pooler')(pooled)), shared_VE
