"""Retrieval sets in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv; TREC's runs.

Owns what the files say, and that they fit each other. It must not know models or scores.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.encodings import read_utf8
from bert_jax.input_pipeline.text.tables import Table, unique_id


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


def read(folder: str, split: str = 'test') -> RetrievalSet:
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

    queries, documents = _texts(questions), _texts(corpus)
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
        if not (cells := line.split()):
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


def _texts(path: str) -> dict[str, str]:
    """Return id -> text of a file of JSON lines."""
    lines: dict[str, str] = {}
    texts = {}
    columns = {'id': '_id', 'title': 'title', 'text': 'text'}
    for location, row in Table(path, columns).rows(frozenset({'title'})):
        parts = (row.get('title', ''), row['text'])
        texts[unique_id(row, location, lines)] = ' '.join(parts).strip()
    return texts
