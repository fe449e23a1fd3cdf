"""Where the vectors of word pieces come from: a class for each value of `model.embedding`.

Owns the look-up of the encoder's word vectors, and whether the masked-LM head shares them; what a
kind needs of tokenizer, batch and checkpoint is configs/model/embeddings.py's, by the same names.
It must not know spellings: what is computed of them (input_pipeline/tokenizer/spelling.py) comes in
as an array like any other, and so do the characters of words.

Dims: B batch, T position, E width, V vocabulary rounded up to a multiple of 128, C characters.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.configs.schema import ModelConfig
from bert_jax.mesh.exchange import look_up
from bert_jax.model.retvec import WordNetwork, binarise


def padded_vocab(vocab_size: int) -> int:
    """Rows V of the word table: the vocabulary rounded up to a multiple of 128.

    So it splits over any mesh.
    """
    return -(-vocab_size // 128) * 128


def table_init(config: ModelConfig):
    """Return an initialiser of a [V, E] table: truncated normal, zero where no word is.

    Those rows are never read and never updated.
    """
    # The table has V rows, of which only the vocabulary's are words.
    normal = jax.nn.initializers.truncated_normal(config.initializer_range)

    def init(key, shape, dtype=jnp.float32):
        real = jnp.arange(shape[0])[:, None] < config.vocab_size
        return jnp.where(real, normal(key, shape, dtype), jnp.zeros((), dtype))

    return init


class WordTable:
    """A row of trained weights for each piece; the masked-LM head shares them (the paper)."""

    def __init__(self, config: ModelConfig):
        self.config = config

    def look_up(self, module: nn.Module, input_ids_BT: Array) -> tuple[Array, Array | None]:
        """(word vectors [B, T, E], the [V, E] table that the masked-LM head shares, if any).

        module: the embeddings, whose parameter the table is.
        """
        word_VE = self._table(module, table_init(self.config))
        return look_up(word_VE, input_ids_BT), word_VE

    def _table(self, module: nn.Module, init: jax.nn.initializers.Initializer) -> Array:
        c = self.config
        return module.param('word', init, (padded_vocab(c.vocab_size), c.embedding_width))


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
        vectors = WordNetwork(dtype, name=c.words.network)(binarise(characters_BTC))
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


def words_of(batch: Mapping[str, Array], config: ModelConfig) -> Array:
    """Return what word vectors are made from: input_ids [B, T], or characters [B, T, 16].

    The latter are put into a batch by its kind of embedding (configs/model/embeddings.py).
    """
    return batch[config.words.reads]


def first_words(config: ModelConfig) -> dict[str, Array]:
    """Return the input that the word vectors are made from, of one row of one token."""
    return {config.words.reads: jnp.zeros((1, 1, *config.words.axes), jnp.int32)}
