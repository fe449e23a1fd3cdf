"""Losses of vectors of texts: multiple negatives, SimCSE, CoSENT, cosine and a teacher's vectors.

Owns their formulas, which are those of sentence-transformers, the table of all such losses, and how
a batch that does not fit is encoded part by part. Which examples each of them reads is
configs/model/sentence.py's. Vectors are compared over all of a batch, which is one array over all
devices.

Dims: B batch, C texts of an example, D numbers of a vector, N documents of a batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.model.sentence import EmbeddingConfig
from bert_jax.mesh.sharding import constrain_rows, split_rows
from bert_jax.model.dropout import DropoutRng
from bert_jax.model.pooling import normalize
from bert_jax.model.text_vectors import DenseTexts, Texts
from bert_jax.train.losses.distilled_scores import (
    distill_kl,
    guess_alike,
    margin_mse,
)
from bert_jax.train.losses.objective import (
    Batch,
    Objective,
    make_mean_objective,
    measure_classes,
)

_NEVER = -1e9  # the logit of what is no candidate; finite, so that a weight of 0 makes it 0


def multiple_negatives(texts: Texts, batch: Batch, scale: float) -> dict[str, jax.Array]:
    """Choose each example's own positive among all documents of the batch: cross-entropy.

    The first text of an example is its anchor, the second its positive, others hard negatives
    (Henderson et al. 2017, section 4). On two draws of dropout of one text it is SimCSE.
    """
    logits_BN = scale * texts.compare_in_batch()
    B, N = logits_BN.shape
    real_N = jnp.repeat(batch['example_weights'] > 0, N // B)
    logits_BN = jnp.where(real_N[None], logits_BN, _NEVER)
    return measure_classes(logits_BN, jnp.arange(B) * (N // B))


def cosent(texts: Texts, batch: Batch, scale: float) -> dict[str, jax.Array]:
    """Put the cosines of pairs in the order of their labels: log(1 + sum of exp(difference)).

    The sum is over all pairs of examples of which the first has the higher label, and the
    difference is what the second's cosine is above the first's. It is no mean: each example of the
    batch has the loss of all.
    """
    cosines_B, labels_B = scale * texts.compare_own()[:, 0], batch['labels']
    real_B = batch['example_weights'] > 0
    higher_BB = labels_B[:, None] > labels_B[None]
    compared_BB = higher_BB & real_B[:, None] & real_B[None]
    above_BB = jnp.where(compared_BB, cosines_B[None] - cosines_B[:, None], -jnp.inf)
    loss = jax.nn.logsumexp(jnp.append(above_BB.ravel(), 0.0))
    return {'loss': jnp.broadcast_to(loss, labels_B.shape)}


def cosine(texts: Texts, batch: Batch, scale: float) -> dict[str, jax.Array]:
    """Bring the cosine of each pair to its label: squared error."""
    return {'loss': jnp.square(texts.compare_own()[:, 0] - batch['labels'])}


def mse(texts: Texts, batch: Batch, scale: float) -> dict[str, jax.Array]:
    """Bring vectors to those of a teacher: squared error, the mean over their numbers.

    batch['teacher_vectors'] is float32 [B, C, D, 1] (Reimers & Gurevych 2020, section 3).
    """
    errors_BCD = texts.vectors - batch['teacher_vectors'][..., 0]
    return {'loss': jnp.mean(jnp.square(errors_BCD), (1, 2))}


def guess_candidate(features: Mapping[str, np.ndarray], batch_size: int, scale: float) -> float:
    """Return the loss of equal vectors, of which each candidate is as likely."""
    return math.log(batch_size * (features['input_ids'].shape[1] - 1))


def guess_order(features: Mapping[str, np.ndarray], batch_size: int, scale: float) -> float:
    """Return cosent's loss of cosines at random from 0 to 1.

    Equal cosines have less than most trained models, for they have nothing in the wrong order.
    """
    _, counts = np.unique(features['labels'], return_counts=True)
    differ = 1 - float(np.sum((counts / counts.sum()) ** 2))
    pairs = differ * batch_size * (batch_size - 1) / 2
    # log((cosh(scale) - 1) / (scale^2 / 2)), the mean of exp(scale x difference), written so that
    # nothing is too large.
    apart = scale + 2 * (math.log(-math.expm1(-scale)) - math.log(scale))
    return float(np.logaddexp(0, math.log(max(pairs, 1e-9)) + apart))


def guess_label(features: Mapping[str, np.ndarray], batch_size: int, scale: float) -> float:
    """Return the squared error of the mean of all labels."""
    return float(np.var(features['labels']))


def guess_vector(features: Mapping[str, np.ndarray], batch_size: int, scale: float) -> float:
    """Return the squared error of the mean of all the teacher's vectors."""
    return float(np.mean(np.var(features['teacher_vectors'], axis=(0, 1))))


class VectorLoss(NamedTuple):
    """A loss of vectors.

    Attributes:
      measure: (vectors of the texts, batch, scale) -> the value of each metric [B].
      constant: (features, examples of a batch, scale) -> the loss that guessing has.
      of_unit: whether it wants cosines, of a kind of vectors that has them.
      setting: which setting is told as the scale.
    """

    measure: Callable[[Texts, Batch, float], dict[str, jax.Array]]
    constant: Callable[[Mapping[str, np.ndarray], int, float], float]
    of_unit: bool = True
    setting: str = 'scale'


# By the names of embedding.loss.
LOSSES = {
    'multiple_negatives': VectorLoss(multiple_negatives, guess_candidate),
    'simcse': VectorLoss(multiple_negatives, guess_candidate),
    'cosent': VectorLoss(cosent, guess_order),
    'cosine': VectorLoss(cosine, guess_label),
    'mse': VectorLoss(mse, guess_vector, of_unit=False),
    'margin_mse': VectorLoss(margin_mse, guess_alike(margin_mse), of_unit=False),
    'distill_kl': VectorLoss(distill_kl, guess_alike(distill_kl), False, 'temperature'),
}
# (vectors of a batch, batch) -> the value of each metric [B].
Measure = Callable[[Any, Batch], dict[str, jax.Array]]


def make_vector_objective(
    model: Any,
    config: EmbeddingConfig,
    texts: type[Texts] = DenseTexts,
    add: Measure = lambda vectors, batch: {},
) -> Objective:
    """Make the objective of vectors of texts, as `config` chooses it.

    batch['labels'] float32 [B], from 0 to 1, where examples have scores. With matryoshka the loss
    is a sum over cuts of the vectors (Kusupati et al. 2022); other metrics are those of the widest.

    Args:
      model: gives vectors [B, C, ...] of rows [B, C, T].
      config: which loss, of which cuts.
      texts: how its vectors are compared.
      add: more metrics of a batch.
    """
    loss, cuts = LOSSES[config.loss], sorted(config.cuts, key=lambda cut: cut[0] or math.inf)
    scale = getattr(config, loss.setting)
    if scale is None:  # then it is that of the kind of vectors
        scale = getattr(texts, loss.setting)

    def measure(vectors: Any, batch: Batch) -> dict[str, jax.Array]:
        losses = []
        for width, weight in cuts:
            # Cut before they are scaled to length one: a cut vector is compared by its own cosine.
            cut = vectors if width is None else vectors[..., :width]
            if loss.of_unit and texts.of_unit:
                cut = normalize(cut)
            values = loss.measure(texts(cut), batch, scale)
            losses.append(weight * values['loss'])
        # The widest cut was the last.
        return values | {'loss': sum(losses[1:], losses[0])} | add(vectors, batch)

    def constant(features: Mapping[str, np.ndarray], batch_size: int) -> float:
        return loss.constant(features, batch_size, scale) * sum(weight for _, weight in cuts)

    objective = make_mean_objective(_InChunks(model, config.chunk_size), measure)
    reads = config.reads
    return Objective(objective.sums, objective.weights, reads.whole_batch, constant, reads.in_batch)


class _InChunks(NamedTuple):
    """A model that encodes so many examples at a time, and keeps nothing of them but vectors.

    Their states are computed again for the gradients, which are those of the whole batch (Gao et
    al. 2021). 0: all examples at once.
    """

    model: Any
    size: int

    def apply(
        self, variables: Mapping[str, Any], batch: Batch, dropout_rng: DropoutRng | None
    ) -> Any:
        """Return vectors [B, C, ...] of rows [B, C, T]."""
        B = len(batch['input_ids'])
        if not 0 < self.size < B:
            return self.model.apply(variables, batch, dropout_rng)

        def encode(chunk: Any) -> jax.Array:
            rows, numbers = jax.tree.map(constrain_rows, chunk)
            rng = None
            if dropout_rng is not None:
                rng = dataclasses.replace(dropout_rng, rows_B=numbers)
            return self.model.apply(variables, rows, rng)

        # A chunk has rows of all devices, and its dropout is named by the rows' numbers in the
        # whole batch: neither shows in the result.
        numbers_B = None
        if dropout_rng is not None:
            numbers_B = dropout_rng.rows_B
        chunks = split_rows((dict(batch), numbers_B), B // self.size)
        # Within a loop nothing is merged that is to be computed twice.
        encode_again = jax.checkpoint(encode, prevent_cse=False)
        parts = jax.lax.map(encode_again, chunks)
        join = lambda x: constrain_rows(jnp.swapaxes(x, 0, 1).reshape(B, *x.shape[2:]))
        return jax.tree.map(join, parts)
