"""Vectors of texts, scored: retrieval, similarity (STS), pairs that match, translations.

  from bert_jax.runs.vector_evaluation import evaluate_retrieval

  embedder = lambda texts, prompt: bert.embed(texts, prompt=prompt)
  evaluate_retrieval(embedder, 'scifact')['metrics']['ndcg@10']

Owns the way from a file to a report: which texts are embedded, with which prompt, and what is
compared with what. The vectors are anyone's; the scores are those of
input_pipeline/tasks/beir.py and similarity.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Similarity
from bert_jax.inference.reranker import Reranker
from bert_jax.inference.semantic_search import nearest
from bert_jax.input_pipeline.tasks import beir, similarity
from bert_jax.input_pipeline.tasks.task_metrics import bootstrap
from bert_jax.model.text_vectors import TextVectors, read_vectors

# Makes vectors of texts, as `Bert.embed` gives them; the second argument names a prompt, 'query' or
# 'document', or none.
Embedder = Callable[[Sequence[str], str | None], Any]
# As JSON: what was scored on what, and the scores.
Report = dict[str, Any]
DRAWS = 1000


def evaluate_retrieval(
    embedder: Embedder,
    folder: str,
    split: str = 'test',
    compare: Similarity = 'cosine',
    draws: int = DRAWS,
    seed: int = 0,
    reranker: Reranker | None = None,
) -> Report:
    """Search the corpus of a folder in BEIR's layout for each query; return the scores.

    Where relevance is yes or no they are those of sentence-transformers'
    InformationRetrievalEvaluator; where there are grades above 1, those of trec_eval.

    Args:
      embedder: gives queries with the prompt 'query', documents with 'document'.
      folder: has corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.
      split: which queries.
      compare: how vectors are compared.
      draws: of the bootstrap over queries; 0 gives no intervals.
      seed: of the draws.
      reranker: what puts the nearest documents in an order of its own; None: nothing.

    Raises:
      UserError: a file is not as expected, or has an id that does not fit.
    """
    given = beir.read_retrieval_set(folder, split)
    # In the order of ties, so that the lower index is the right one.
    ids = beir.sort_ties(given.documents, beir.is_graded(given.grades))
    documents = _embed_once(embedder, [given.documents[name] for name in ids], 'document', compare)
    queries = _embed_once(embedder, list(given.queries.values()), 'query', compare)
    depth = max(beir.DEPTH, reranker.depth if reranker else 0)
    _, indices_QK = nearest(queries, documents, depth)
    rankings = {
        query: [ids[index] for index in indices_K]
        for query, indices_K in zip(given.queries, indices_QK)
    }
    report: Report = {'task': 'retrieval', 'data': folder, 'split': split}
    report |= _score_rankings(rankings, given, draws, seed, reranker) | {'similarity': compare}
    for side, vectors in (('query', queries), ('corpus', documents)):
        for name, value in vectors.describe().items():
            report['metrics'][f'{side}_{name}'] = value
    return report


def evaluate_run(
    path: str,
    folder: str,
    split: str = 'test',
    draws: int = DRAWS,
    seed: int = 0,
    reranker: Reranker | None = None,
) -> Report:
    """Score anyone's ranking, a run in TREC's format; arguments as of `evaluate_retrieval`.

    Raises:
      UserError: as there, or nothing of the ranking is in the folder.
    """
    given = beir.read_retrieval_set(folder, split)
    graded = beir.is_graded(given.grades)
    run = beir.read_run(path)
    documents = {name for scores in run.values() for name in scores}
    for what, of_run, here in (
        ('queries', run.keys(), given.queries.keys()),
        ('documents', documents, given.documents.keys()),
    ):
        if of_run.isdisjoint(here):
            raise UserError(f'{path}: none of its {what} is in {folder}: name a ranking of these')
    strange = sorted(documents - given.documents.keys())
    if reranker is not None and strange:
        raise UserError(f'{path}: document {strange[0]!r} is not in {folder}, to be read again')
    rankings = {query: beir.ranked(scores, graded) for query, scores in run.items()}
    report = {'task': 'retrieval', 'data': folder, 'split': split}
    report |= _score_rankings(rankings, given, draws, seed, reranker)
    return report | {'predictions': path}


def evaluate_similarity(
    embedder: Embedder,
    path: str,
    columns: Mapping[str, str | int] | None = None,
    header: bool = True,
    span: tuple[float, float] = similarity.STS,
    compare: Similarity = 'cosine',
    draws: int = DRAWS,
    seed: int = 0,
) -> Report:
    """Compare the similarity of two texts with the score that people gave (STS).

    As sentence-transformers' EmbeddingSimilarityEvaluator.

    Args:
      embedder: gives vectors; no prompt is asked for.
      path: a table of similarity.
      columns: the names of 'text', 'text_b' and 'score', where they are not sentence1, sentence2
        and score.
      header: whether the first line names the columns.
      span: the least and the greatest score that may be.
      compare: how vectors are compared.
      draws: of the bootstrap over pairs; 0 gives no intervals.
      seed: of the draws.

    Raises:
      UserError: the file is not as expected, or a score is outside `span`.
    """
    given = similarity.read_scored(path, columns, header, span)
    alike = _compare_pairs(embedder, given, compare)

    def score(chosen: Any) -> dict[str, float]:
        return similarity.correlate_scores(given.numbers[chosen], alike[chosen])

    report = {'task': 'sts', 'data': path, 'similarity': compare, 'metric': 'spearman'}
    return report | _score_drawn(score, len(alike), draws, seed)


def evaluate_pairs(
    embedder: Embedder,
    path: str,
    columns: Mapping[str, str | int] | None = None,
    header: bool = True,
    compare: Similarity = 'cosine',
    draws: int = DRAWS,
    seed: int = 0,
) -> Report:
    """Part pairs that match from those that do not by their similarity.

    As sentence-transformers' BinaryClassificationEvaluator; arguments as of `evaluate_similarity`,
    with a column 'label' of 0 and 1.
    """
    given = similarity.read_labelled(path, columns, header)
    alike = _compare_pairs(embedder, given, compare)

    def score(chosen: Any) -> dict[str, float]:
        return similarity.matches(given.numbers[chosen], alike[chosen])

    report = {'task': 'pairs', 'data': path, 'similarity': compare, 'metric': 'ap'}
    return report | _score_drawn(score, len(alike), draws, seed)


def evaluate_translations(
    embedder: Embedder,
    texts: Mapping[str, Sequence[str]],
    compare: Similarity = 'cosine',
    draws: int = DRAWS,
    seed: int = 0,
) -> Report:
    """Look for the translation of each text among all texts of the other language, both ways.

    As sentence-transformers' TranslationEvaluator: the nearest is right too where it has the same
    words. bert-evaluate translations does it layer by layer, with the languages' difference added.

    Args:
      embedder: gives vectors; no prompt is asked for.
      texts: by language; text N of one is the translation of text N of the others.
      compare: how vectors are compared.
      draws: of the bootstrap over texts; 0 gives no intervals.
      seed: of the draws.
    """
    vectors = {name: _embed_once(embedder, of, None, compare) for name, of in texts.items()}
    values = {}
    for name, other in itertools.permutations(texts, 2):
        _, indices_N1 = nearest(vectors[name], vectors[other], 1)
        values[f'{name} -> {other}'] = similarity.translated(texts[other], indices_N1[:, 0])
    values['mean'] = np.mean(list(values.values()), axis=0)
    report = {'task': 'translations', 'data': list(texts), 'similarity': compare}
    return report | _score_means('mean', values, draws, seed)


def _score_rankings(
    rankings: Mapping[str, Sequence[str]],
    given: beir.RetrievalSet,
    draws: int,
    seed: int,
    reranker: Reranker | None = None,
) -> Report:
    """Return the scores of rankings; of what reads them again those after it, and `before`."""
    values = beir.scores(rankings, given.grades)
    report = _score_means('ndcg@10', values, draws, seed)
    report |= {'examples': len(given.queries), 'documents': len(given.documents)}
    if reranker is None:
        return report
    scores = reranker.score(given.queries, given.documents, rankings)
    graded, after = beir.is_graded(given.grades), {}
    for query, of_query in scores.items():
        # What is not read stays behind, as it was.
        after[query] = (
            beir.ranked(of_query, graded) + list(rankings.get(query, ()))[reranker.depth :]
        )
    return _score_rankings(after, given, draws, seed) | {
        'before': {name: report[name] for name in ('metrics', 'intervals')},
        'rerank': reranker.name,
        'depth': reranker.depth,
        'without_candidates': sum(not of_query for of_query in scores.values()),
    }


def _compare_pairs(embedder: Embedder, given: similarity.Pairs, compare: Similarity) -> np.ndarray:
    """Return how alike the two texts of each pair are, [N]."""
    vectors, count = _embed_once(embedder, [*given.a, *given.b], None, compare), len(given.a)
    return vectors.take(slice(count)).compare_pairs(vectors.take(slice(count, None)))


def _score_means(metric: str, values: Mapping[str, np.ndarray], draws: int, seed: int) -> Report:
    """Return the means of scores that each example has, and their intervals."""
    names, table_NM = list(values), np.stack(list(values.values()), axis=1).astype(np.float64)

    def average(chosen: Any) -> dict[str, float]:
        return dict(zip(names, map(float, table_NM[chosen].mean(axis=0))))

    return {'metric': metric} | _score_drawn(average, len(table_NM), draws, seed)


def _score_drawn(
    score: Callable[[Any], dict[str, float]], examples: int, draws: int, seed: int
) -> Report:
    """Return the scores of all examples, and their intervals; `score` takes the chosen ones."""
    return {
        'metrics': score(slice(None)),
        'intervals': bootstrap(score, examples, draws, seed),
        'examples': examples,
    }


def _embed_once(
    embedder: Embedder, texts: Sequence[str], prompt: str | None, compare: Similarity
) -> TextVectors:
    """Return the vectors of texts; equal texts are asked once."""
    once = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    vectors = read_vectors(embedder(list(once), prompt), compare)
    return vectors.take([once[text] for text in texts])
