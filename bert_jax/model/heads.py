"""What stands on the encoder: the pre-training head and one head for each kind of task.

Owns these models; what each is for, and by which names, is the table in train/task_heads.py. Each
takes the batch dictionary and returns float32 logits. Parameters of the encoder are
under `encoder` in all of them, so that weights move from one to another by that name.

Dims: as in model/encoder.py; P masked positions, C classes or choices, R = B C rows of the encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.configs.model.late_interaction import LateInteractionConfig
from bert_jax.configs.model.sentence import SentenceConfig
from bert_jax.configs.model.vector_kinds import SparseConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model.blocks.feed_forward import ACTIVATIONS
from bert_jax.model.blocks.matmul import dense
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.dropout import DropoutRng, dropout
from bert_jax.model.embeddings import get_words, make_table_init, pad_vocab
from bert_jax.model.encoder import Encoder, Packing
from bert_jax.model.late_interaction import TokenVectors
from bert_jax.model.pooling import compute_sentence_vectors, normalize
from bert_jax.model.splade import pool_logits
from bert_jax.model.vocabulary_loss import Factors

# What a model is given: {name of a column: array of B rows}.
Batch = Mapping[str, Array]
HEAD_SITE = 1 << 20  # dropout site of a task head, beyond those of any depth of encoder


class EncoderModel(nn.Module):
    """What all models share: an encoder, and its fields (see Encoder)."""

    config: ModelConfig
    dtype: DTypeLike = jnp.float32
    remat: str = 'none'
    scan: bool = False
    kernel: str = 'xla'
    matmul_dtype: str | None = None

    def encode(
        self,
        batch: Batch,
        dropout_rng: DropoutRng | None,
        pooler_dropout: float = 0.0,
        pools: bool = False,
    ) -> tuple[Array, Array, Array | None]:
        """Return hidden states [B, T, H], the pooled token, and the word table [V, E], if shared.

        pooled is [B, H] of the first token, of packed rows [B, K, H] of each example's. A head that
        `pools` has the pooler also where the bare encoder has none.
        """
        fields = self.config, self.dtype, self.remat, self.scan, self.kernel
        encoder = Encoder(*fields, pooler_dropout, self.matmul_dtype, pools, name='encoder')

        # Rows of one example have a mask of their own; of packed rows it follows from the numbers
        # of the examples, where 0 is padding.
        words = get_words(batch, self.config)
        if 'pack_ids' not in batch:
            inputs = words, batch['input_mask'], batch['segment_ids'], dropout_rng
            return encoder(*inputs, scored_mask_BT=batch.get('scored_mask'))
        packing = Packing(batch['pack_ids'], batch['position_ids'], batch['cls_positions'])
        mask_BT = jnp.minimum(packing.pack_ids_BT, 1)
        return encoder(words, mask_BT, batch['segment_ids'], dropout_rng, packing)

    def read(self, x: Array) -> Array:
        """Return states [..., H] as a head reads them: after the head that all share, if any."""
        if self.config.traits.class_head.place != 'all':
            return x
        return PredictionHead(self.config, self.dtype, name='head')(x)

    def scores(
        self,
        x: Array,
        outputs: int,
        rate: float = 0.0,
        dropout_rng: DropoutRng | None = None,
        name: str = 'classifier',
    ) -> Array:
        """Return a task's own layer on states [..., H], with dropout before it: [..., outputs]."""
        x = dropout(self.read(x), rate, dropout_rng, HEAD_SITE)
        layer = dense(self.config, outputs, self.dtype, name, std=self.config.classifier_std)
        return layer(x).astype(jnp.float32)


class PredictionHead(nn.Module):
    """A dense layer, its activation and a norm, which pre-training and every task share.

    transformers modeling_modernbert.py:468-480.
    """

    config: ModelConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return what heads read of states [..., H]."""
        c = self.config
        layer = dense(c, c.hidden_size, self.dtype, 'dense', use_bias=c.use_bias)
        return make_norm(c, 'norm')(ACTIVATIONS[c.hidden_act](layer(x)))


class MaskedLM(nn.Module):
    """Factors of logits over the vocabulary at masked positions (run_pretraining.py:243-265)."""

    config: ModelConfig
    dtype: DTypeLike
    matmul_dtype: str | None = None

    @nn.compact
    def __call__(self, x_BPH: Array, word_VE: Array | None) -> Factors:
        """-> the factors of logits [B, P, V]; those of the table's padding rows are -inf.

        word_VE: the word table that the encoder shares; None: a decoder of its own is trained.
        """
        c, x_BPE, head = self.config, x_BPH, self.config.traits.masked_lm
        if head.has_transform:
            activate = ACTIVATIONS[head.act or c.hidden_act]
            x_BPE = activate(dense(c, c.embedding_width, self.dtype, 'transform')(x_BPH))
            x_BPE = make_norm(c, 'norm', use_bias=True)(x_BPE)

        # Rows of the table beyond the vocabulary must never win, nor count in the softmax: -inf.
        V = pad_vocab(c.vocab_size)
        bias_V = jnp.zeros(V)
        if head.has_bias:
            bias_V = self.param('bias', nn.initializers.zeros, (V,))
        bias_V = jnp.where(jnp.arange(V) < c.vocab_size, bias_V, -jnp.inf)
        # The word table again, transposed: input and output embeddings are tied where it is shared.
        if word_VE is None or not head.is_tied:
            word_VE = self.param('decoder', make_table_init(c), (V, c.embedding_width))
        return Factors(x_BPE, word_VE, bias_V, self.matmul_dtype)


class Pretraining(EncoderModel):
    """Masked LM and, in families that tell pairs apart, next-sentence prediction.

    vocabulary_loss: 'whole': masked-LM logits are an array; 'blocks': they are left as their
    factors, of which a loss makes blocks; 'auto': that where a device's logits are large.
    """

    vocabulary_loss: str = 'whole'

    @nn.compact
    def __call__(
        self, batch: Batch, dropout_rng: DropoutRng | None = None
    ) -> tuple[Array | Factors, Array | None]:
        """-> (masked-LM logits [B, P, V], next-sentence logits [B, 2]), float32.

        Next-sentence logits of packed rows are [B, K, 2]; class 1 means a random B. Without pairs
        they are None.
        """
        # Both losses come from one pass through the encoder.
        x_BTH, pooled, word_VE = self.encode(batch, dropout_rng)

        # A left-to-right language model says the next token: it is read from the state before the
        # token, which has not seen it (section 5.1). A BiLSTM on top has seen both sides.
        positions_BP = batch['masked_lm_positions']
        if self.config.is_causal and not self.config.bilstm:
            positions_BP = jnp.maximum(positions_BP - 1, 0)
        # Only the masked positions go on to the vocabulary: P of T, 20 of 128, and the product with
        # V columns is one of the largest of the step.
        x_BPH = self.read(jnp.take_along_axis(x_BTH, positions_BP[..., None], axis=1))
        factors = MaskedLM(self.config, self.dtype, self.matmul_dtype, name='mlm')(x_BPH, word_VE)
        in_blocks = self.vocabulary_loss == 'blocks'
        if self.vocabulary_loss == 'auto':
            in_blocks = factors.are_large()
        mlm_BPV = factors if in_blocks else factors.logits()
        if not self.config.traits.pairs:
            return mlm_BPV, None
        return mlm_BPV, dense(self.config, 2, self.dtype, 'nsp')(pooled).astype(jnp.float32)


class Detector(EncoderModel):
    """Tells of each token whether it was replaced (google-research/electra modeling.py)."""

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """-> logits [B, T] that a token is not the original one."""
        x_BTH, _, _ = self.encode(batch, dropout_rng)
        head = DetectionHead(self.config, self.dtype, name='detection')
        return head(x_BTH).astype(jnp.float32)


class DetectionHead(nn.Module):
    """A dense layer, the encoder's activation, and a product with one vector."""

    config: ModelConfig
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BTH: Array) -> Array:
        """-> logits [B, T]."""
        c = self.config
        x_BTH = ACTIVATIONS[c.hidden_act](dense(c, c.hidden_size, self.dtype, 'dense')(x_BTH))
        return dense(c, 1, self.dtype, 'out')(x_BTH)[..., 0]


class NextSentence(EncoderModel):
    """Next-sentence prediction alone."""

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """-> logits [B, 2]; class 1 means a random B."""
        _, pooled_BH, _ = self.encode(batch, dropout_rng)
        return dense(self.config, 2, self.dtype, 'nsp')(pooled_BH).astype(jnp.float32)


class EncoderOnly(EncoderModel):
    """No head: the encoder's own results."""

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> tuple[Array, Array]:
        """-> (hidden states [B, T, H], pooled first token [B, H]), float32."""
        x_BTH, pooled_BH, _ = self.encode(batch, dropout_rng)
        return x_BTH.astype(jnp.float32), pooled_BH.astype(jnp.float32)


class Classifier(EncoderModel):
    """Classes or, with one output, a regression, from the pooled first token.

    run_classifier.py:594.
    """

    outputs: int = 2
    head_dropout: float = 0.1

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """-> logits [B, C]; of a batch whose inputs are lists [B, L, T] logits [B, L, C]."""
        return _run_by_row(batch, dropout_rng, self._scores)

    def _scores(self, rows: Batch, dropout_rng: DropoutRng | None) -> Array:
        before = self.head_dropout if self.config.traits.class_head.drops_before else 0.0
        _, pooled_RH, _ = self.encode(rows, dropout_rng, before, pools=True)
        return self.scores(pooled_RH, self.outputs, self.head_dropout, dropout_rng)


class Span(EncoderModel):
    """Start and end of an answer; dropout only where the family has it (run_squad.py:568)."""

    head_dropout: float = 0.0

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """-> logits [B, T, 2]: start, end."""
        x_BTH, _, _ = self.encode(batch, dropout_rng)
        rate = self.head_dropout if self.config.traits.drops_spans else 0.0
        return self.scores(x_BTH, 2, rate, dropout_rng, 'span')


class Tokens(EncoderModel):
    """A class for every token, each by itself; dropout as before a classifier.

    Paper section 5.3: no CRF.
    """

    outputs: int = 2
    head_dropout: float = 0.1

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """-> logits [B, T, C]."""
        x_BTH, _, _ = self.encode(batch, dropout_rng)
        return self.scores(x_BTH, self.outputs, self.head_dropout, dropout_rng)


class SentenceEncoder(EncoderModel):
    """One vector for each text, and nothing of its own to learn."""

    sentence: SentenceConfig = SentenceConfig()

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """Return vectors [B, D]; of a batch whose inputs are [B, C, T] vectors [B, C, D]."""
        return _run_by_row(batch, dropout_rng, self._vectors)

    def _vectors(self, rows: Batch, dropout_rng: DropoutRng | None) -> Array:
        x_RTH, _, _ = self.encode(rows, dropout_rng)
        return compute_sentence_vectors(x_RTH, rows['input_mask'], self.sentence)


class SparseEncoder(EncoderModel):
    """A weight of each entry of the vocabulary for each text, by the masked-LM head."""

    sentence: SparseConfig = SparseConfig()

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """Return weights [B, V]; of a batch whose inputs are [B, C, T] weights [B, C, V]."""
        return _run_by_row(batch, dropout_rng, self._weights)[..., : self.config.vocab_size]

    def _weights(self, rows: Batch, dropout_rng: DropoutRng | None) -> Array:
        x_RTH, _, word_VE = self.encode(rows, dropout_rng)
        head = MaskedLM(self.config, self.dtype, self.matmul_dtype, name='mlm')
        factors = head(self.read(x_RTH), word_VE)
        return pool_logits(factors, rows['input_mask'], self.sentence)


class MultiVectorEncoder(EncoderModel):
    """A vector for each token of a text, of which some are scored (ColBERT).

    outputs: the numbers of a vector; 0: as `sentence` says. Without scored_mask all tokens count.
    """

    outputs: int = 0
    sentence: LateInteractionConfig = LateInteractionConfig()

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> TokenVectors:
        """Return the vectors of a batch whose inputs are [B, T], or [B, C, T]."""
        return _run_by_row(batch, dropout_rng, self._vectors)

    def _vectors(self, rows: Batch, dropout_rng: DropoutRng | None) -> TokenVectors:
        settings = self.sentence.settings
        width = self.outputs or settings.width
        x_RTH, _, _ = self.encode(rows, dropout_rng)
        layer = dense(self.config, width, self.dtype, 'projection', use_bias=False)
        vectors_RTD = layer(x_RTH).astype(jnp.float32)
        if settings.normalize:
            vectors_RTD = normalize(vectors_RTD)
        return TokenVectors(vectors_RTD, rows.get('scored_mask', rows['input_mask']))


class Choice(EncoderModel):
    """One score for each of an example's inputs, of which one is right.

    It is the pooled output times a vector (paper section 4.4).
    """

    head_dropout: float = 0.1

    @nn.compact
    def __call__(self, batch: Batch, dropout_rng: DropoutRng | None = None) -> Array:
        """Return logits [B, C] of a batch whose inputs are [B, C, T], C inputs an example."""
        return _run_by_row(batch, dropout_rng, self._scores)[..., 0]

    def _scores(self, rows: Batch, dropout_rng: DropoutRng | None) -> Array:
        _, pooled_RH, _ = self.encode(rows, dropout_rng, pools=True)
        return self.scores(pooled_RH, 1, self.head_dropout, dropout_rng)


def _run_by_row(
    batch: Batch,
    dropout_rng: DropoutRng | None,
    of_rows: Callable[[Batch, DropoutRng | None], Any],
) -> Any:
    """Return `of_rows` for inputs [B, T], or for [B, C, T], C inputs an example: [B, C, ...]."""
    # The encoder knows rows alone: B examples of C inputs are B C rows. Sizes of rows may be
    # symbolic (export), hence *examples.
    *examples, T = batch['input_ids'].shape
    if len(examples) == 1:
        return of_rows(batch, dropout_rng)
    C = examples[-1]
    shape = batch['input_ids'].shape
    rows = {name: x.reshape(-1, T) for name, x in batch.items() if x.shape == shape}
    if dropout_rng is not None:  # every input is a row of its own to dropout
        numbers_BC = dropout_rng.rows_B[:, None] * C + jnp.arange(C, dtype=jnp.uint32)[None]
        dropout_rng = dataclasses.replace(dropout_rng, rows_B=numbers_BC.reshape(-1))
    fold = lambda output: output.reshape(*examples, *output.shape[1:])
    return jax.tree.map(fold, of_rows(rows, dropout_rng))
