"""Vectors of texts, scored: retrieval, similarity (STS), pairs that match, translations.

  from bert_jax.runs.vector_evaluation import evaluate_retrieval

  embedder = lambda texts, prompt: bert.embed(texts, prompt=prompt)
  evaluate_retrieval(embedder, 'scifact')['metrics']['ndcg@10']

Owns the way from a file to a report: which texts are embedded, with which prompt, and what is
compared with what. The vectors are anyone's; the scores are those of
input_pipeline/tasks/beir.py and similarity.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.configs.model.sentence import Similarity
from bert_jax.inference.semantic_search import nearest
from bert_jax.input_pipeline.tasks import beir, similarity
from bert_jax.input_pipeline.tasks.task_metrics import bootstrap

# Makes vectors [N, D] of texts; the second argument names a prompt, 'query' or 'document', or none.
Embedder = Callable[[Sequence[str], str | None], np.ndarray]
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

    Raises:
      UserError: a file is not as expected, or has an id that does not fit.
    """
    given = beir.read_retrieval_set(folder, split)
    # In the order of ties, so that the lower index is the right one.
    ids = beir.order_of_ties(given.documents, beir.is_graded(given.grades))
    documents = _embedded(embedder, [given.documents[name] for name in ids], 'document', compare)
    queries = _embedded(embedder, list(given.queries.values()), 'query', compare)
    _, indices_QK = nearest(queries, documents, beir.DEPTH)
    rankings = {
        query: [ids[index] for index in indices_K]
        for query, indices_K in zip(given.queries, indices_QK)
    }
    report = _of_rankings(rankings, given, folder, split, draws, seed)
    return report | {'similarity': compare}


def evaluate_run(
    path: str, folder: str, split: str = 'test', draws: int = DRAWS, seed: int = 0
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
    rankings = {query: beir.ranked(scores, graded) for query, scores in run.items()}
    report = _of_rankings(rankings, given, folder, split, draws, seed)
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
    return _of_pairs(embedder, path, given, 'spearman', compare, draws, seed)


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
    return _of_pairs(embedder, path, given, 'ap', compare, draws, seed)


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
    vectors = {name: _embedded(embedder, of, None, compare) for name, of in texts.items()}
    values = {
        f'{name} -> {other}': similarity.translated(
            texts[other], nearest(vectors[name], vectors[other], 1)[1][:, 0]
        )
        for name in texts
        for other in texts
        if name != other
    }
    values['mean'] = np.mean(list(values.values()), axis=0)
    report = {'task': 'translations', 'data': list(texts), 'similarity': compare}
    return report | _means('mean', values, draws, seed) | {'examples': len(values['mean'])}


def _of_rankings(
    rankings: Mapping[str, Sequence[str]],
    given: beir.RetrievalSet,
    folder: str,
    split: str,
    draws: int,
    seed: int,
) -> Report:
    """Return the report on rankings."""
    values = beir.scores(rankings, given.grades)
    report = {'task': 'retrieval', 'data': folder, 'split': split}
    counts = {'examples': len(given.queries), 'documents': len(given.documents)}
    return report | _means('ndcg@10', values, draws, seed) | counts


def _of_pairs(
    embedder: Embedder,
    path: str,
    given: similarity.Pairs,
    metric: str,
    compare: Similarity,
    draws: int,
    seed: int,
) -> Report:
    """Return the report on pairs: correlations, or matches."""
    score = similarity.correlations if metric == 'spearman' else similarity.matches
    task = 'sts' if metric == 'spearman' else 'pairs'
    vectors = _embedded(embedder, [*given.a, *given.b], None, compare)
    alike = (vectors[: len(given.a)] * vectors[len(given.a) :]).sum(axis=-1)
    drawn = lambda chosen: score(given.numbers[chosen], alike[chosen])
    return {
        'task': task,
        'data': path,
        'similarity': compare,
        'metric': metric,
        'metrics': score(given.numbers, alike),
        'intervals': bootstrap(drawn, len(alike), draws, seed),
        'examples': len(alike),
    }


def _means(metric: str, values: Mapping[str, np.ndarray], draws: int, seed: int) -> Report:
    """Return the means of scores that each example has, and their intervals."""
    names, table_NM = list(values), np.stack(list(values.values()), axis=1).astype(np.float64)
    mean = lambda rows_NM: dict(zip(names, map(float, rows_NM.mean(axis=0))))
    return {
        'metric': metric,
        'metrics': mean(table_NM),
        'intervals': bootstrap(lambda chosen: mean(table_NM[chosen]), len(table_NM), draws, seed),
    }


def _embedded(
    embedder: Embedder, texts: Sequence[str], prompt: str | None, compare: Similarity
) -> np.ndarray:
    """Return the vectors of texts, whose products are similarities; equal texts are asked once."""
    once = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    vectors = similarity.compared(embedder(list(once), prompt), compare)
    return vectors[[once[text] for text in texts]]
