"""The embeddings of an encoder, and where the vectors of word pieces come from.

`WordTable` and its subclasses are a class for each value of `model.embedding`. They own the look-up
of word vectors, and whether the masked-LM head shares them; what a kind needs of tokenizer, batch
and checkpoint is configs/model/embedding_kinds.py's, by the same names. They must not know
spellings: what is computed of them (input_pipeline/tokenizer/spelling.py) comes in as an array like
any other, and so do the characters of words.

Dims: as in model/encoder.py; C characters.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.options import find_class
from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.exchange import look_up
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model.blocks.matmul import dense
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.blocks.positions import POSITIONS
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.retvec import WordNetwork, spell_in_bits


def pad_vocab(vocab_size: int) -> int:
    """Rows V of the word table: the vocabulary rounded up to a multiple of 128.

    So it splits over any mesh.
    """
    return -(-vocab_size // 128) * 128


def make_table_init(model: ModelConfig):
    """Return an initialiser of a [V, E] table: truncated normal, zero where no word is.

    Those rows are never read and never updated.
    """
    # The table has V rows, of which only the vocabulary's are words.
    normal = jax.nn.initializers.truncated_normal(model.initializer_range)

    def init(key, shape, dtype=jnp.float32):
        real = jnp.arange(shape[0])[:, None] < model.vocab_size
        return jnp.where(real, normal(key, shape, dtype), jnp.zeros((), dtype))

    return init


class WordTable:
    """A row of trained weights for each piece; the masked-LM head shares them (the paper)."""

    def __init__(self, shape: ModelConfig):
        self.config = shape

    def look_up(self, module: nn.Module, input_ids_BT: Array) -> tuple[Array, Array | None]:
        """Return (word vectors [B, T, E], the [V, E] table that the masked-LM head shares, if any).

        module: the embeddings, whose parameter the table is.
        """
        word_VE = self._table(module, make_table_init(self.config))
        return look_up(word_VE, input_ids_BT), word_VE

    def _table(self, module: nn.Module, init: jax.nn.initializers.Initializer) -> Array:
        c = self.config
        return module.param('word', init, (pad_vocab(c.vocab_size), c.embedding_width))


class HashedWords(WordTable):
    """A row computed of each piece's spelling (EELBERT); the masked-LM head has its own decoder."""

    def look_up(self, module: nn.Module, input_ids_BT: Array) -> tuple[Array, None]:
        """As of WordTable; nothing is shared."""
        # Whoever makes a model puts the table in. NaN until then: a loss shows where it was not.
        return self._table(module, jax.nn.initializers.constant(jnp.nan))[input_ids_BT], None


class WordCharacters(WordTable):
    """A vector computed of each word's characters (RETVec), projected to the encoder's width.

    The masked-LM head has a decoder of its own.
    """

    def look_up(self, module: nn.Module, characters_BTC: Array) -> tuple[Array, None]:
        """As of WordTable, of code points [B, T, 16]; nothing is shared."""
        c, dtype = self.config, module.dtype
        vectors = WordNetwork(dtype, name=c.words.network)(spell_in_bits(characters_BTC))
        # No gradient, and no decay (train/optimizer.py): it stays as it is to the bit.
        if c.retvec == 'frozen':
            vectors = jax.lax.stop_gradient(vectors)
        normal = jax.nn.initializers.truncated_normal(c.initializer_range)
        project = nn.Dense(c.embedding_width, dtype=dtype, kernel_init=normal, name='projection')
        return project(vectors).astype(jnp.float32), None


KINDS: dict[str, type[WordTable]] = {
    'table': WordTable,
    'hashed': HashedWords,
    'retvec': WordCharacters,
}


class Embeddings(nn.Module):
    """Word + segment + position embeddings, then their norm, if any, and dropout.

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
        positions = find_class('positions', c.positions, POSITIONS)(c)
        seq_len = segment_ids_BT.shape[1]
        positions_BTE = positions.added(self, seq_len, position_ids_BT, input_mask_BT)
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
        if positions_BTE is not None:
            x_BTE = x_BTE + positions_BTE
        widens_first = c.embedding_size is not None and c.traits.widens_first
        if widens_first:
            x_BTE = dense(c, c.hidden_size, self.dtype, 'to_hidden', use_bias=False)(x_BTE)
        if c.embedding_norm:
            x_BTE = make_norm(c, 'norm')(x_BTE)
        x_BTE = x_BTE.astype(self.dtype)
        # Rows are pinned to their devices here and after each block; without it XLA may
        # lay the result out like the table, and move rows later.
        x_BTE = dropout(constrain_rows(x_BTE), c.hidden_dropout, dropout_rng, 0)
        if c.embedding_size is None or widens_first:
            return x_BTE, shared_VE
        return dense(c, c.hidden_size, self.dtype, 'to_hidden')(x_BTE), shared_VE


def get_words(batch: Mapping[str, Array], shape: ModelConfig) -> Array:
    """Return what word vectors are made from: input_ids [B, T], or characters [B, T, 16].

    The latter are put into a batch by its kind of embedding (configs/model/embedding_kinds.py).
    """
    return batch[shape.words.reads]


def make_first_words(shape: ModelConfig) -> dict[str, Array]:
    """Return the input that the word vectors are made from, of one row of one token."""
    return {shape.words.reads: jnp.zeros((1, 1, *shape.words.axes), jnp.int32)}
