"""Where the vectors of word pieces come from: a class for each value of `model.embedding`.

Owns the word vectors of the encoder and what follows from their kind: whether the masked-LM head
shares them, and which of a model's arrays are computed and so neither trained nor in a checkpoint.
It must not know spellings: what is computed of them (input_pipeline/tokenizer/spelling.py) comes in
as an array like any other.

Dims: B batch, T position, H width, V vocabulary rounded up to a multiple of 128.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.mesh.exchange import look_up
from configs.schema import ModelConfig


def padded_vocab(vocab_size: int) -> int:
    """Rows V of the word table: the vocabulary rounded up to a multiple of 128.

    So it splits over any mesh.
    """
    return -(-vocab_size // 128) * 128


def table_init(config: ModelConfig):
    """Initialiser of a [V, H] table: truncated normal, zero in the rows that pad the vocabulary.

    Those rows are never read and never updated.
    """
    # The table has V rows, of which only the vocabulary's are words.
    normal = jax.nn.initializers.truncated_normal(config.initializer_range)

    def init(key, shape, dtype=jnp.float32):
        real = jnp.arange(shape[0])[:, None] < config.vocab_size
        return jnp.where(real, normal(key, shape, dtype), jnp.zeros((), dtype))

    return init


class WordTable:
    """A row of trained weights for each piece; the masked-LM head shares them (the paper).

    computed: paths, in a model with a head, of the arrays that follow from the vocabulary alone.
    """

    computed: frozenset[str] = frozenset()

    def __init__(self, config: ModelConfig):
        self.config = config

    def look_up(
        self, module: nn.Module, input_ids_BT: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """(word vectors [B, T, H], the [V, H] table that the masked-LM head shares, if any).

        module: the embeddings, whose parameter the table is.
        """
        word_VH = self._table(module, table_init(self.config))
        return look_up(word_VH, input_ids_BT), word_VH

    def _table(self, module: nn.Module, init: jax.nn.initializers.Initializer) -> jax.Array:
        c = self.config
        return module.param('word', init, (padded_vocab(c.vocab_size), c.hidden_size))


class HashedWords(WordTable):
    """A row computed of each piece's spelling (EELBERT); the masked-LM head has its own decoder."""

    computed = frozenset({'encoder/embeddings/word'})

    def look_up(self, module: nn.Module, input_ids_BT: jax.Array) -> tuple[jax.Array, None]:
        """As of WordTable; nothing is shared."""
        # Whoever makes a model puts the table in. NaN until then: a loss shows where it was not.
        return self._table(module, jax.nn.initializers.constant(jnp.nan))[input_ids_BT], None


KINDS: dict[str, type[WordTable]] = {'table': WordTable, 'hashed': HashedWords}


def computed_arrays(config: ModelConfig) -> frozenset[str]:
    """Paths of the arrays that are computed from the vocabulary, as 'encoder/embeddings/word'."""
    return KINDS[config.embedding].computed
