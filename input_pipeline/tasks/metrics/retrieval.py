"""Scores of rankings: nDCG, MRR, MAP, recall, precision and accuracy at a depth.

Owns what each score is, query by query, and the order of documents that are equally near. Where
relevance is yes or no they are those of sentence-transformers' InformationRetrievalEvaluator; where
there are grades, those of trec_eval. It must not know models, vectors or files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bert_jax.configs.errors import UserError

Grades = Mapping[str, int]  # of a query: a document's id -> its grade; 0 and less is not relevant
NDCG, MRR, MAP = 10, 10, 100  # the depths that benchmarks state
DEPTHS = (1, 3, 5, 10, 100)  # of the other scores
DEPTH = max(NDCG, MRR, MAP, *DEPTHS)  # how much of a ranking is read


def is_graded(grades_of: Mapping[str, Grades]) -> bool:
    """Tell whether some document is more relevant than others."""
    return any(grade > 1 for grades in grades_of.values() for grade in grades.values())


def order_of_ties(ids: Collection[str], graded: bool) -> list[str]:
    """Return the ids in the order that documents have whose scores are equal.

    By id, as text: upwards in sentence-transformers, downwards in trec_eval.
    """
    return sorted(ids, reverse=graded)


def ranked(scores_of: Mapping[str, float], graded: bool) -> list[str]:
    """Return documents by their scores, the greatest first; scores are compared in float32."""
    order = order_of_ties(scores_of, graded)
    return sorted(order, key=lambda name: -np.float32(scores_of[name]))


def scores(
    rankings: Mapping[str, Sequence[str]], grades_of: Mapping[str, Grades]
) -> dict[str, np.ndarray]:
    """Return score -> its values [Q], one for each query of `grades_of` in its order.

    A document without a grade is not relevant. With grades, nDCG's gain is the grade, and MAP
    divides by all relevant documents; without, by no more than its depth.

    Args:
      rankings: a query's id -> ids of documents, the nearest first; a query may have no ranking.
      grades_of: a query's id -> its grades.

    Raises:
      UserError: a query has no relevant document, or a ranking has a document twice.
    """
    graded = is_graded(grades_of)
    rows = []
    for query, grades in grades_of.items():
        ranking = list(rankings.get(query, ()))
        if len(set(ranking)) < len(ranking):
            twice = next(name for n, name in enumerate(ranking) if name in ranking[:n])
            raise UserError(
                f'query {query!r}: document {twice!r} is twice in its ranking: leave one of them'
                ' out'
            )
        rows.append(_of_query(query, ranking, grades, graded))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _of_query(query: str, ranking: Sequence[str], grades: Grades, graded: bool) -> dict[str, float]:
    """Return the scores of one query."""
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    if not ideal:
        raise UserError(
            f'query {query!r} has no relevant document: leave it out of the relevance judgements'
        )
    gains = np.zeros(DEPTH)
    top = [max(grades.get(document, 0), 0) for document in ranking[:DEPTH]]
    gains[: len(top)] = top
    hits = gains > 0
    ranks = np.arange(1, DEPTH + 1)
    first = int(hits.argmax()) + 1 if hits.any() else DEPTH + 1

    precisions = np.cumsum(hits) / ranks
    relevant = len(ideal) if graded else min(MAP, len(ideal))
    values = {
        f'ndcg@{NDCG}': _dcg(gains[:NDCG]) / _dcg(np.array(ideal[:NDCG])),
        f'mrr@{MRR}': 1 / first if first <= MRR else 0.0,
        f'map@{MAP}': float(precisions[:MAP][hits[:MAP]].sum()) / relevant,
    }
    for depth in DEPTHS:
        right = int(hits[:depth].sum())
        values[f'accuracy@{depth}'] = float(right > 0)
        values[f'precision@{depth}'] = right / depth
        values[f'recall@{depth}'] = right / len(ideal)
    return values


def _dcg(gains: np.ndarray) -> float:
    """Return the sum of gains, each over the logarithm of its rank."""
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())
