"""What an encoder's word vectors are made from: a class for each value of `model.embedding`.

Owns what each kind of vectors needs of the rest: of the tokenizer, of a batch, of a checkpoint and
of a run that trains something first; its settings and its FLOPs. Whoever needs one of these asks
`ModelConfig.words`. The look-up itself is bert_jax/model/embeddings.py's, by the same names.
Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bert_jax.configs.model.model_config import ModelConfig


class Embedding:
    """A row of trained weights for each piece; the masked-LM head shares them (the paper).

    Attributes:
      options: the settings of ModelConfig that it alone reads.
      reads: the input that the vectors are made from.
      axes: the axes of that input behind those of rows and positions.
      computed: paths, in a model with a head, of the arrays that follow from the vocabulary alone;
        they are neither trained nor in a checkpoint.
      network: the module with a network that is trained by itself before the encoder, if any.
    """

    options: tuple[str, ...] = ()
    reads = 'input_ids'
    axes: tuple[int, ...] = ()
    computed: frozenset[str] = frozenset()
    network: str | None = None

    def fault(self, model: ModelConfig) -> tuple[str, str] | None:
        """Return (a setting that does not fit this kind, what it must be), if there is one."""
        del model
        return None

    def untrained(self, model: ModelConfig) -> str | None:
        """Return what is wrong with vectors that come from no trained source, if anything is."""
        del model
        return None

    def batch(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        """Return a batch of the tokenizer's ids with the input that is read."""
        del tokenizer
        return batch

    def flops(self, model: ModelConfig) -> int:
        """Return the FLOPs of one token, forward and backward; look-ups count as none."""
        del model
        return 0


class Hashed(Embedding):
    """A row computed of each piece's spelling (EELBERT); the masked-LM head has its own decoder."""

    options = ('hash_ngrams',)
    computed = frozenset({'encoder/embeddings/word'})

    def fault(self, model: ModelConfig) -> tuple[str, str] | None:
        """Return the width where it is less than the columns that the hashes need."""
        columns = model.hash_ngrams * (model.hash_ngrams + 1) // 2
        if model.embedding_width >= columns:
            return None
        return (
            'embedding_size' if model.embedding_size else 'hidden_size',
            f'{columns} or more, to have columns for every hash up to'
            f' hash_ngrams={model.hash_ngrams}',
        )


class Retvec(Embedding):
    """A vector computed of each word's characters by a small network, then a dense layer (RETVec).

    The masked-LM head has a decoder of its own. The network is bert_jax/model/retvec.py's.
    """

    characters, bits, width = 16, 24, 256
    options = ('retvec',)
    reads = 'characters'
    axes = (characters,)
    network = 'retvec'

    def untrained(self, model: ModelConfig) -> str | None:
        """Return what is to be done about a frozen network that nothing has trained."""
        if model.retvec == 'trained':
            return None
        return (
            'model.embedding=retvec reads words through a trained network: name the workdir of'
            ' bert-pretrain retvec with --init_from, or train it here, from nothing, with --set'
            ' model.retvec=trained'
        )

    def batch(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        """Return the batch with the characters [..., 16] of its ids [...].

        Any word has them, also one that is in no vocabulary.
        """
        return batch | {self.reads: tokenizer.characters(batch['input_ids'])}

    def flops(self, model: ModelConfig) -> int:
        """Return those of the network and of the dense layer for one word.

        A frozen network is only run forward; its first layer reads bits, which have no gradient.
        """
        C, W = self.characters, self.width
        first = C * self.bits * 32
        products = first + C * 32 * 32 + C * 32 * W + W * W
        projection, is_whole = W * model.embedding_width, model.tuning.method == 'full'
        flops = 2 * (products + projection) + (2 * projection if is_whole else 0)
        if is_whole and model.retvec == 'trained':
            flops += 4 * products - 2 * first + 2 * projection
        return flops


EMBEDDINGS: dict[str, Embedding] = {
    'table': Embedding(),
    'hashed': Hashed(),
    'retvec': Retvec(),
}
# The kind that reads whole words by their characters; all others read word pieces.
OF_WORDS = next(name for name, kind in EMBEDDINGS.items() if kind.reads == 'characters')

# What a checker of types cannot know is checked when a configuration is made.
if TYPE_CHECKING:
    EmbeddingName = str
else:
    EmbeddingName = Literal[*EMBEDDINGS]
