"""Losses of rerankers: of pairs, of lists, of a teacher's margins, and of negatives in the batch.

Owns their formulas, masks and reductions, which are those of sentence-transformers
(cross_encoder/losses), and how queries meet documents of other examples. Which examples each of
them reads is configs/model/ranking.py's. A loss is a sum over what it compares, divided by how many
these are in the whole batch.

Dims: B lists (a query each), C documents of a list, T positions, N = B C documents of a batch, K
drawn ones.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model.dropout import DropoutRng
from bert_jax.train.losses.objective import Batch, MetricSums, Objective

_NEVER = -1e9  # the logit of what is no candidate; finite, so that a mask makes it 0
_DRAW = 1 << 29  # folded into a step's key; the sites of dropout are smaller numbers
_MU = 10.0  # of NDCG-Loss2++ (Wang et al. 2018, section 5.3; lambda_loss.py)
_GUESSED = 256  # lists that the loss of guessing is measured on
# What a loss returns: the sum of what it compares, and how many these are in the batch.
Compared = tuple[Array, Array]


class Lists(NamedTuple):
    """The documents of a batch's queries, arrays [B, C].

    Attributes:
      logits: what the model gives each.
      present: whether there is such a document, in a row that counts.
      grades: how relevant it is; -inf where there is none.
      teacher: what another model gives it; 0 where nothing does.
      config: the settings.
    """

    logits: Array
    present: Array
    grades: Array
    teacher: Array
    config: RankingConfig


def read_lists(logits_BC: Array | float, batch: Batch, config: RankingConfig) -> Lists:
    """Return the lists of a batch; a document that is absent has a row of one token."""
    present_BC = (batch['input_mask'][..., 1] > 0) & (batch['example_weights'] > 0)[:, None]
    logits_BC = jnp.broadcast_to(jnp.asarray(logits_BC), present_BC.shape)
    labels_BC1 = batch['labels']
    teacher_BC = batch.get('teacher_scores', jnp.zeros_like(labels_BC1))[..., 0]
    grades_BC = jnp.where(present_BC, labels_BC1[..., 0], -jnp.inf)
    return Lists(logits_BC, present_BC, grades_BC, teacher_BC, config)


def binary_cross_entropy(lists: Lists) -> Compared:
    """Sum, over pairs, -w y log p - (1 - y) log(1 - p) of the logit's sigmoid p.

    binary_cross_entropy.py.
    """
    held_BC = jnp.where(lists.present, lists.grades, 0.0)
    losses_BC = lists.config.pos_weight * held_BC * jax.nn.softplus(-lists.logits)
    losses_BC += (1 - held_BC) * jax.nn.softplus(lists.logits)
    return jnp.sum(losses_BC * lists.present), jnp.sum(lists.present)


def list_cross_entropy(lists: Lists) -> Compared:
    """Sum, over lists, the cross-entropy to the softmax of the grades (ListNet; list_net.py)."""
    shares_BC = jax.nn.softmax(jnp.maximum(lists.grades, _NEVER))
    logs_BC = jax.nn.log_softmax(jnp.where(lists.present, lists.logits, _NEVER))
    total = -jnp.sum(shares_BC * logs_BC * lists.present)
    return total, jnp.sum(lists.present[:, 0])


def ranknet(
    lists: Lists, weigh: Callable[[Array, int], Array] = lambda grades_BC, k: jnp.ones(())
) -> Compared:
    """Sum, over pairs of different grade, log2(1 + exp(-difference)) (rank_net.py).

    `weigh` gives weights [B, C, C] of the grades in the order of the logits: then it is a
    LambdaLoss (lambda_loss.py). With k, of each pair one is among the first k of that order.
    """
    C = lists.logits.shape[1]
    k = lists.config.k or C
    order_BC = jnp.argsort(jnp.where(lists.present, -lists.logits, jnp.inf), axis=1)
    logits_BC = jnp.take_along_axis(lists.logits, order_BC, 1)
    grades_BC = jnp.take_along_axis(lists.grades, order_BC, 1)
    is_first_C = jnp.arange(C) < k
    is_there_BC = jnp.isfinite(grades_BC)
    compared_BCC = (grades_BC[:, :, None] > grades_BC[:, None]) & is_there_BC[:, None]
    compared_BCC &= (is_first_C[:, None] | is_first_C[None])[None]

    losses_BCC = jax.nn.softplus(logits_BC[:, None] - logits_BC[:, :, None]) / math.log(2)
    total = jnp.sum(losses_BCC * weigh(grades_BC, k) * compared_BCC)
    count = jnp.sum(compared_BCC)
    # How many are among the first k hangs on the logits, which no divisor may: the mean as it is.
    if lists.config.whole_batch:
        return total / jnp.maximum(count, 1), jnp.ones(())
    return total, count


def weigh_by_ndcg(grades_BC: Array, k: int) -> Array:
    """Return the weights [B, C, C] of NDCG-Loss2++ of documents in the order of their logits."""
    C = grades_BC.shape[1]
    gains_BC = 2.0 ** jnp.maximum(grades_BC, 0.0) - 1
    discounts_C = 1 / jnp.log2(jnp.arange(2, C + 2))
    best_B1 = jnp.sum((-jnp.sort(-gains_BC) * discounts_C[None])[:, :k], 1, keepdims=True)
    gains_BC = gains_BC / jnp.maximum(best_B1, 1e-10)

    def differ(values: Array) -> Array:
        return jnp.abs(values[..., :, None] - values[..., None, :])

    # By the distance of two places, and by the places themselves.
    steps_C = jnp.append(0.0, discounts_C[:-1] - discounts_C[1:])
    weights_CC = _MU * steps_C[differ(jnp.arange(C))] + differ(discounts_C)
    return weights_CC[None] * differ(gains_BC)


def margin_mse(lists: Lists) -> Compared:
    """Sum the squared errors of what the best document is above each other, against a teacher's.

    The best is the first of the highest grade (Hofstaetter et al. 2020; margin_mse.py).
    """
    errors_BC = lists.logits - lists.teacher
    best_B1 = jnp.argmax(lists.grades, 1, keepdims=True)
    # The best one's margin to itself is 0.
    margins_BC = jnp.take_along_axis(errors_BC, best_B1, 1) - errors_BC
    return jnp.sum(jnp.square(margins_BC) * lists.present), jnp.sum(lists.present[:, 1:])


def multiple_negatives(lists: Lists) -> Compared:
    """Sum the cross-entropy of the first document among all, by a multiple of the sigmoid.

    multiple_negatives_ranking.py; the rows are those of `add_negatives`.
    """
    scores_BC = lists.config.scale * jax.nn.sigmoid(lists.logits)
    scores_BC = jnp.where(lists.present, scores_BC, _NEVER)
    losses_B = jax.nn.logsumexp(scores_BC, axis=1) - scores_BC[:, 0]
    is_list_B = lists.present[:, 0]
    return jnp.sum(losses_B * is_list_B), jnp.sum(is_list_B)


def guess_alike(lists: Lists) -> Array:
    """Return the best logit that is the same for all, in an order by lot."""
    held_BC = jnp.where(lists.present, lists.grades, 0.0)
    share = jnp.clip(jnp.sum(held_BC) / jnp.sum(lists.present), 1e-6, 1 - 1e-6)
    order_BC = 1e-6 * jax.random.normal(jax.random.key(0), held_BC.shape)
    return jnp.log(lists.config.pos_weight * share / (1 - share)) + order_BC


# By the names of ranking.loss.
LOSSES: dict[str, Callable[[Lists], Compared]] = {
    'binary_cross_entropy': binary_cross_entropy,
    'list_cross_entropy': list_cross_entropy,
    'lambda': functools.partial(ranknet, weigh=weigh_by_ndcg),
    'ranknet': ranknet,
    'margin_mse': margin_mse,
    'multiple_negatives': multiple_negatives,
}


def add_negatives(batch: Batch, rng: DropoutRng | None, config: RankingConfig) -> Batch:
    """Return the batch, each query beside drawn documents of other examples too.

    Drawn anew in each step, each as likely, none twice; all of them where they are few. Of a
    document there is what stands beside its own query, and no more than the row has place for.
    """
    B, C, T = batch['input_ids'].shape
    is_other_BN = jnp.arange(B)[:, None] != jnp.arange(B * C)[None] // C
    is_offered_BN = is_other_BN & read_lists(0.0, batch, config).present.reshape(1, -1)
    key = jax.random.key(0) if rng is None else rng.key
    lots_BN = jax.random.uniform(jax.random.fold_in(key, _DRAW), (B, B * C))
    K = min(config.num_negatives, (B - 1) * C)
    _, drawn_BK = jax.lax.top_k(jnp.where(is_offered_BN, lots_BN, -1.0), K)

    rows = _pair(batch, drawn_BK)
    # Of what is not there the first token stays, as of any absent document.
    is_drawn_BK1 = jnp.take_along_axis(is_offered_BN, drawn_BK, 1)[..., None]
    rows['input_mask'] *= is_drawn_BK1 | (jnp.arange(T) == 0)[None, None]
    rows['labels'] = jnp.zeros((B, K, 1))
    added = {'example_weights': batch['example_weights']}
    for name, values in rows.items():
        added[name] = constrain_rows(jnp.concatenate([batch[name], values], axis=1))
    return added


def _pair(batch: Batch, drawn_BK: Array) -> dict[str, Array]:
    """Return rows [B, K, T] of each query beside documents of the batch, by their numbers [B, K].

    A row ends with a separator, and the first of these ends its query.
    """
    ids_BCT = batch['input_ids']
    *_, T = ids_BCT.shape
    lengths_BC = jnp.sum(batch['input_mask'], -1)
    last_BC1 = jnp.take_along_axis(ids_BCT, lengths_BC[..., None] - 1, 2)
    ends_BC = 1 + jnp.argmax(ids_BCT[..., 1:] == last_BC1, axis=-1)

    # Positions of the query's row, and behind them those of the document's.
    end_B11 = ends_BC[:, :1, None]
    begins_BK1 = ends_BC.reshape(-1)[drawn_BK][..., None]
    stops_BK1 = lengths_BC.reshape(-1)[drawn_BK][..., None]
    sizes_BK1 = jnp.minimum(end_B11 + stops_BK1 - begins_BK1, T)
    places_11T = jnp.arange(T)[None, None]
    read_BKT = jnp.where(places_11T < end_B11, places_11T, T + places_11T - end_B11 + begins_BK1)
    read_BKT = jnp.where(places_11T == sizes_BK1 - 1, T + stops_BK1 - 1, read_BKT)
    rows = {}
    for name in ('input_ids', 'input_mask', 'segment_ids'):
        documents_BKT = batch[name].reshape(-1, T)[drawn_BK]
        query_BKT = jnp.broadcast_to(batch[name][:, :1], documents_BKT.shape)
        both_BK2T = jnp.concatenate([query_BKT, documents_BKT], axis=-1)
        taken_BKT = jnp.take_along_axis(both_BK2T, read_BKT, 2, mode='clip')
        rows[name] = taken_BKT * (places_11T < sizes_BK1)
    return rows


def make_ranking_objective(model: Any, config: RankingConfig) -> Objective:
    """Make the objective of a reranker, as `config` chooses it.

    batch['labels'] float32 [B, C, 1]: the grades; of a loss with a teacher also 'teacher_scores'.

    Args:
      model: gives logits [B, C, 1] of rows [B, C, T].
      config: which loss.
    """
    measure, in_batch = LOSSES[config.loss], config.reads.in_batch

    def add(batch: Batch, rng: DropoutRng | None) -> Batch:
        return add_negatives(batch, rng, config) if in_batch else batch

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        batch = add(batch, dropout_rng)
        logits_BC = model.apply({'params': params}, batch, dropout_rng)[..., 0]
        total, count = measure(read_lists(logits_BC, batch, config))
        return {'loss': (total, count.astype(jnp.float32))}

    def weights(batch: Batch) -> dict[str, Array]:
        return {'loss': jnp.maximum(measure(read_lists(0.0, batch, config))[1], 1.0)}

    def evaluate(
        guess: Callable[[Lists], Array], features: Mapping[str, np.ndarray], batch_size: int
    ) -> float:
        """Return the loss that some logits have on the first examples."""
        first = batch_size if in_batch else _GUESSED
        rows = {name: jnp.asarray(array[:first]) for name, array in features.items()}
        batch = add(rows | {'example_weights': jnp.ones(len(rows['labels']))}, None)
        lists = read_lists(0.0, batch, config)
        total, count = measure(lists._replace(logits=guess(lists)))
        return float(total / count)

    objective = Objective(
        sums, weights, config.whole_batch, functools.partial(evaluate, guess_alike), in_batch
    )
    if not config.reads.to_grades:
        return objective
    least = functools.partial(evaluate, lambda lists: lists.grades)
    return dataclasses.replace(objective, least=least)
