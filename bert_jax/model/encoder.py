"""The BERT encoder (Devlin et al., 2019, section 3), in Linen, used functionally.

Owns the way through the blocks and the pooler; embeddings are in embeddings.py, blocks in blocks/,
heads in heads.py. Fresh parameters are as at rest (layout.py): below `layers` every leaf has a
leading axis L, or G where blocks share them (ALBERT; Lan et al. 2020). It reads them stacked or
separate.

Dims: B batch, T position, H width, E that of the word table, N heads, D width of a head, I
feed-forward width, L layers, G groups of them, K examples packed into a row, V vocabulary rounded
up to a multiple of 128.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.configs.options import find_class
from bert_jax.configs.schema import ModelConfig
from bert_jax.model import layout
from bert_jax.model.bilstm import BiLSTM
from bert_jax.model.blocks.block import BLOCKS, find_cycle, find_first_like, find_kind, make_parts
from bert_jax.model.blocks.feed_forward import ACTIVATIONS
from bert_jax.model.blocks.matmul import dense
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.blocks.part import Rows
from bert_jax.model.blocks.positions import POSITIONS
from bert_jax.model.convolution import Convolution
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.embeddings import Embeddings

# make(the number of a block): what goes through a block of that one's kind, a function of
# (parameters of the block, x [B, T, H], the block's number), which gives x.
_MakeRunBlock = Callable[[int], Callable[[Any, Array, Array | int], Array]]
POOLER_SITE = (1 << 20) + 1  # dropout site beyond those of any depth, and the head's
# What the forward pass of a block keeps for the backward pass; all else is made again. With 'none'
# that is what costs a product: outputs of the dense layers, attention's output and probabilities,
# all named 'kept'. Masks of dropout are drawn again: across a loop the compiler for TPUs takes 8.0
# GiB in place of 8.4 (BERT-large scanned, v5e:2x4, 32 rows of 128 a chip).
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

    pack_ids_BT: Array
    position_ids_BT: Array
    cls_positions_BK: Array


class Encoder(nn.Module):
    """Embeddings, L blocks and the pooler.

    `remat`, `scan` (a loop over stacked blocks) and `kernel` change memory and speed, not the
    result. `pooler_dropout`: rate of dropout before the pooler. `matmul_dtype`: what products of
    the blocks' dense layers read; None: arithmetic is in `dtype` throughout. `pools`: whether the
    pooler is made where it is the tasks' alone, and the bare encoder has none.
    """

    config: ModelConfig
    dtype: DTypeLike = jnp.float32
    remat: str = 'none'
    scan: bool = False
    kernel: str = 'xla'
    pooler_dropout: float = 0.0
    matmul_dtype: str | None = None
    pools: bool = True

    @nn.compact
    def __call__(
        self,
        words: Array,
        input_mask_BT: Array,
        segment_ids_BT: Array,
        dropout_rng: DropoutRng | None = None,
        packing: Packing | None = None,
        scored_mask_BT: Array | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Return (hidden states [B, T, H], pooled token [B, H], word table [V, E] to share).

        words: as of Embeddings. There is no dropout without `dropout_rng`. The pooled token is the
        first; with causal attention, where that sees itself alone, the last that is no padding;
        with model.pooling=mean it is the mean of an example. With `packing` the examples of a row
        are pooled each by itself: [B, K, H]. Without a pooler it is the state or mean itself. With
        model.pooling=late the pooler reads each token, and what it gives is averaged: so a linear
        layer gives the mean of what it would give for each.
        """
        c = self.config
        # An LSTM would run over the border between two examples. With causal attention the pooled
        # token is an example's last, and packed rows name the first.
        if packing and (c.bilstm or c.is_causal):
            raise UserError(
                'packed records are for an encoder of bidirectional attention without a BiLSTM:'
                ' make them without --packing'
            )
        pack_ids_BT = position_ids_BT = None
        if packing:
            pack_ids_BT, position_ids_BT = packing.pack_ids_BT, packing.position_ids_BT
        # Masks behind a query, which nothing sees, are scored: they are at positions of their own.
        is_token_BT = input_mask_BT
        if scored_mask_BT is not None:
            is_token_BT = jnp.maximum(input_mask_BT, scored_mask_BT)
        x_BTH, shared_VE = Embeddings(c, self.dtype, name='embeddings')(
            words, segment_ids_BT, dropout_rng, position_ids_BT, is_token_BT
        )

        # Kept only where a caller asks for them, of blocks that are traced one after the other.
        attentions: list[Array] | None = None
        if self.is_mutable_collection('attentions') and not self.is_initializing():
            attentions = None if self.scan else []
        rows = Rows(input_mask_BT, pack_ids_BT, position_ids_BT, dropout_rng, attentions)
        hidden = self._run_blocks(x_BTH, *self._share(x_BTH, rows))
        for probabilities in attentions or ():
            self.sow('attentions', 'probabilities', probabilities)
        # Sums that no norm has seen need one.
        if c.norm == 'pre':
            hidden[-1] = make_norm(c, 'final_norm')(hidden[-1])
        # As transformers counts hidden_states: the embeddings, then each block. They are kept only
        # where a caller asks for `intermediates`.
        for states in (x_BTH, *hidden):
            self.sow('intermediates', 'hidden', states)
        x_BTH = hidden[-1]
        if c.bilstm:
            x_BTH = BiLSTM(c.hidden_size // 2, self.dtype, name='bilstm')(x_BTH, input_mask_BT)

        return x_BTH, self._make_vector(x_BTH, rows, packing), shared_VE

    def _make_vector(self, x_BTH: Array, rows: Rows, packing: Packing | None) -> Array:
        """Return the pooled token [B, H], of packed rows [B, K, H], after the pooler, if any."""
        c, mask_BT, head = self.config, rows.input_mask_BT, self.config.traits.class_head
        is_late = c.pooling == 'late'
        pooled = x_BTH if is_late else self._pool(x_BTH, mask_BT, packing)
        if head.in_bare or (self.pools and head.place == 'task'):
            pooled = dropout(pooled, self.pooler_dropout, rows.dropout_rng, POOLER_SITE)
            activate = ACTIVATIONS[head.act or c.hidden_act]
            pooled = activate(dense(c, c.hidden_size, self.dtype, 'pooler')(pooled))
        return self._pool(pooled, mask_BT, packing) if is_late else pooled

    def _share(self, x_BTH: Array, rows: Rows) -> tuple[Rows, Callable[[Array], Array] | None]:
        """Return the rows with what their positions share, and what the first block goes through.

        x_BTH: the embeddings.
        """
        c = self.config
        share = find_class('positions', c.positions, POSITIONS).shared
        if share is not None:
            rows = rows._replace(relative=share(c, self.dtype, name='relative')(x_BTH.shape[1]))
        if c.convolution is None:
            return rows, None
        return rows, Convolution(c, self.dtype, name='convolution')(x_BTH, rows)

    def _pool(self, x_BTH: Array, input_mask_BT: Array, packing: Packing | None) -> Array:
        """Return the vector of an example [B, H], of packed rows [B, K, H]: see model.pooling."""
        if self.config.pooling != 'cls':
            members_BKT = input_mask_BT[:, None] > 0
            if packing:
                numbers_K11 = jnp.arange(packing.cls_positions_BK.shape[1])[:, None] + 1
                members_BKT = packing.pack_ids_BT[:, None] == numbers_K11[None]
            weights_BKT = members_BKT.astype(jnp.float32)
            weights_BKT /= jnp.maximum(weights_BKT.sum(-1, keepdims=True), 1)
            mean_BKH = jnp.einsum('BKT,BTH->BKH', weights_BKT, x_BTH.astype(jnp.float32))
            mean_BKH = mean_BKH.astype(x_BTH.dtype)
            return mean_BKH if packing else mean_BKH[:, 0]
        # The token that represents an example: by then it has seen all of it.
        if packing:
            return jnp.take_along_axis(x_BTH, packing.cls_positions_BK[..., None], axis=1)
        if self.config.is_causal:
            last_B = input_mask_BT.astype(jnp.int32).sum(-1) - 1
            return jnp.take_along_axis(x_BTH, last_B[:, None, None], axis=1)[:, 0]
        return x_BTH[:, 0]

    def _run_blocks(
        self, x_BTH: Array, rows: Rows, join: Callable[[Array], Array] | None = None
    ) -> list[Array]:
        """Return the hidden states [B, T, H] after the blocks: after each, or after the last alone.

        In a loop all are kept only where `intermediates` are asked for. join: what the first
        block's output goes through.
        """
        # The lowest blocks lie apart where tuning leaves them alone: nothing there is
        # differentiated then, and nothing kept for a backward pass.
        c, below = self.config, self.config.tuning.frozen_layers or 0
        hidden = []
        for name, first, last in ((layout.BELOW, 0, below), ('layers', below, c.num_layers)):
            if first == last:
                continue
            shape = c.tuned(TuningConfig()) if name == layout.BELOW else c
            # The blocks of a group are one block's weights, gone through again and again.
            numbers = np.arange(first, last).reshape(-1, c.num_layers // c.own_blocks)
            if self.is_initializing():
                states = [self._init_blocks(shape, name, numbers, x_BTH, rows)]
            else:
                is_traced = isinstance(x_BTH, jax.core.Tracer)
                make = self._make_run_block(shape, rows, is_traced, join)
                blocks = self.variables['params'][name]
                run_stack = self._scan_blocks if self.scan else self._unroll_blocks
                states = run_stack(make, blocks, numbers, x_BTH)
            x_BTH = states[-1]
            hidden += states
        return hidden

    def _block_fields(self, shape: ModelConfig, like: int) -> tuple[Any, ...]:
        """Return the fields of a block of the kind that block number `like` has."""
        return shape, self.dtype, self.kernel, self.matmul_dtype, like

    def _make_run_block(
        self,
        shape: ModelConfig,
        rows: Rows,
        is_traced: bool,
        join: Callable[[Array], Array] | None,
    ) -> _MakeRunBlock:
        """Return what makes a function that goes through a block of a kind."""
        block_class = find_class('block', shape.block, BLOCKS)

        # Blocks of one kind share a function, and with it a trace.
        @functools.cache
        def make(like: int) -> Callable[[Any, Array, Array | int], Array]:
            block = block_class(*self._block_fields(shape, like), parent=None)

            def run(params: Any, x_BTH: Array, number: Array | int) -> Array:
                x_BTH = block.apply({'params': params}, x_BTH, number, rows)[0]
                return x_BTH if join is None or like > 0 else join(x_BTH)

            # XLA sees by itself what is cheaper made again than kept, but not across a loop.
            if self.scan or self.remat != 'none':
                policy = REMAT_POLICIES[self.remat]
                run = jax.checkpoint(run, policy=policy, prevent_cse=not self.scan)
            # Not where nothing is traced: each call of an encoder that is not compiled would
            # compile its blocks anew. And what a block appends to `attentions` may not leave it.
            return jax.jit(run) if is_traced and rows.attentions is None else run

        return make

    def _unroll_blocks(
        self, make: _MakeRunBlock, blocks: layout.Blocks, numbers: np.ndarray, x_BTH: Array
    ) -> list[Array]:
        """Return the hidden states after each block, one written out after the other."""
        hidden = []
        for group, of_group in enumerate(numbers.tolist()):
            params = layout.take_block(blocks, group)
            for number in of_group:
                x_BTH = make(find_first_like(self.config, number))(params, x_BTH, number)
                hidden.append(x_BTH)
        return hidden

    def _scan_blocks(
        self, make: _MakeRunBlock, blocks: layout.Blocks, numbers: np.ndarray, x_BTH: Array
    ) -> list[Array]:
        """Return the hidden states after each block where they are asked for, else the last.

        A loop repeats one program, so blocks of several kinds are gone through in rounds, each of
        which has all kinds; groups before the first round are written out.
        """
        stack = layout.stack_blocks({'layers': blocks})['layers']
        kinds = tuple(tuple(find_kind(self.config, n) for n in group) for group in numbers)
        first, period = find_cycle(kinds)
        hidden = []
        for group in range(first):
            params, of_group = layout.take_block(stack, group), numbers[group].tolist()
            hidden += self._run_group(make, params, of_group, of_group, x_BTH)
            x_BTH = hidden[-1]

        if first:
            stack, numbers = layout.cut(stack, first, None), numbers[first:]
        if period > 1:
            stack = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), stack)
        numbers = numbers.reshape(-1, period, numbers.shape[1])
        like = numbers[0].tolist()  # the first round stands for each

        def run_round(x_BTH: Array, of_round: tuple[Any, Array]) -> tuple[Array, Any]:
            stack, indices = of_round
            states = []
            for group, of_group in enumerate(indices):
                params = stack
                if period > 1:
                    params = jax.tree.map(lambda leaf, i=group: leaf[i], stack)
                states += self._run_group(make, params, of_group, like[group], x_BTH)
                x_BTH = states[-1]
            return x_BTH, self._keep(states)

        x_BTH, kept = jax.lax.scan(run_round, x_BTH, (stack, jnp.asarray(numbers)))
        return [x_BTH] if kept is None else [*hidden, *kept.reshape(-1, *x_BTH.shape)]

    def _run_group(
        self,
        make: _MakeRunBlock,
        params: Any,
        numbers: Any,
        like: Sequence[int],
        x_BTH: Array,
    ) -> list[Array]:
        """Return the hidden states after each block of a group, or after the last alone.

        Args:
          make: makes what goes through a block.
          params: of the block whose weights the group shares.
          numbers: of its blocks; they may be traced.
          like: numbers of blocks of the same kinds, which are known.
          x_BTH: the input.
        """
        # The first of its kind stands for each: so every kind is traced once.
        kinds = [find_first_like(self.config, number) for number in like]
        if len(kinds) > 1 and len(set(kinds)) == 1:
            run = make(kinds[0])

            def run_one(x_BTH: Array, number: Array) -> tuple[Array, Any]:
                x_BTH = run(params, x_BTH, number)
                return x_BTH, self._keep(x_BTH)

            x_BTH, kept = jax.lax.scan(run_one, x_BTH, jnp.asarray(numbers))
            return [x_BTH] if kept is None else list(kept)
        hidden = []
        for number, kind in zip(numbers, kinds, strict=True):
            x_BTH = make(kind)(params, x_BTH, number)
            hidden.append(x_BTH)
        return hidden

    def _keep(self, states: Any) -> Array | None:
        """Return states as one array where a caller asks for those after each block."""
        return jnp.asarray(states) if self.is_mutable_collection('intermediates') else None

    def _init_blocks(
        self, shape: ModelConfig, name: str, numbers: np.ndarray, x_BTH: Array, rows: Rows
    ) -> Array:
        """Make a stack of fresh blocks; return x [B, T, H] after them.

        Args:
          shape: of the blocks.
          name: the stack's.
          numbers: of the blocks, those of a group in a row.
          x_BTH: their input.
          rows: what they are told of it.
        """
        stack = nn.scan(
            find_class('block', shape.block, BLOCKS),
            variable_axes={'params': 0},
            split_rngs={'params': True},
            in_axes=(0, nn.broadcast),
            length=len(numbers),
        )
        # All are made as the last one is; what the first ones lack is cut off.
        fields = self._block_fields(shape, int(numbers[-1, 0]))
        indices = jnp.arange(len(numbers))
        lacking = []
        for number in numbers[:, 0]:
            lacking.append([p.norm for p in make_parts(shape, number) if not p.is_normed])
        if not lacking[0]:
            return stack(*fields, name=name)(x_BTH, indices, rows)[0]

        def init(key: Array) -> Any:
            made = stack(*fields, parent=None).init(key, x_BTH, indices, rows)['params']
            return layout.drop_from_first(made, sum(map(bool, lacking)), lacking[0])

        self.param(name, init)
        return x_BTH
