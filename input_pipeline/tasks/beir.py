"""Retrieval: sets in BEIR's layout, TREC's runs, and scores of rankings at a depth.

Sets are corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv. Scores are nDCG, MRR, MAP, recall,
precision and accuracy. Owns what the files say, and that they fit each other; what each score is,
query by query, and the order of documents that are equally near. Where relevance is yes or no the
scores are those of sentence-transformers' InformationRetrievalEvaluator; where there are grades,
those of trec_eval. It must not know models or vectors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import read_utf8
from bert_jax.input_pipeline.text.tables import Table, unique_id

Grades = Mapping[str, float]  # of a query: a document's id -> its grade; 0 and less is not relevant
NDCG, MRR, MAP = 10, 10, 100  # the depths that benchmarks state
DEPTHS = (1, 3, 5, 10, 100)  # of the other scores
DEPTH = max(NDCG, MRR, MAP, *DEPTHS)  # how much of a ranking is read


class RetrievalSet(NamedTuple):
    """Texts, and which of them answer which.

    Attributes:
      queries: id -> text, of the queries that have grades.
      documents: id -> text: its title, if it has one, a space and its text.
      grades: a query's id -> a document's id -> its grade; 0 and less is not relevant.
    """

    queries: dict[str, str]
    documents: dict[str, str]
    grades: dict[str, dict[str, int]]


def read_retrieval_set(folder: str, split: str = 'test') -> RetrievalSet:
    """Read the queries of a split, its relevance judgements and the corpus.

    Raises:
      UserError: a file is not there, an id repeats, or is in no other file where it must be; a
        grade is no whole number; a query has no relevant document.
    """
    corpus, questions = os.path.join(folder, 'corpus.jsonl'), os.path.join(folder, 'queries.jsonl')
    judged = os.path.join(folder, 'qrels', f'{split}.tsv')
    columns = {'query': 'query-id', 'document': 'corpus-id', 'grade': 'score'}
    rows = list(Table(judged, columns).rows())  # the smallest first: a wrong split is seen at once
    if not rows:
        raise UserError(f'{judged}: no rows in it')

    queries, documents = _read_texts(questions), _read_texts(corpus)
    grades: dict[str, dict[str, int]] = {}
    for location, row in rows:
        query, document = row['query'], row['document']
        if query not in queries:
            raise UserError(f'{location}: query {query!r} is not in {questions}')
        if document not in documents:
            raise UserError(f'{location}: document {document!r} is not in {corpus}')
        if document in grades.setdefault(query, {}):
            raise UserError(f'{location}: query {query!r} and document {document!r} again')
        try:
            grades[query][document] = int(row['grade'])
        except ValueError:
            raise UserError(
                f'{location}: score {row["grade"]!r} is not a whole number: 0 is not relevant, 1'
                ' is, more is a grade'
            ) from None
    for query, of_query in grades.items():
        if max(of_query.values()) < 1:
            raise UserError(
                f'{judged}: query {query!r} has no relevant document (a score of 1 or more): leave'
                ' it out'
            )
    return RetrievalSet({query: queries[query] for query in grades}, documents, grades)


def read_run(path: str) -> dict[str, dict[str, float]]:
    """Read what a search has found, in TREC's format: query, Q0, document, rank, score, name.

    Returns:
      A query's id -> a document's id -> its score. The rank is not read, as trec_eval does not.

    Raises:
      UserError: a line is not of that format, or a document is twice in the ranking of a query.
    """
    scores: dict[str, dict[str, float]] = {}
    for number, line in enumerate(read_utf8(path).split('\n'), start=1):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 6:
            raise UserError(
                f'{path}:{number}: {len(cells)} columns where a run has six: query, Q0, document,'
                ' rank, score, name'
            )
        query, _, document, _, score, _ = cells
        if document in scores.setdefault(query, {}):
            raise UserError(f'{path}:{number}: query {query!r} and document {document!r} again')
        try:
            scores[query][document] = float(score)
            if math.isnan(scores[query][document]):  # it has no place in an order
                raise ValueError
        except ValueError:
            raise UserError(f'{path}:{number}: score {score!r} is not a number') from None
    return scores


def _read_texts(path: str) -> dict[str, str]:
    """Return id -> text of a file of JSON lines."""
    lines: dict[str, str] = {}
    texts = {}
    columns = {'id': '_id', 'title': 'title', 'text': 'text'}
    for location, row in Table(path, columns).rows(frozenset({'title'})):
        parts = (row.get('title', ''), row['text'])
        texts[unique_id(row, location, lines)] = ' '.join(parts).strip()
    return texts


# ---- scores of rankings


def is_graded(grades_of: Mapping[str, Grades]) -> bool:
    """Tell whether some document is more relevant than others."""
    return any(max(grades.values(), default=0) > 1 for grades in grades_of.values())


def sort_ties(ids: Collection[str], graded: bool) -> list[str]:
    """Return the ids in the order that documents have whose scores are equal.

    By id, as text: upwards in sentence-transformers, downwards in trec_eval.
    """
    return sorted(ids, reverse=graded)


def ranked(scores_of: Mapping[str, float], graded: bool) -> list[str]:
    """Return documents by their scores, the greatest first; scores are compared in float32."""
    order = sort_ties(scores_of, graded)
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
        rows.append(_score_query(query, ranking, grades, graded))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _score_query(
    query: str, ranking: Sequence[str], grades: Grades, graded: bool
) -> dict[str, float]:
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
