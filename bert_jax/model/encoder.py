"""The BERT encoder (Devlin et al., 2019, section 3), in Linen, used functionally.

Owns embeddings, the way through the blocks, and the pooler; blocks are in blocks/, heads in
heads.py. Fresh parameters are as at rest (layout.py): below `layers` every leaf has a leading axis
L, or G where blocks share them (ALBERT; Lan et al. 2020). It reads them stacked or separate.

Dims: B batch, T position, H width, E that of the word table, N heads, D width of a head, I
feed-forward width, L layers, G groups of them, K examples packed into a row, V vocabulary rounded
up to a multiple of 128.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.model import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model import layout
from bert_jax.model.blocks.attend import AttentionMask
from bert_jax.model.blocks.bilstm import BiLSTM
from bert_jax.model.blocks.block import Block
from bert_jax.model.blocks.norms import PLACEMENTS, LayerNorm
from bert_jax.model.blocks.part import Rows
from bert_jax.model.blocks.positions import POSITIONS
from bert_jax.model.blocks.products import dense
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.embeddings import KINDS

# run(parameters of a block, x [B, T, H], the block's number) -> x.
_Run = Callable[[Any, jax.Array, jax.Array | int], jax.Array]
POOLER_SITE = (1 << 20) + 1  # dropout site beyond those of any depth, and the head's


class Embeddings(nn.Module):
    """Word + segment + position embeddings, then layer norm and dropout.

    Where they are narrower than the blocks, a dense layer follows to their width.
    modeling.py:408-520, :362; google-research/albert modeling.py:1083-1086.
    """

    config: ModelConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        words: jax.Array,
        segment_ids_BT: jax.Array,
        dropout_rng: DropoutRng | None,
        position_ids_BT: jax.Array | None = None,
        input_mask_BT: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return (embeddings [B, T, H], the word table [V, E] that the masked-LM head shares).

        words: what config.embedding reads: input_ids [B, T], or characters [B, T, 16]. Positions
        count from 0 unless given. Without a mask nothing is padding. There may be no table.
        """
        c = self.config

        # The three tables are float32 parameters; the sum becomes `dtype` after the norm.
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        words_BTE, shared_VE = KINDS[c.embedding](c).look_up(self, words)
        positions_BTE = POSITIONS[c.positions](c).added(
            self, segment_ids_BT.shape[1], position_ids_BT, input_mask_BT
        )
        segment_2E = self.param('segment', normal, (c.type_vocab_size, c.embedding_width))

        # Of so few rows a choice between them should be quicker on a TPU than to look them up: its
        # gradient is a sum where that of a look-up is a scatter. No chip has confirmed it.
        segments_BTE = segment_2E[None, None, 0]
        for segment in range(1, c.type_vocab_size):
            is_it_BT1 = segment_ids_BT[..., None] == segment
            segments_BTE = jnp.where(is_it_BT1, segment_2E[None, None, segment], segments_BTE)
        x_BTE = words_BTE + segments_BTE
        x_BTE = x_BTE if positions_BTE is None else x_BTE + positions_BTE
        norm = LayerNorm(c.layer_norm_eps, c.use_bias, name='norm')
        x_BTE = norm(x_BTE).astype(self.dtype)
        # Rows are pinned to their devices here and after each block; without it XLA may
        # lay the result out like the table, and move rows later.
        x_BTE = dropout(constrain_rows(x_BTE), c.hidden_dropout, dropout_rng, 0)
        if c.embedding_size is None:
            return x_BTE, shared_VE
        return dense(c, c.hidden_size, self.dtype, 'to_hidden')(x_BTE), shared_VE


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

    `remat`, `scan` (a loop over stacked blocks) and `kernel` change memory and speed, not the
    result. `pooler_dropout`: rate of dropout before the pooler. `matmul_dtype`: what products of
    the blocks' dense layers read; None: arithmetic is in `dtype` throughout.
    """

    config: ModelConfig
    dtype: DTypeLike = jnp.float32
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
        """Return (hidden states [B, T, H], pooled token [B, H], word table [V, E] to share).

        words: as of Embeddings. There is no dropout without `dropout_rng`. The pooled token is the
        first; with causal attention, where that sees itself alone, the last that is no padding.
        With `packing` the first tokens of all K examples of a row are pooled: [B, K, H].
        """
        c = self.config
        # An LSTM would run over the border between two examples. With causal attention the pooled
        # token is an example's last, and packed rows name the first.
        if packing and (c.bilstm or c.is_causal):
            raise UserError(
                'packed records are for an encoder of bidirectional attention without a BiLSTM:'
                ' make them without --packing'
            )
        position_ids_BT = packing.position_ids_BT if packing else None
        x_BTH, shared_VE = Embeddings(c, self.dtype, name='embeddings')(
            words, segment_ids_BT, dropout_rng, position_ids_BT, input_mask_BT
        )
        mask = AttentionMask(input_mask_BT, packing.pack_ids_BT if packing else None)
        hidden = self._through_blocks(x_BTH, Rows(mask, position_ids_BT, dropout_rng))
        if PLACEMENTS[c.norm].has_final:
            final_norm = LayerNorm(c.layer_norm_eps, c.use_bias, name='final_norm')
            hidden[-1] = final_norm(hidden[-1])
        # As transformers counts hidden_states: the embeddings, then each block. They are kept only
        # where a caller asks for `intermediates`.
        for states in (x_BTH, *hidden):
            self.sow('intermediates', 'hidden', states)
        x_BTH = hidden[-1]
        if c.bilstm:
            x_BTH = BiLSTM(c.hidden_size // 2, self.dtype, name='bilstm')(x_BTH, input_mask_BT)

        # The token that stands for an example: by then it has seen all of it.
        if packing:
            pooled = jnp.take_along_axis(x_BTH, packing.cls_positions_BK[..., None], axis=1)
        elif c.is_causal:
            last_B = input_mask_BT.astype(jnp.int32).sum(-1) - 1
            pooled = jnp.take_along_axis(x_BTH, last_B[:, None, None], axis=1)[:, 0]
        else:
            pooled = x_BTH[:, 0]
        pooled = dropout(pooled, self.pooler_dropout, dropout_rng, POOLER_SITE)
        return x_BTH, jnp.tanh(dense(c, c.hidden_size, self.dtype, 'pooler')(pooled)), shared_VE

    def _through_blocks(self, x_BTH: jax.Array, rows: Rows) -> list[jax.Array]:
        """Return the hidden states [B, T, H] after the blocks: after each, or after the last alone.

        In a loop all are kept only where `intermediates` are asked for.
        """
        # The lowest blocks lie apart where tuning leaves them alone: nothing there is
        # differentiated then, and nothing kept for a backward pass.
        c, hidden = self.config, [x_BTH]
        below = c.tuning.frozen_layers or 0
        for name, first, last in ((layout.BELOW, 0, below), ('layers', below, c.num_layers)):
            if first == last:
                continue
            config = c.tuned(TuningConfig()) if name == layout.BELOW else c
            fields = (config, self.dtype, self.kernel, self.matmul_dtype)
            # The blocks of a group are one block's weights, gone through again and again.
            numbers = np.arange(first, last).reshape(-1, c.num_layers // c.own_blocks)
            if self.is_initializing():
                hidden.append(_fresh(fields, name, len(numbers), hidden[-1], rows))
                continue
            through = self._in_a_loop if self.scan else self._unrolled
            run: _Run = functools.partial(_run, Block(*fields, parent=None), rows)
            # XLA sees by itself what is cheaper made again than kept, but not across a loop.
            if self.scan or self.remat != 'none':
                policy = REMAT_POLICIES[self.remat]
                run = jax.checkpoint(run, policy=policy, prevent_cse=not self.scan)
            hidden += through(run, self.variables['params'][name], numbers, hidden[-1])
        return hidden[1:]

    def _unrolled(
        self, run: _Run, blocks: layout.Blocks, numbers: np.ndarray, x_BTH: jax.Array
    ) -> list[jax.Array]:
        """Return the hidden states after each block."""
        hidden = []
        for i, indices in enumerate(numbers.tolist()):
            params = layout.block(blocks, i)
            for index in indices:
                x_BTH = run(params, x_BTH, index)
                hidden.append(x_BTH)
        return hidden

    def _in_a_loop(
        self, run: _Run, blocks: layout.Blocks, numbers: np.ndarray, x_BTH: jax.Array
    ) -> list[jax.Array]:
        """Return the hidden states after each block where they are asked for, else the last."""
        keeps_all = self.is_mutable_collection('intermediates')

        def turn(x: jax.Array, group: tuple[Any, jax.Array]) -> tuple[jax.Array, Any]:
            params, indices = group

            def one_block(x: jax.Array, index: jax.Array) -> tuple[jax.Array, Any]:
                x = run(params, x, index)
                return x, x if keeps_all else None

            if len(indices) == 1:
                return one_block(x, indices[0])
            return jax.lax.scan(one_block, x, indices)

        stack = layout.stacked({'layers': blocks})['layers']
        x_BTH, kept = jax.lax.scan(turn, x_BTH, (stack, jnp.asarray(numbers)))
        return list(kept.reshape(-1, *x_BTH.shape)) if keeps_all else [x_BTH]


def _run(
    block: Block, rows: Rows, params: Any, x_BTH: jax.Array, index: jax.Array | int
) -> jax.Array:
    """Return x after a block with these parameters, which is number `index`."""
    return block.apply({'params': params}, x_BTH, index, rows)[0]


def _fresh(
    fields: tuple[Any, ...], name: str, count: int, x_BTH: jax.Array, rows: Rows
) -> jax.Array:
    """Make the stack of `count` fresh blocks in the module that calls; return x after them."""
    stack = nn.scan(
        Block,
        variable_axes={'params': 0},
        split_rngs={'params': True},
        in_axes=(0, nn.broadcast),
        length=count,
    )
    return stack(*fields, name=name)(x_BTH, jnp.arange(count), rows)[0]
