"""Negatives of a batch for a reranker: rows as the tokenizer makes them, and how they are drawn.

tests/parity compares the losses with sentence-transformers.
"""

from __future__ import annotations

import numpy as np
import pytest

from bert_jax.configs.model.ranking import RankingConfig
from bert_jax.input_pipeline.tasks.features import make_text_rows
from bert_jax.input_pipeline.tasks.ranking import RankingExample, RankingTask
from bert_jax.input_pipeline.tokenizer.tokenizer_json import Layout
from bert_jax.train.losses.ranking import add_negatives, make_ranking_objective
from tests.helpers.tokenizer_folders import wordpiece

KEYS = ('input_ids', 'input_mask', 'segment_ids')
LISTS = {'a': ['b', 'c d e f g'], 'b c d': ['h'], 'e f': ['', 'a a a']}


def make_batch(tokenizer, length=9):
    examples = []
    for query, documents in LISTS.items():
        examples.append(RankingExample(query, 'lists', query, documents, (1,) * len(documents)))
    features = RankingTask('x', {}, (), {}).features(examples, tokenizer, length)
    return features | {'example_weights': np.ones(len(LISTS), np.float32)}


@pytest.mark.parametrize('layout', [Layout(), Layout(2, 0), Layout(2, 1, second_cls=True)])
def test_each_query_stands_beside_all_other_documents(layout, monkeypatch):
    """As long as a row has place; what has none loses the document's end."""
    tokenizer = wordpiece('abcdefgh')
    monkeypatch.setattr(type(tokenizer), 'layout', layout)
    added = add_negatives(make_batch(tokenizer), [0], 99)
    for number, query in enumerate(LISTS):
        others = [text for name, texts in LISTS.items() if name != query for text in texts]
        room = 9 - 2 - layout.separators - len(query.split())
        cut = [' '.join(text.split()[:room]) for text in others]
        wanted = make_text_rows([query] * len(cut), cut, tokenizer, 9)
        rows = {name: added[name][number, 2:] for name in KEYS}
        there = rows['input_mask'][:, 1] > 0
        assert there.sum() == len(others)
        for name in KEYS:
            assert sorted(rows[name][there].tolist()) == sorted(wanted[name].tolist())


def test_negatives_are_drawn_anew_in_each_step():
    batch, drawn = make_batch(wordpiece('abcdefgh')), set()
    for step in range(40):
        drawn.add(add_negatives(batch, (0, step), 1)['input_ids'][1, -1].tobytes())
    assert len(drawn) == 4  # of the second query, each as likely


@pytest.mark.parametrize(
    'loss, guess',
    [
        ('binary_cross_entropy', -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))),
        ('ranknet', 1),
        ('multiple_negatives', np.log(5)),
        ('list_cross_entropy', 2 / 3 * np.log(2)),
    ],
)
def test_what_guessing_has(loss, guess):
    """Scores that are all alike; a loss that is not 0 at its best says what it has there."""
    features = make_batch(wordpiece('abcdefgh'))
    features['labels'][:, 1:] = 0
    objective = make_ranking_objective(None, RankingConfig(loss))
    assert objective.constant(features, 3) == pytest.approx(guess, rel=1e-4)
    if loss != 'list_cross_entropy':
        assert objective.least is None
        return
    p = 1 / (1 + np.exp(-1))
    wanted = 2 / 3 * -(p * np.log(p) + (1 - p) * np.log(1 - p))
    assert objective.least(features, 3) == pytest.approx(wanted)
