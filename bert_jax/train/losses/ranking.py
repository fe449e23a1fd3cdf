"""Losses of rerankers: of pairs, of lists, of a teacher's margins, and of negatives in the batch.

Owns their formulas, masks and reductions, which are those of sentence-transformers
(cross_encoder/losses), and how queries meet documents of other examples. Which examples each of
them reads is configs/model/ranking.py's. A loss is a sum over what it compares, divided by how many
these are in the whole batch.

Dims: B lists (a query each), C documents of a list, T positions, N = B C documents of a batch, K
drawn ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.mesh.sharding import constrain_rows
from bert_jax.model.dropout import DropoutRng
from bert_jax.train.losses.objective import Batch, MetricSums, Objective

_NEVER = -1e9  # the logit of what is no candidate; finite, so that a mask makes it 0
_DRAW = 1 << 29  # folded into a step's key; the sites of dropout are smaller numbers
_MU = 10.0  # of NDCG-Loss2++ (Wang et al. 2018, section 5.3; lambda_loss.py)
_GUESSED = 1000  # lists that the loss of guessing is measured on


class Lists(NamedTuple):
    """The documents of a batch's queries, arrays [B, C].

    Attributes:
      present: whether there is such a document, in a row that counts.
      grades: how relevant it is; -inf where there is none.
      teacher: what another model gives it, of a loss that reads it.
    """

    present: jax.Array
    grades: jax.Array
    teacher: jax.Array | None


def read_lists(batch: Batch) -> Lists:
    """Return the lists of a batch; a document that is absent has a row of one token."""
    present_BC = (batch['input_mask'][..., 1] > 0) & (batch['example_weights'] > 0)[:, None]
    grades_BC = jnp.where(present_BC, batch['labels'][..., 0], -jnp.inf)
    teacher = batch.get('teacher_scores')
    return Lists(present_BC, grades_BC, None if teacher is None else teacher[..., 0])


# ---- what is summed


def binary_cross_entropy(logits_BC: jax.Array, lists: Lists, config: RankingConfig) -> jax.Array:
    """Sum, over pairs, -w y log p - (1 - y) log(1 - p) of the logit's sigmoid p.

    binary_cross_entropy.py.
    """
    held_BC = jnp.where(lists.present, lists.grades, 0.0)
    losses_BC = config.pos_weight * held_BC * jax.nn.softplus(-logits_BC)
    losses_BC += (1 - held_BC) * jax.nn.softplus(logits_BC)
    return jnp.sum(losses_BC * lists.present)


def list_cross_entropy(logits_BC: jax.Array, lists: Lists, config: RankingConfig) -> jax.Array:
    """Sum, over lists, the cross-entropy to the softmax of the grades (ListNet; list_net.py)."""
    shares_BC = jax.nn.softmax(jnp.maximum(lists.grades, _NEVER))
    logs_BC = jax.nn.log_softmax(jnp.where(lists.present, logits_BC, _NEVER))
    return -jnp.sum(shares_BC * logs_BC * lists.present)


def ranknet(
    logits_BC: jax.Array,
    lists: Lists,
    config: RankingConfig,
    weigh: Callable[[jax.Array, int], jax.Array] = lambda grades_BC, k: jnp.ones(()),
) -> jax.Array:
    """Sum, over pairs of different grade, log2(1 + exp(-difference)) (rank_net.py).

    `weigh` gives weights [B, C, C] of the grades in the order of the logits: then it is a
    LambdaLoss (lambda_loss.py). With k, of each pair one is among the first k of that order.
    """
    C = logits_BC.shape[1]
    k = config.k or C
    order_BC = jnp.argsort(jnp.where(lists.present, -logits_BC, jnp.inf), axis=1)
    logits_BC = jnp.take_along_axis(logits_BC, order_BC, 1)
    grades_BC = jnp.take_along_axis(lists.grades, order_BC, 1)
    is_first_C = jnp.arange(C) < k
    compared_BCC = _list_pairs(grades_BC) & (is_first_C[:, None] | is_first_C[None])[None]

    losses_BCC = jax.nn.softplus(logits_BC[:, None] - logits_BC[:, :, None]) / math.log(2)
    total = jnp.sum(losses_BCC * weigh(grades_BC, k) * compared_BCC)
    if config.k is None:
        return total
    # The divisor is of all pairs, for it cannot know the order: that of the first k is put right.
    return total * _count_pairs(lists) / jnp.maximum(jnp.sum(compared_BCC), 1)


def _list_pairs(grades_BC: jax.Array) -> jax.Array:
    """Tell of each two documents [B, C, C] whether both are there, and the first is the better."""
    is_there_BC = jnp.isfinite(grades_BC)
    return (grades_BC[:, :, None] > grades_BC[:, None]) & is_there_BC[:, None]


def weigh_by_ndcg(grades_BC: jax.Array, k: int) -> jax.Array:
    """Return the weights [B, C, C] of NDCG-Loss2++ of documents in the order of their logits."""
    C = grades_BC.shape[1]
    gains_BC = 2.0 ** jnp.maximum(grades_BC, 0.0) - 1
    discounts_C = 1 / jnp.log2(jnp.arange(2, C + 2))
    best_B = jnp.sum((-jnp.sort(-gains_BC) * discounts_C[None])[:, :k], axis=1)
    gains_BC = gains_BC / jnp.maximum(best_B, 1e-10)[:, None]

    # By the distance of two places, and by the places themselves.
    distances_CC = jnp.abs(jnp.arange(C)[:, None] - jnp.arange(C)[None])
    steps_C = jnp.append(0.0, discounts_C[:-1] - discounts_C[1:])
    by_place_CC = jnp.abs(discounts_C[:, None] - discounts_C[None])
    weights_CC = _MU * steps_C[distances_CC] + by_place_CC
    return weights_CC[None] * jnp.abs(gains_BC[:, :, None] - gains_BC[:, None])


def margin_mse(logits_BC: jax.Array, lists: Lists, config: RankingConfig) -> jax.Array:
    """Sum the squared errors of what the best document is above each other, against a teacher's.

    The best is the first of the highest grade (Hofstaetter et al. 2020; margin_mse.py).
    """
    errors_BC = logits_BC - lists.teacher
    best_B1 = jnp.argmax(lists.grades, 1, keepdims=True)
    # The best one's margin to itself is 0.
    margins_BC = jnp.take_along_axis(errors_BC, best_B1, 1) - errors_BC
    return jnp.sum(jnp.square(margins_BC) * lists.present)


def multiple_negatives(logits_BC: jax.Array, lists: Lists, config: RankingConfig) -> jax.Array:
    """Sum the cross-entropy of the first document among all, by a multiple of the sigmoid.

    multiple_negatives_ranking.py; the rows are those of `add_negatives`.
    """
    scores_BC = config.scale * jax.nn.sigmoid(logits_BC)
    scores_BC = jnp.where(lists.present, scores_BC, _NEVER)
    losses_B = jax.nn.logsumexp(scores_BC, axis=1) - scores_BC[:, 0]
    return jnp.sum(losses_B * lists.present[:, 0])


# ---- what it is divided by


def _count_documents(lists: Lists) -> jax.Array:
    return jnp.sum(lists.present)


def _count_lists(lists: Lists) -> jax.Array:
    return jnp.sum(lists.present[:, 0])


def _count_pairs(lists: Lists) -> jax.Array:
    return jnp.sum(_list_pairs(lists.grades))


def _count_margins(lists: Lists) -> jax.Array:
    return jnp.sum(lists.present[:, 1:])


# ---- negatives of the batch


def add_negatives(batch: Batch, rng: DropoutRng | None, config: RankingConfig) -> Batch:
    """Return the batch, each query beside drawn documents of other examples too.

    Drawn anew in each step, each as likely, none twice; all of them where they are few. Of a
    document there is what stands beside its own query, and no more than the row has place for.
    """
    B, C, T = batch['input_ids'].shape
    is_other_BN = jnp.arange(B)[:, None] != jnp.arange(B * C)[None] // C
    is_offered_BN = is_other_BN & read_lists(batch).present.reshape(1, -1)
    key = jax.random.key(0) if rng is None else rng.key
    lots_BN = jax.random.uniform(jax.random.fold_in(key, _DRAW), (B, B * C))
    K = min(config.num_negatives, (B - 1) * C)
    _, drawn_BK = jax.lax.top_k(jnp.where(is_offered_BN, lots_BN, -1.0), K)

    rows = _pair(batch, drawn_BK)
    # Of what is not there the first token stays, as of any absent document.
    is_drawn_BK = jnp.take_along_axis(is_offered_BN, drawn_BK, 1)
    rows['input_mask'] *= is_drawn_BK[..., None] | (jnp.arange(T) == 0)[None, None]
    rows['labels'] = jnp.zeros((B, K, 1))
    added = dict(batch)
    for name, values in rows.items():
        added[name] = constrain_rows(jnp.concatenate([batch[name], values], axis=1))
    return added


def _pair(batch: Batch, drawn_BK: jax.Array) -> dict[str, jax.Array]:
    """Return rows [B, K, T] of each query beside documents of the batch, by their numbers [B, K].

    A row ends with a separator, and the first of these ends its query.
    """
    ids_BCT = batch['input_ids']
    *_, T = ids_BCT.shape
    lengths_BC = jnp.sum(batch['input_mask'], -1)
    last_BC1 = jnp.take_along_axis(ids_BCT, lengths_BC[..., None] - 1, 2)
    ends_BC = jnp.argmax(ids_BCT == last_BC1, axis=-1)

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


# ---- the table


class RankingLoss(NamedTuple):
    """A loss of rerankers.

    Attributes:
      measure: (logits [B, C], lists, settings) -> the sum of what is compared.
      count: lists -> how many that are, by which it is divided.
      add: (batch, random names, settings) -> the batch with more documents; None: as it is.
    """

    measure: Callable[[jax.Array, Lists, RankingConfig], jax.Array]
    count: Callable[[Lists], jax.Array]
    add: Callable[[Batch, DropoutRng | None, RankingConfig], Batch] | None = None


# By the names of ranking.loss.
LOSSES = {
    'binary_cross_entropy': RankingLoss(binary_cross_entropy, _count_documents),
    'list_cross_entropy': RankingLoss(list_cross_entropy, _count_lists),
    'lambda': RankingLoss(functools.partial(ranknet, weigh=weigh_by_ndcg), _count_pairs),
    'ranknet': RankingLoss(ranknet, _count_pairs),
    'margin_mse': RankingLoss(margin_mse, _count_margins),
    'multiple_negatives': RankingLoss(multiple_negatives, _count_lists, add_negatives),
}


def make_ranking_objective(model: Any, config: RankingConfig) -> Objective:
    """Make the objective of a reranker, as `config` chooses it.

    batch['labels'] float32 [B, C, 1]: the grades; of a loss with a teacher also 'teacher_scores'.

    Args:
      model: gives logits [B, C, 1] of rows [B, C, T].
      config: which loss.
    """
    loss = LOSSES[config.loss]

    def sums(params: Any, batch: Batch, dropout_rng: DropoutRng | None) -> MetricSums:
        if loss.add is not None:
            batch = loss.add(batch, dropout_rng, config)
        logits_BC = model.apply({'params': params}, batch, dropout_rng)[..., 0]
        lists = read_lists(batch)
        return {'loss': (loss.measure(logits_BC, lists, config), 1.0 * loss.count(lists))}

    def weights(batch: Batch) -> dict[str, jax.Array]:
        return {'loss': jnp.maximum(loss.count(read_lists(batch)), 1.0)}

    def constant(features: Mapping[str, np.ndarray], batch_size: int) -> float:
        """Return the loss of the best score that is the same for all, in an order by lot."""
        count = batch_size if loss.add is not None else _GUESSED
        batch = {name: array[:count] for name, array in features.items()}
        batch['example_weights'] = np.ones(len(batch['labels']))
        if loss.add is not None:
            batch = loss.add(batch, None, config)
        lists = read_lists(batch)
        share = jnp.clip(jnp.sum(batch['labels']) / jnp.sum(lists.present), 1e-6, 1 - 1e-6)
        order_BC = np.random.default_rng(0).normal(size=lists.present.shape) * 1e-6
        logits_BC = order_BC + jnp.log(config.pos_weight * share / (1 - share))
        return float(loss.measure(logits_BC, lists, config) / weights(batch)['loss'])

    return Objective(sums, weights, config.whole_batch, constant)
