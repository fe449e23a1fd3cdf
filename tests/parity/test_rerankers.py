"""Rerankers beside sentence-transformers: folders both ways, and ranks."""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.inference import Bert, export
from tests.helpers import tiny_models

theirs = pytest.importorskip('sentence_transformers')

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
