"""Losses of rerankers: of pairs, of lists, of a teacher's margins, and of negatives in the batch.

Owns their formulas, masks and reductions, which are those of sentence-transformers
(cross_encoder/losses), and how queries meet documents of other examples. Which examples each of
them reads is configs/model/ranking.py's. A loss is a sum over what it compares, divided by how many
these are in the whole batch.

Dims: B lists (a query each), C documents of a list, T positions, N documents of a batch, K drawn
ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.train.losses.distilled_scores import square_margins
from bert_jax.train.losses.objective import Batch, Objective, make_mean_objective, sum_weighted

_NEVER = -1e9  # the logit of what is no candidate; finite, so that a mask makes it 0
_MU = 10.0  # of NDCG-Loss2++ (Wang et al. 2018, section 5.3; lambda_loss.py)
_TINY = 1e-10  # where nothing is compared, nothing is divided by 0
_GUESSED = 256  # lists that the loss of guessing is measured on


# The losses of what is compared, and whether each of these counts.
Compared = tuple[Array, Array]


class Lists(NamedTuple):
    """The documents of a batch's queries, arrays [B, C].

    Attributes:
      config: the settings.
      logits: what the model gives each.
      present: whether there is such a document, in a row that counts.
      grades: how relevant it is; 0 where there is none.
      teacher: what another model gives it; 0 where nothing does.
    """

    config: RankingConfig
    logits: Array
    present: Array
    grades: Array
    teacher: Array


def find_present(batch: Batch) -> Array:
    """Return which documents count, [B, C]; one that is absent has a row of one token."""
    return (batch['input_mask'][..., 1] > 0) & (batch['example_weights'] > 0)[:, None]


def binary_cross_entropy(lists: Lists) -> Compared:
    """Return -w y log p - (1 - y) log(1 - p) of the sigmoid p of each logit.

    binary_cross_entropy.py.
    """
    losses_BC = lists.config.pos_weight * lists.grades * jax.nn.softplus(-lists.logits)
    losses_BC += (1 - lists.grades) * jax.nn.softplus(lists.logits)
    return losses_BC, lists.present


def list_cross_entropy(lists: Lists) -> Compared:
    """Return each list's cross-entropy to the softmax of the grades (ListNet; list_net.py)."""
    shares_BC = jax.nn.softmax(jnp.where(lists.present, lists.grades, _NEVER))
    logs_BC = jax.nn.log_softmax(jnp.where(lists.present, lists.logits, _NEVER))
    return -jnp.sum(shares_BC * logs_BC, axis=1), lists.present[:, 0]


def margin_mse(lists: Lists) -> Compared:
    """Return the squared errors of the best document's margins, against those of a teacher.

    The best is the first of the highest grade (Hofstaetter et al. 2020; margin_mse.py).
    """
    best_B1 = jnp.argmax(lists.grades, axis=1, keepdims=True)
    is_other_BC = jnp.arange(lists.grades.shape[1])[None] != best_B1
    errors_BC = square_margins(lists.logits, lists.teacher, best_B1)
    return errors_BC, lists.present & is_other_BC


def ranknet(lists: Lists) -> Compared:
    """Return log2(1 + exp(-difference)) of documents of which the first is better (rank_net.py).

    With k one of the two is among the first k by the logits. How many these are hangs on the
    logits, which no divisor may: what is left counts for all.
    """
    is_there_BCC = lists.present[:, :, None] & lists.present[:, None]
    is_pair_BCC = is_there_BCC & (lists.grades[:, :, None] > lists.grades[:, None])
    losses_BCC = lists.logits[:, None] - lists.logits[:, :, None]
    losses_BCC = jax.nn.softplus(losses_BCC) / math.log(2)
    if lists.config.k is None:
        return losses_BCC, is_pair_BCC
    is_first_BC = find_places(lists) < lists.config.k
    is_left_BCC = is_pair_BCC & (is_first_BC[:, :, None] | is_first_BC[:, None])
    share = jnp.sum(is_left_BCC) / jnp.maximum(jnp.sum(is_pair_BCC), 1)
    return losses_BCC * is_left_BCC / jnp.maximum(share, _TINY), is_pair_BCC


def lambda_loss(lists: Lists) -> Compared:
    """Return the same by the weights of NDCG-Loss2++ (lambda_loss.py)."""
    losses_BCC, is_pair_BCC = ranknet(lists)
    gains_BC = (2.0**lists.grades - 1) * lists.present
    discounts_C = 1 / jnp.log2(jnp.arange(2, gains_BC.shape[1] + 2))
    ideal_BC = -jnp.sort(-gains_BC) * discounts_C[None]
    best_B1 = jnp.sum(ideal_BC[:, : lists.config.k], axis=1, keepdims=True)

    # By the distance of two places, and by the places themselves.
    places_BC = find_places(lists)
    steps_C = jnp.append(0.0, discounts_C[:-1] - discounts_C[1:])
    weights_BCC = _MU * steps_C[_differ(places_BC)] + _differ(discounts_C[places_BC])
    return losses_BCC * weights_BCC * _differ(gains_BC / jnp.maximum(best_B1, _TINY)), is_pair_BCC


def find_places(lists: Lists) -> Array:
    """Return the place of each document by its logit, from 0; those that are absent are last."""
    order_BC = jnp.argsort(jnp.where(lists.present, -lists.logits, jnp.inf))
    return jnp.argsort(order_BC)


def _differ(values_BC: Array) -> Array:
    return jnp.abs(values_BC[:, :, None] - values_BC[:, None])


def multiple_negatives(lists: Lists) -> Compared:
    """Return each list's cross-entropy of its first document, by a multiple of the sigmoid.

    multiple_negatives_ranking.py; the lists are those of `add_negatives`.
    """
    scores_BC = lists.config.scale * jax.nn.sigmoid(lists.logits)
    scores_BC = jnp.where(lists.present, scores_BC, _NEVER)
    return jax.nn.logsumexp(scores_BC, axis=1) - scores_BC[:, 0], lists.present[:, 0]


# By the names of ranking.loss.
LOSSES: dict[str, Callable[[Lists], Compared]] = {
    'binary_cross_entropy': binary_cross_entropy,
    'list_cross_entropy': list_cross_entropy,
    'lambda': lambda_loss,
    'ranknet': ranknet,
    'margin_mse': margin_mse,
    'multiple_negatives': multiple_negatives,
}


def add_negatives(
    batch: Mapping[str, np.ndarray], seed: Sequence[int], count: int
) -> dict[str, Any]:
    """Return a batch, each query beside drawn documents of other examples too, of grade 0.

    Each is as likely, none comes twice; all of them where they are few. Of a document there is what
    stands beside its own query, and no more than the row has place for.

    Args:
      batch: rows [B, C, T] and what is known of them, on the host.
      seed: names the draw.
      count: how many are drawn.
    """
    ids_BCT, lengths_BC = batch['input_ids'], batch['input_mask'].sum(-1)
    B, C, T = ids_BCT.shape
    K, rows = min(count, (B - 1) * C), dict(batch)
    for name, array in batch.items():
        if array.ndim == 3:
            rows[name] = np.pad(array, ((0, 0), (0, K), (0, 0)))
    # Of what is not there the first token stays, as of any absent document.
    rows['input_ids'][:, C:, 0], rows['input_mask'][:, C:, 0] = ids_BCT[0, 0, 0], 1

    # A row ends with a separator, and so does its query.
    last_BC1 = np.take_along_axis(ids_BCT, lengths_BC[..., None] - 1, 2)
    ends_BC = 1 + np.argmax(ids_BCT[..., 1:] == last_BC1, axis=-1)
    documents = np.argwhere(lengths_BC > 1).tolist()
    lots_BN = np.random.Philox(seed).random_raw(B * len(documents)).reshape(B, -1)
    for b in range(B):
        drawn = [documents[n] for n in lots_BN[b].argsort() if documents[n][0] != b]
        for k, (other, c) in enumerate(drawn[:K]):
            query, document = slice(ends_BC[b, 0]), slice(ends_BC[other, c], lengths_BC[other, c])
            for name in ('input_ids', 'input_mask', 'segment_ids'):
                row = np.append(batch[name][b, 0, query], batch[name][other, c, document])
                size = min(len(row), T)
                rows[name][b, C + k, :size] = row[:size]
                rows[name][b, C + k, size - 1] = row[-1]
    return rows


def guess_alike(config: RankingConfig, batch: Batch) -> Array:
    """Return the best logit [B, C, 1] that is the same for all, in an order by lot."""
    present_BC1 = batch['input_mask'][..., 1:2] > 0
    share = jnp.clip(jnp.sum(batch['labels']) / jnp.sum(present_BC1), 1e-6, 1 - 1e-6)
    order_BC1 = 1e-6 * jax.random.normal(jax.random.key(0), present_BC1.shape)
    return jnp.log(config.pos_weight * share / (1 - share)) + order_BC1


def make_ranking_objective(model: Any, config: RankingConfig) -> Objective:
    """Make the objective of a reranker, as `config` chooses it.

    batch['labels'] and batch['teacher_scores'] are float32 [B, C, 1]: grades, and what another
    model gives.

    Args:
      model: gives logits [B, C, 1] of rows [B, C, T].
      config: which loss.
    """

    def prepare(batch: Mapping[str, np.ndarray], seed: Sequence[int]) -> dict[str, Any]:
        if config.reads.in_batch:
            return add_negatives(batch, seed, config.num_negatives)
        return dict(batch)

    def compare(logits_BC1: Array, batch: Batch) -> Compared:
        given = (array[..., 0] for array in (batch['labels'], batch['teacher_scores']))
        lists = Lists(config, logits_BC1[..., 0], find_present(batch), *given)
        return LOSSES[config.loss](lists)

    def evaluate(
        guess: Callable[[Batch], Array], features: Mapping[str, np.ndarray], batch_size: int
    ) -> float:
        """Return the loss that some logits have on the first examples."""
        first = batch_size if config.reads.in_batch else _GUESSED
        rows = prepare({name: array[:first] for name, array in features.items()}, [0])
        rows['example_weights'] = np.ones(len(rows['labels']), np.float32)
        total, count = sum_weighted(*compare(guess(rows), rows))
        return float(total / count)

    least = None
    if config.reads.to_grades:
        least = functools.partial(evaluate, lambda batch: batch['labels'])
    # What is compared hangs on no logits.
    objective = make_mean_objective(
        model,
        lambda logits_BC1, batch: {'loss': compare(logits_BC1, batch)[0]},
        lambda batch: compare(batch['labels'], batch)[1],
    )
    return Objective(
        objective.sums,
        objective.weights,
        config.k is not None,
        functools.partial(evaluate, functools.partial(guess_alike, config)),
        config.reads.in_batch,
        least,
        prepare=prepare,
    )
