"""Scores of vectors against sentence-transformers' evaluators, on sets that are made up.

Vectors have four entries of a half among 12, so cosines are exact and many are equal.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from bert_jax.runs import vector_evaluation
from tests.helpers.files import write_beir

_REASON = 'PyTorch and sentence-transformers are not installed: bash launch/test.sh --parity'
torch = pytest.importorskip('torch', reason=_REASON)
theirs = pytest.importorskip('sentence_transformers', reason=_REASON)

from sentence_transformers.sentence_transformer import evaluation as evaluators
from sentence_transformers.util import cos_sim


class Table:
    """A model whose vectors are looked up, as both sides ask for them."""

    model_card_data = mock.MagicMock()
    similarity_fn_name = 'cosine'
    similarity = staticmethod(cos_sim)

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.vectors: dict[str, np.ndarray] = {}

    def __call__(self, texts, prompt=None):
        for text in texts:
            if text not in self.vectors:
                vector = np.zeros(12, np.float32)
                vector[self.random.permutation(12)[:4]] = self.random.choice([-0.5, 0.5], 4)
                self.vectors[text] = vector
        return np.stack([self.vectors[text] for text in texts])

    def encode(self, texts, convert_to_tensor=False, convert_to_numpy=True, **_):
        vectors = torch.tensor(self(texts))
        if convert_to_tensor:
            return vectors
        return vectors.numpy() if convert_to_numpy else list(vectors)

    encode_query = encode_document = encode


@pytest.mark.parametrize('seed', range(2))
def test_retrieval(tmp_path, seed):
    model, random = Table(seed), np.random.default_rng(seed)
    documents = {f'd{n}': f'document {n % 230}' for n in random.permutation(250)}
    queries = {f'q{n}': f'query {n}' for n in random.permutation(20)}
    # Up to 120 relevant documents; three queries are of another split.
    relevant = {
        name: set(random.permutation(list(documents))[: random.choice([1, 2, 7, 120])])
        for name in list(queries)[:17]
    }
    rows = [(query, name, 1) for query, of in relevant.items() for name in of]
    folder = write_beir(tmp_path, documents, queries, rows, 'dev')

    found = vector_evaluation.evaluate_retrieval(model, folder, 'dev', draws=0)['metrics']
    depths = [1, 3, 5, 10, 100]
    evaluator = evaluators.InformationRetrievalEvaluator(
        queries,
        documents,
        relevant,
        corpus_chunk_size=int(random.integers(40, 300)),
        accuracy_at_k=depths,
        precision_recall_at_k=depths,
        write_csv=False,
    )
    wanted = {key.removeprefix('cosine_'): value for key, value in evaluator(model).items()}
    assert found == pytest.approx(wanted, abs=1e-12)


def scores(found: dict, prefix: str = 'cosine') -> dict:
    """A report's scores by the names that sentence-transformers has."""
    return {f'{prefix}_{name}': value for name, value in found['metrics'].items()}


@pytest.mark.parametrize(('seed', 'exact'), [(0, True), (1, False)])
def test_pairs(tmp_path, seed, exact):
    model, random = Table(seed), np.random.default_rng(seed)
    # Equal texts are there, but no pair of them: its cosine is 1 but for rounding, here as there.
    a, b = ([f'{side} {n}' for n in random.integers(0, 150, 300)] for side in 'ab')
    if not exact:
        model.vectors = {t: random.standard_normal(12, np.float32) for t in {*a, *b}}
    labels, values = random.integers(0, 2, 300), random.integers(0, 6, 300)
    rows = zip(a, b, values, labels, strict=True)
    file = tmp_path / 'pairs.tsv'
    file.write_text(
        'sentence1\tsentence2\tscore\tlabel\n'
        + ''.join('\t'.join(map(str, row)) + '\n' for row in rows)
    )

    wanted = evaluators.BinaryClassificationEvaluator(a, b, labels.tolist(), write_csv=False)(model)
    found = vector_evaluation.evaluate_pairs(model, str(file), draws=0)
    assert scores(found) == pytest.approx(wanted, abs=1e-12 if exact else 1e-6)

    wanted = evaluators.EmbeddingSimilarityEvaluator(a, b, values.tolist(), write_csv=False)(model)
    found = vector_evaluation.evaluate_similarity(model, str(file), draws=0)['metrics']
    assert {f'{name}_cosine': value for name, value in found.items()} == pytest.approx(
        wanted, abs=1e-12 if exact else 1e-6
    )


def test_translations():
    model, random = Table(0), np.random.default_rng(0)
    # Some texts are there twice, and some are near what they translate.
    texts = {name: [f'{name} {n}' for n in random.integers(0, 60, 80)] for name in ('en', 'de')}
    for a, b in list(zip(texts['en'], texts['de'], strict=True))[::2]:
        model.vectors[b] = model([a])[0]
    wanted = evaluators.TranslationEvaluator(texts['en'], texts['de'], write_csv=False)(model)
    found = vector_evaluation.evaluate_translations(model, texts, draws=0)['metrics']
    assert found == pytest.approx(
        {
            'en -> de': wanted['src2trg_accuracy'],
            'de -> en': wanted['trg2src_accuracy'],
            'mean': wanted['mean_accuracy'],
        }
    )
    assert 0.1 < found['mean'] < 0.9
