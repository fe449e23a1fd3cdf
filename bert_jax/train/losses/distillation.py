"""What a student of pre-training minimises: a class for each method of distillation.

A class says what it takes from a teacher, as columns of the batch, and what it makes of them. How
the teacher is read and run is bert_jax/runs/pretraining/teacher.py's.

Dims: B batch, P masked positions, V vocabulary, T positions, H hidden size, R relation heads, S = T
the positions of keys.
"""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.tuning_config import DistillationConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model import layout
from bert_jax.model.blocks.attention import ATTENTIONS
from bert_jax.model.blocks.norms import make_norm
from bert_jax.model.dropout import DropoutRng
from bert_jax.model.pooling import normalize
from bert_jax.train.losses.masked_lm import (
    count_masked_tokens,
    sum_masked_lm,
    weigh_masked_tokens,
)
from bert_jax.train.losses.objective import Batch, MetricSums, Objective, sum_weighted

_FAR = -1e9  # the logit of a key that is not seen


class Distillation(abc.ABC):
    """What a student learns from a teacher.

    Attributes:
      settings: the weights of its losses, and what else it may be told.
      masked_lm_weight: the weight of the masked-LM loss where no setting says one.
      reads: the parts of the teacher (train/task_heads.py) that it learns from.
    """

    masked_lm_weight: float
    reads: tuple[str, ...] = ()

    def __init__(self, settings: DistillationConfig):
        self.settings = settings
        if settings.masked_lm_weight is None:
            self.own_weight = self.masked_lm_weight
        else:
            self.own_weight = settings.masked_lm_weight

    @abc.abstractmethod
    def check(self, student: ModelConfig, teacher: ModelConfig) -> None:
        """Raise UserError where these two shapes cannot learn from each other so."""

    @abc.abstractmethod
    def columns(self, model: Any, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return what the teacher gives of a batch: columns of B rows, by name."""

    @abc.abstractmethod
    def losses(self, outputs: Outputs, batch: Batch) -> MetricSums:
        """Return the losses of a batch that has the teacher's columns."""

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the denominator of each loss, divided by its weight in the sum."""

    def objective(self, model: Any) -> Objective:
        """Make the objective of a student: the masked-LM loss, where it counts, and `losses`.

        A question about pairs is not learnt (DistilBERT section 3).
        """
        model = model.clone(vocabulary_loss='whole')

        def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
            outputs = Outputs(model, params, batch, dropout_rng)
            losses = self.losses(outputs, batch)
            if self.own_weight:
                return sum_masked_lm(outputs.logits_BPV, batch) | losses
            return losses

        def weights(batch: Batch) -> dict[str, jax.Array]:
            weights = self.weights(batch)
            if self.own_weight:
                # First, as its loss is: floats are added in this order.
                return {'mlm_loss': count_masked_tokens(batch) / self.own_weight} | weights
            return weights

        return Objective(sums, weights)


class Outputs:
    """What a model of pre-training gives for a batch.

    Attributes:
      logits_BPV: over the vocabulary at masked positions, without the rows that pad it.
      hidden: the states [B, T, H] that the first block reads, then those after each block.
    """

    def __init__(
        self, model: Any, params: Any, batch: Batch, dropout_rng: DropoutRng | None = None
    ):
        """Run the model; what nothing reads is not computed in a jitted program."""
        of_heads, state = model.apply(
            {'params': params}, batch, dropout_rng, mutable=['intermediates']
        )
        self.config: ModelConfig = model.config
        self.logits_BPV: jax.Array = of_heads[0][..., : self.config.vocab_size]
        self.hidden: tuple[jax.Array, ...] = state['intermediates']['encoder']['hidden']
        self._blocks = params['encoder']['layers']

    def projections(self, number: int) -> jax.Array:
        """Return queries, keys and values [B, T, 3, H] of block `number`, before any rotation."""
        c = self.config
        block = layout.take_block(self._blocks, number * c.own_blocks // c.num_layers)
        part = ATTENTIONS[c.attention](c, number)
        x_BTH = self.hidden[number]
        if c.norm == 'pre' and part.is_normed:
            norm: Any = make_norm(c)
            x_BTH = norm.apply({'params': block[part.norm]}, x_BTH)
        projections = []
        for name in part.columns:
            out_BTH = x_BTH @ block[name]['kernel'].astype(x_BTH.dtype)
            if c.use_bias:
                out_BTH = out_BTH + block[name]['bias'].astype(x_BTH.dtype)[None, None]
            projections.append(out_BTH)
        return jnp.stack(projections, 2).astype(jnp.float32)


class DistilBert(Distillation):
    """The teacher's distribution over tokens, and the direction of its states.

    5 T^2 KL(teacher || student) + 2 MLM + 1 (1 - cosine), at temperature T = 2 (DistilBERT,
    transformers' distillation/distiller.py `step`, with --restrict_ce_to_mask: here the heads read
    masked positions alone).
    """

    masked_lm_weight = 2.0
    reads = ('mlm',)

    def check(self, student: ModelConfig, teacher: ModelConfig) -> None:
        """Refuse cosines of states of two widths."""
        if self.settings.cosine_weight and student.hidden_size != teacher.hidden_size:
            raise UserError(
                f'the teacher has model.hidden_size={teacher.hidden_size} and the student'
                f' {student.hidden_size}: states of two widths have no cosine:'
                ' --set distillation.cosine_weight=0, or take distillation.method=minilm'
            )

    def columns(self, model: Any, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return its logits [B, P, V] and, where they count, its last states [B, T, H]."""
        outputs = Outputs(model, params, batch)
        columns = {'teacher_logits': outputs.logits_BPV}
        if self.settings.cosine_weight:
            columns['teacher_states'] = outputs.hidden[-1].astype(jnp.float32)
        return columns

    def losses(self, outputs: Outputs, batch: Batch) -> MetricSums:
        """Return the sums of both losses, over masked tokens and over all tokens."""
        T = self.settings.temperature
        log_p = jax.nn.log_softmax(batch['teacher_logits'] / T)
        log_q = jax.nn.log_softmax(outputs.logits_BPV.astype(jnp.float32) / T)
        divergence_BP = T**2 * jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)
        sums = {'soft_loss': sum_weighted(divergence_BP, weigh_masked_tokens(batch))}
        if self.settings.cosine_weight:
            states_BTH = outputs.hidden[-1].astype(jnp.float32)
            cosine_BT = jnp.sum(normalize(states_BTH) * normalize(batch['teacher_states']), -1)
            sums['cosine_loss'] = sum_weighted(1 - cosine_BT, mark_real_tokens(batch))
        return sums

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the numbers of masked tokens and of tokens, by the weights of the losses."""
        weights = {}
        if self.settings.soft_weight:
            weights['soft_loss'] = count_masked_tokens(batch) / self.settings.soft_weight
        if self.settings.cosine_weight:
            tokens = jnp.maximum(jnp.sum(mark_real_tokens(batch)), 1.0)
            weights['cosine_loss'] = tokens / self.settings.cosine_weight
        return weights


class MiniLM(Distillation):
    """The relations of queries, of keys and of values among the tokens, in one block.

    KL(teacher || student) of softmax(A A^T / sqrt d) for A the queries, keys and values, in R heads
    of both, so that widths and heads may differ (MiniLMv2, section 3.1); the student's last block.
    """

    masked_lm_weight = 0.0

    def check(self, student: ModelConfig, teacher: ModelConfig) -> None:
        """Refuse heads that do not divide a width, and a block that is not there."""
        R, number = self.settings.relation_heads, self.settings.teacher_block
        for name, shape in (('student', student), ('teacher', teacher)):
            if shape.hidden_size % R:
                raise UserError(
                    f'distillation.relation_heads={R} does not divide the hidden size of the'
                    f' {name}, {shape.hidden_size}: take a number that divides both'
                )
        if number >= teacher.num_layers:
            raise UserError(
                f'distillation.teacher_block={number}: the teacher has blocks 0 to'
                f' {teacher.num_layers - 1}'
            )

    def columns(self, model: Any, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return its queries, keys and values [B, T, 3, H]."""
        number = self.settings.teacher_block % model.config.num_layers
        return {'teacher_projections': Outputs(model, params, batch).projections(number)}

    def losses(self, outputs: Outputs, batch: Batch) -> MetricSums:
        """Return the sum over tokens, of the mean over heads, for all three relations."""
        seen_BTS, real_BT = mark_seen_keys(batch), mark_real_tokens(batch)
        theirs = batch['teacher_projections']
        ours = outputs.projections(outputs.config.num_layers - 1)
        total = jnp.zeros(())
        for i in range(3):
            log_p = self._relations(theirs[:, :, i], seen_BTS)
            log_q = self._relations(ours[:, :, i], seen_BTS)
            divergence_BRT = jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)
            total += jnp.sum(divergence_BRT.mean(1) * real_BT)
        return {'relation_loss': (total, jnp.sum(real_BT))}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of tokens."""
        return {'relation_loss': jnp.maximum(jnp.sum(mark_real_tokens(batch)), 1.0)}

    def _relations(self, x_BTH: jax.Array, seen_BTS: jax.Array) -> jax.Array:
        """Return log softmax(x x^T / sqrt d) [B, R, T, S] in R heads, over the keys seen."""
        B, T, H = x_BTH.shape
        R = self.settings.relation_heads
        x_BRTD = jnp.swapaxes(x_BTH.reshape(B, T, R, H // R), 1, 2)
        scores_BRTS = jnp.matmul(x_BRTD, jnp.swapaxes(x_BRTD, 2, 3)) * (H // R) ** -0.5
        return jax.nn.log_softmax(jnp.where(seen_BTS[:, None], scores_BRTS, _FAR))


def number_examples(batch: Batch) -> jax.Array:
    """Return the number of each token's example in its row, from 1; 0 in the padding [B, T]."""
    if 'pack_ids' in batch:
        return batch['pack_ids']
    return batch['input_mask']


def mark_real_tokens(batch: Batch) -> jax.Array:
    """Return 1.0 at the tokens of rows that count [B, T]."""
    return (number_examples(batch) > 0).astype(jnp.float32) * batch['example_weights'][:, None]


def mark_seen_keys(batch: Batch) -> jax.Array:
    """Return which keys a token may have relations with, [B, T, S]: those of its example."""
    numbers_BT = number_examples(batch)
    return (numbers_BT[:, :, None] == numbers_BT[:, None, :]) & (numbers_BT[:, None, :] > 0)


METHODS: dict[str, type[Distillation]] = {'distilbert': DistilBert, 'minilm': MiniLM}


def choose_method(settings: DistillationConfig) -> Distillation | None:
    """Return the method of a run; None where it has no teacher."""
    if not settings.teacher:
        return None
    return METHODS[settings.method](settings)
