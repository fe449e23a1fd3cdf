"""What a student of pre-training minimises: a class for each method of distillation.

A class says what it takes from a teacher, as columns of the batch, and what it makes of them. How
the teacher is read and run is bert_jax/runs/pretraining/teacher.py's.

Dims: as in losses/__init__.py; H hidden size, R relation heads, S = T the positions of keys.
"""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.distillation import DistillationConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model import layout
from bert_jax.model.blocks.attention import ATTENTIONS
from bert_jax.model.blocks.norms import norm_of
from bert_jax.model.dropout import DropoutRng
from bert_jax.model.pooling import unit
from bert_jax.train.losses import (
    Batch,
    MetricSums,
    Objective,
    masked_lm_sums,
    masked_lm_weight,
    weighted,
)

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
        given = settings.masked_lm_weight
        self.own_weight = self.masked_lm_weight if given is None else given

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
            masked_lm = masked_lm_sums(outputs.logits_BPV, batch) if self.own_weight else {}
            return masked_lm | self.losses(outputs, batch)

        def weights(batch: Batch) -> dict[str, jax.Array]:
            masked_lm = {}
            if self.own_weight:
                masked_lm['mlm_loss'] = masked_lm_weight(batch) / self.own_weight
            return masked_lm | self.weights(batch)

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
        block = layout.block(self._blocks, number * c.own_blocks // c.num_layers)
        part = ATTENTIONS[c.attention](c, number)
        x_BTH = self.hidden[number]
        if c.norm == 'pre' and part.is_normed:
            norm: Any = norm_of(c)
            x_BTH = norm.apply({'params': block[part.norm]}, x_BTH)
        each = [x_BTH @ block[name]['kernel'].astype(x_BTH.dtype) for name in part.columns]
        if c.use_bias:
            biases = [block[name]['bias'].astype(x_BTH.dtype) for name in part.columns]
            each = [out_BTH + bias_H[None, None] for out_BTH, bias_H in zip(each, biases)]
        return jnp.stack(each, 2).astype(jnp.float32)


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
        weights_BP = batch['masked_lm_weights'] * batch['example_weights'][:, None]
        sums = {'soft_loss': weighted(divergence_BP, weights_BP)}
        if self.settings.cosine_weight:
            states_BTH = outputs.hidden[-1].astype(jnp.float32)
            cosine_BT = jnp.sum(unit(states_BTH) * unit(batch['teacher_states']), -1)
            sums['cosine_loss'] = weighted(1 - cosine_BT, _real(batch))
        return sums

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the numbers of masked tokens and of tokens, by the weights of the losses."""
        weights = {}
        if self.settings.soft_weight:
            weights['soft_loss'] = masked_lm_weight(batch) / self.settings.soft_weight
        if self.settings.cosine_weight:
            tokens = jnp.maximum(jnp.sum(_real(batch)), 1.0)
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
        seen_BTS, real_BT = _seen(batch), _real(batch)
        ours = outputs.projections(outputs.config.num_layers - 1)
        total = jnp.zeros(())
        for i in range(3):
            log_p, log_q = (
                self._relations(projections[:, :, i], seen_BTS)
                for projections in (batch['teacher_projections'], ours)
            )
            divergence_BRT = jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)
            total += jnp.sum(divergence_BRT.mean(1) * real_BT)
        return {'relation_loss': (total, jnp.sum(real_BT))}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of tokens."""
        return {'relation_loss': jnp.maximum(jnp.sum(_real(batch)), 1.0)}

    def _relations(self, x_BTH: jax.Array, seen_BTS: jax.Array) -> jax.Array:
        """Return log softmax(x x^T / sqrt d) [B, R, T, S] in R heads, over the keys seen."""
        B, T, H = x_BTH.shape
        R = self.settings.relation_heads
        x_BRTD = jnp.swapaxes(x_BTH.reshape(B, T, R, H // R), 1, 2)
        scores_BRTS = jnp.matmul(x_BRTD, jnp.swapaxes(x_BRTD, 2, 3)) * (H // R) ** -0.5
        return jax.nn.log_softmax(jnp.where(seen_BTS[:, None], scores_BRTS, _FAR))


def _numbers(batch: Batch) -> jax.Array:
    """Return the number of each token's example in its row, from 1; 0 in the padding [B, T]."""
    return batch['pack_ids'] if 'pack_ids' in batch else batch['input_mask']


def _real(batch: Batch) -> jax.Array:
    """Return 1.0 at the tokens of rows that count [B, T]."""
    return (_numbers(batch) > 0).astype(jnp.float32) * batch['example_weights'][:, None]


def _seen(batch: Batch) -> jax.Array:
    """Return which keys a token may have relations with, [B, T, S]: those of its example."""
    numbers_BT = _numbers(batch)
    return (numbers_BT[:, :, None] == numbers_BT[:, None, :]) & (numbers_BT[:, None, :] > 0)


METHODS: dict[str, type[Distillation]] = {'distilbert': DistilBert, 'minilm': MiniLM}


def distillation(settings: DistillationConfig) -> Distillation | None:
    """Return the method of a run; None where it has no teacher."""
    return METHODS[settings.method](settings) if settings.teacher else None
