"""Reading again what a search has found: scores of (query, document) pairs, and the new order.

  from bert_jax.inference.reranker import load_scorer, rank

  rank(load_scorer('runs/reranker'), 'Where is the station?', ['It is blue.', 'By the river.'])
  # [{'index': 1, 'score': 0.98, 'text': 'By the river.'}, ...]

Owns the order of documents by their scores. What scores pairs is a `Scorer`: here a cross-encoder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from scipy import special

from bert_jax.configs.errors import UserError, check_count
from bert_jax.inference import pipelines
from bert_jax.inference.predictor import Predictor, find_pipeline, read_training_options
from bert_jax.inference.text_encoder import TextEncoder
from bert_jax.runs.sources.source import Source, read_source


class Scorer(Protocol):
    """What scores pairs of a query and a document, any number of them in bounded memory."""

    def iterate_logits(self, pairs: Iterable[tuple[str, str]]) -> Iterator[float]:
        """Yield a number for each pair, more for better ones, which ranks them."""

    def activate(self, logit: float) -> float:
        """Return the score that is shown for such a number."""


class CrossEncoder:
    """A classifier of pairs with one output; what is too long is cut from the longer text."""

    def __init__(self, source: Source, compute_dtype: str = 'auto'):
        """Put the model on the devices. UserError where it does not give a pair one number."""
        model = source.bert
        if find_pipeline(model) is not pipelines.Regression or model.outputs != 1:
            raise UserError(
                f'{source.where}: {model.architecture} of this kind gives a pair no single score:'
                ' name a model of a task of kind ranking, or a cross-encoder with one label'
            )
        self._is_sigmoid = model.chosen.get('activation') == 'sigmoid'
        length = read_training_options(source.where)[0] or model.longest_row
        # What ranks are logits: a sigmoid makes large ones equal.
        bare = source.changed(chosen={})
        self._predictor = Predictor(bare, length, {'texts': 2}, compute_dtype=compute_dtype)

    def iterate_logits(self, pairs: Iterable[tuple[str, str]]) -> Iterator[float]:
        """Yield the logit of each pair; some hundreds go through the device together, by length."""
        for answer in self._predictor.stream(pairs):
            yield answer['value']

    def activate(self, logit: float) -> float:
        """Return the model's score, after its activation."""
        return float(special.expit(logit)) if self._is_sigmoid else logit


def make_scorer(source: Source, compute_dtype: str = 'auto') -> Scorer:
    """Return what scores pairs by a model: its own number, or its vectors. UserError for none."""
    if source.bert.sentence is None:
        return CrossEncoder(source, compute_dtype)
    return TextEncoder(source, compute_dtype=compute_dtype)


def load_scorer(init_from: str) -> Scorer:
    """Load what scores pairs, any source of --init_from. UserError where it scores none."""
    return make_scorer(read_source(init_from), 'float32')  # what is scored hangs on no processor


def rank(
    scorer: Scorer, query: str, documents: Sequence[str], top: int | None = None
) -> list[dict[str, Any]]:
    """Return {'index', 'score', 'text'} of the `top` documents, best first; ties by index.

    They are ranked by the numbers before the activation, which the scores are after. None: all.
    """
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise UserError(f'documents={documents!r} must be a list of texts')
    check_count('top', top)
    documents = list(documents)
    logits = list(_iterate_finite(scorer, ((query, document) for document in documents)))
    ranked = []
    for index in np.argsort(-np.array(logits), kind='stable')[:top].tolist():
        score = scorer.activate(logits[index])
        ranked.append({'index': index, 'score': score, 'text': documents[index]})
    return ranked


class Reranker:
    """A model that reads the first documents of rankings again."""

    def __init__(self, name: str, depth: int = 100):
        """Load it, any source of --init_from; it reads `depth` documents of each ranking."""
        self.name, self.depth, self._scorer = name, depth, load_scorer(name)

    def score(
        self,
        queries: Mapping[str, str],
        documents: Mapping[str, str],
        rankings: Mapping[str, Sequence[str]],
    ) -> dict[str, dict[str, float]]:
        """Return {query's id: {document's id: number}} of the first documents of rankings.

        Args:
          queries: id -> text.
          documents: id -> text.
          rankings: a query's id -> ids of documents, the best first; a query may have none.
        """
        first = {query: rankings.get(query, ())[: self.depth] for query in queries}

        # One by one: the pairs of all queries need not be in memory.
        def iterate_pairs() -> Iterator[tuple[str, str]]:
            for query, names in first.items():
                for name in names:
                    yield queries[query], documents[name]

        logits, scores = _iterate_finite(self._scorer, iterate_pairs()), {}
        for query, names in first.items():
            scores[query] = dict(zip(names, itertools.islice(logits, len(names)), strict=True))
        return scores


def _iterate_finite(scorer: Scorer, pairs: Iterable[tuple[str, str]]) -> Iterator[float]:
    """Yield the number of each pair. UserError for one that has no place in an order."""
    for logit in scorer.iterate_logits(pairs):
        if not math.isfinite(logit):
            raise UserError(
                f'the reranker gives a pair {logit}, which has no place in an order: its weights'
                ' are damaged'
            )
        yield logit
