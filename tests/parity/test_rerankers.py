"""Rerankers beside sentence-transformers: folders both ways, ranks, scores of the dev split."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.configs.errors import UserError
from bert_jax.inference import Bert, export
from bert_jax.input_pipeline.tasks.base import Predictions
from bert_jax.input_pipeline.tasks.ranking import METRICS, RankingExample, RankingTask
from tests.helpers import tiny_models

theirs = pytest.importorskip('sentence_transformers')
evaluation = pytest.importorskip('sentence_transformers.cross_encoder.evaluation')

QUERY = 'who is bad'
DOCUMENTS = ['paris is the capital of france', '', 'a bad film', 'good ' * 40, 'a bad film', 'un']


@pytest.mark.parametrize(
    'family, activation', [('bert', 'identity'), ('bert', 'sigmoid'), ('modernbert', 'sigmoid')]
)
def test_a_reranker_opens_there_with_the_same_ranks(family, activation, tmp_path):
    chosen = {'activation': activation, 'max_seq_length': 20}
    model = tiny_models.of_family(family, 'ranking', vocab_size=tiny_models.CONFIG.vocab_size)
    layer = {name: array[..., :1] for name, array in model.params['classifier'].items()}
    params = {**model.params, 'classifier': layer}
    model = model._replace(params=params, problem_type='regression', chosen=chosen)
    export.write(model, tiny_models.tokenizer(), 'sentence_transformers', str(tmp_path / 'ours'))
    export.export(str(tmp_path / 'ours'), 'sentence_transformers', str(tmp_path / 'out'))
    opened = theirs.CrossEncoder(str(tmp_path / 'out'), device='cpu')
    wanted = opened.rank(QUERY, DOCUMENTS)
    opened.save_pretrained(str(tmp_path / 'theirs'))
    for folder in ('out', 'theirs'):
        ours = Bert.load(tmp_path / folder, 'float32').rank(QUERY, DOCUMENTS)
        # Equal documents: here the first is first.
        assert [one['text'] for one in ours] == [DOCUMENTS[one['corpus_id']] for one in wanted]
        found = [one['score'] for one in ours]
        np.testing.assert_allclose(found, [one['score'] for one in wanted], atol=1e-5)
    assert np.ptp(found) > 1e-3
    places = [one['index'] for one in ours]
    assert places.index(2) + 1 == places.index(4)


class Given:
    """Scores of pairs, as their evaluators ask for them."""

    num_labels, model_card_data = 1, None

    def __init__(self, scores):
        self.scores = scores

    def predict(self, pairs, **_):
        return np.array(self.scores, np.float32)


@pytest.mark.parametrize('layout', ['labelled pairs', 'scored pairs'])
def test_scores_of_pairs(layout, monkeypatch):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60) if layout == 'labelled pairs' else random.random(60)
    logits = random.normal(size=60).astype(np.float32)
    examples = [
        RankingExample(str(n), layout, 'a', ('b',), (float(label),))
        for n, label in enumerate(labels)
    ]
    task = RankingTask('pairs', {}, METRICS[layout], {})
    found = task.score(examples, Predictions({str(n): (float(x),) for n, x in enumerate(logits)}))
    kind = evaluation.CrossEncoderClassificationEvaluator
    if layout == 'scored pairs':
        kind = evaluation.CrossEncoderCorrelationEvaluator
    monkeypatch.setattr(kind, 'store_metrics_in_model_card_data', lambda *_: None)
    evaluator = kind([['a', 'b']] * 60, labels.tolist(), write_csv=False)
    wanted = evaluator(Given(1 / (1 + np.exp(-logits))))
    assert len(found) > 1
    assert found == pytest.approx({name: wanted[name] for name in found}, abs=1e-6)


def test_several_labels_rank_nothing(tmp_path):
    model = tiny_models.model('BertForSequenceClassification')
    export.write(model, tiny_models.tokenizer(), 'huggingface', str(tmp_path / 'ours'))
    theirs.CrossEncoder(str(tmp_path / 'ours'), device='cpu').save_pretrained(str(tmp_path / 'st'))
    bert = Bert.load(tmp_path / 'st')
    assert bert.source.bert.head == 'classifier'
    with pytest.raises(UserError, match='gives a pair no single score'):
        bert.rank(QUERY, DOCUMENTS)
