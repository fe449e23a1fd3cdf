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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.own_parts import class_of
from bert_jax.configs.model.tuning import TuningConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model import layout
from bert_jax.model.blocks.attend import AttentionMask
from bert_jax.model.blocks.bilstm import BiLSTM
from bert_jax.model.blocks.block import BLOCKS, cycle_of, first_like, kind_of, parts_of
from bert_jax.model.blocks.norms import norm_of
from bert_jax.model.blocks.part import Rows
from bert_jax.model.blocks.positions import POSITIONS
from bert_jax.model.blocks.products import dense
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.embeddings import KINDS

# run(parameters of a block, x [B, T, H], the block's number) -> x, of blocks of one kind.
_Run = Callable[[Any, Array, Array | int], Array]
# The same, by the number of a block of that kind.
_RunOf = Callable[[int], _Run]
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
        words: Array,
        segment_ids_BT: Array,
        dropout_rng: DropoutRng | None,
        position_ids_BT: Array | None = None,
        input_mask_BT: Array | None = None,
    ) -> tuple[Array, Array | None]:
        """Return (embeddings [B, T, H], the word table [V, E] that the masked-LM head shares).

        words: what config.embedding reads: input_ids [B, T], or characters [B, T, 16]. Positions
        count from 0 unless given. Without a mask nothing is padding. There may be no table.
        """
        c = self.config

        # The three tables are float32 parameters; the sum becomes `dtype` after the norm.
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        words_BTE, shared_VE = KINDS[c.embedding](c).look_up(self, words)
        positions_BTE = class_of('positions', c.positions, POSITIONS)(c).added(
            self, segment_ids_BT.shape[1], position_ids_BT, input_mask_BT
        )
        x_BTE = words_BTE
        if c.type_vocab_size:
            segment_2E = self.param('segment', normal, (c.type_vocab_size, c.embedding_width))

            # Of so few rows one is chosen, and not looked up: the gradient of a choice is a sum,
            # that of a look-up a scatter.
            segments_BTE = segment_2E[None, None, 0]
            for segment in range(1, c.type_vocab_size):
                is_it_BT1 = segment_ids_BT[..., None] == segment
                segments_BTE = jnp.where(is_it_BT1, segment_2E[None, None, segment], segments_BTE)
            x_BTE = words_BTE + segments_BTE
        x_BTE = x_BTE if positions_BTE is None else x_BTE + positions_BTE
        x_BTE = norm_of(c, 'norm')(x_BTE).astype(self.dtype)
        # Rows are pinned to their devices here and after each block; without it XLA may
        # lay the result out like the table, and move rows later.
        x_BTE = dropout(constrain_rows(x_BTE), c.hidden_dropout, dropout_rng, 0)
        if c.embedding_size is None:
            return x_BTE, shared_VE
        return dense(c, c.hidden_size, self.dtype, 'to_hidden')(x_BTE), shared_VE


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
        words: Array,
        input_mask_BT: Array,
        segment_ids_BT: Array,
        dropout_rng: DropoutRng | None = None,
        packing: Packing | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Return (hidden states [B, T, H], pooled token [B, H], word table [V, E] to share).

        words: as of Embeddings. There is no dropout without `dropout_rng`. The pooled token is the
        first; with causal attention, where that sees itself alone, the last that is no padding;
        with model.pooling=mean it is the mean of an example. With `packing` the examples of a row
        are pooled each by itself: [B, K, H]. A family whose heads share one has no pooler.
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
        # Kept only where a caller asks for them, of blocks that are traced one after the other.
        asked = self.is_mutable_collection('attentions') and not self.is_initializing()
        attentions: list[Array] | None = [] if asked and not self.scan else None
        hidden = self._through_blocks(x_BTH, Rows(mask, position_ids_BT, dropout_rng, attentions))
        for probabilities in attentions or ():
            self.sow('attentions', 'probabilities', probabilities)
        # Sums that no norm has seen need one.
        if c.norm == 'pre':
            hidden[-1] = norm_of(c, 'final_norm')(hidden[-1])
        # As transformers counts hidden_states: the embeddings, then each block. They are kept only
        # where a caller asks for `intermediates`.
        for states in (x_BTH, *hidden):
            self.sow('intermediates', 'hidden', states)
        x_BTH = hidden[-1]
        if c.bilstm:
            x_BTH = BiLSTM(c.hidden_size // 2, self.dtype, name='bilstm')(x_BTH, input_mask_BT)

        pooled = self._pooled(x_BTH, input_mask_BT, packing)
        if c.traits.shared_head:
            return x_BTH, pooled, shared_VE
        pooled = dropout(pooled, self.pooler_dropout, dropout_rng, POOLER_SITE)
        return x_BTH, jnp.tanh(dense(c, c.hidden_size, self.dtype, 'pooler')(pooled)), shared_VE

    def _pooled(self, x_BTH: Array, input_mask_BT: Array, packing: Packing | None) -> Array:
        """Return the vector of an example [B, H], of packed rows [B, K, H]: see model.pooling."""
        if self.config.pooling == 'mean':
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

    def _through_blocks(self, x_BTH: Array, rows: Rows) -> list[Array]:
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
            fields = config, self.dtype, self.kernel, self.matmul_dtype
            # The blocks of a group are one block's weights, gone through again and again.
            numbers = np.arange(first, last).reshape(-1, c.num_layers // c.own_blocks)
            if self.is_initializing():
                hidden.append(_fresh(self, fields, name, numbers, hidden[-1], rows))
                continue
            is_traced = isinstance(x_BTH, jax.core.Tracer)
            run = functools.cache(functools.partial(self._run_of, fields, rows, is_traced))
            blocks = self.variables['params'][name]
            through = self._in_a_loop if self.scan else self._unrolled
            hidden += through(run, blocks, numbers, hidden[-1])
        return hidden[1:]

    def _run_of(self, fields: tuple[Any, ...], rows: Rows, is_traced: bool, like: int) -> _Run:
        """Return what goes through a block of the kind that block number `like` has."""
        block = _block_of(self.config)(*fields, like, parent=None)
        run: _Run = lambda params, x, index: block.apply({'params': params}, x, index, rows)[0]
        # XLA sees by itself what is cheaper made again than kept, but not across a loop.
        if self.scan or self.remat != 'none':
            policy = REMAT_POLICIES[self.remat]
            run = jax.checkpoint(run, policy=policy, prevent_cse=not self.scan)
        # Blocks of one kind share a trace, where there is one: each call of an encoder that is not
        # compiled would compile them anew. What a block appends to `attentions` may not leave it.
        return jax.jit(run) if is_traced and rows.attentions is None else run

    def _unrolled(
        self, run: _RunOf, blocks: layout.Blocks, numbers: np.ndarray, x_BTH: Array
    ) -> list[Array]:
        """Return the hidden states after each block."""
        params = [layout.block(blocks, i) for i in range(len(numbers))]
        return self._in_turn(run, params, numbers.tolist(), numbers, x_BTH)

    def _in_a_loop(
        self, run: _RunOf, blocks: layout.Blocks, numbers: np.ndarray, x_BTH: Array
    ) -> list[Array]:
        """Return the hidden states after each block where they are asked for, else the last.

        Blocks of several kinds are gone through in rounds, each of which has all kinds.
        """
        stack = layout.stacked({'layers': blocks})['layers']
        kinds = tuple(tuple(kind_of(self.config, n) for n in group) for group in numbers)
        first, period = cycle_of(kinds)
        like = numbers[first : first + period]
        hidden = [x_BTH]
        if first:
            apart = [layout.block(stack, i) for i in range(first)]
            hidden += self._in_turn(run, apart, numbers[:first].tolist(), numbers[:first], x_BTH)
            stack, numbers = layout.cut(stack, first, None), numbers[first:]
        if period > 1:
            stack = jax.tree.map(lambda leaf: leaf.reshape(-1, period, *leaf.shape[1:]), stack)

        def turn(x: Array, of_round: tuple[Any, Array]) -> tuple[Array, Any]:
            params, indices = of_round
            each = [params]
            if period > 1:
                each = [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in range(period)]
            states = self._in_turn(run, each, indices, like, x)
            return states[-1], self._kept(states)

        indices = jnp.asarray(numbers.reshape(-1, *like.shape))
        x_BTH, kept = jax.lax.scan(turn, hidden[-1], (stack, indices))
        return [*hidden[1:], *kept.reshape(-1, *x_BTH.shape)] if self._keeps_all else [x_BTH]

    def _in_turn(
        self, run: _RunOf, params: Sequence[Any], indices: Any, like: np.ndarray, x_BTH: Array
    ) -> list[Array]:
        """Return the hidden states after each block of some groups, or after each group.

        Args:
          run: what goes through a block of the kind of a number.
          params: of each group.
          indices: the numbers of its blocks, for each group; they may be traced.
          like: numbers of blocks of the same kinds.
          x_BTH: the input of the first.
        """
        hidden = [x_BTH]
        for of_group, numbers, kinds in zip(params, indices, like.tolist(), strict=True):
            # The first of its kind stands for each: so every kind is traced once.
            kinds = [first_like(self.config, number) for number in kinds]
            if self.scan and len(kinds) > 1 and len(set(kinds)) == 1:
                through = functools.partial(run(kinds[0]), of_group)
                turn = lambda x, number, through=through: (x := through(x, number), self._kept(x))
                x_BTH, kept = jax.lax.scan(turn, hidden[-1], jnp.asarray(numbers))
                hidden += [x_BTH] if kept is None else list(kept)
                continue
            for number, kind in zip(numbers, kinds, strict=True):
                hidden.append(run(kind)(of_group, hidden[-1], number))
        return hidden[1:]

    @property
    def _keeps_all(self) -> bool:
        """Whether the hidden states after each block are asked for."""
        return self.is_mutable_collection('intermediates')

    def _kept(self, states: Any) -> Array | None:
        """Return states as one array where they are asked for."""
        return jnp.asarray(states) if self._keeps_all else None


def _block_of(config: ModelConfig) -> Any:
    """Return the class of an encoder's blocks."""
    return class_of('block', config.block, BLOCKS)


def _fresh(
    module: nn.Module,
    fields: tuple[Any, ...],
    name: str,
    numbers: np.ndarray,
    x_BTH: Array,
    rows: Rows,
) -> Array:
    """Make a stack of fresh blocks in the module that calls; return x [B, T, H] after them.

    Args:
      module: the module that calls.
      fields: those of Block.
      name: the stack's.
      numbers: of the blocks, those of a group in a row.
      x_BTH: their input.
      rows: what they are told of it.
    """
    count = len(numbers)
    stack = nn.scan(
        _block_of(fields[0]),
        variable_axes={'params': 0},
        split_rngs={'params': True},
        in_axes=(0, nn.broadcast),
        length=count,
    )
    # All are made as the last one is; what the first ones lack is cut off.
    last, indices = int(numbers[-1, 0]), jnp.arange(count)
    parts = [parts_of(fields[0], number) for number in numbers[:, 0]]
    lacking = [[part.norm for part in each if not part.is_normed] for each in parts]
    if not lacking[0]:
        return stack(*fields, last, name=name)(x_BTH, indices, rows)[0]

    def init(key: Array) -> Any:
        made = stack(*fields, last, parent=None).init(key, x_BTH, indices, rows)['params']
        return layout.without_first(made, sum(map(bool, lacking)), lacking[0])

    module.param(name, init)
    return x_BTH
