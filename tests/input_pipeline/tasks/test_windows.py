"""Texts longer than a row in windows: all of a text is read, and its scores are their mean."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax.input_pipeline.tasks.classification import TextExample, make_text_task
from bert_jax.input_pipeline.tasks.features import count_cut, make_window_rows
from bert_jax.input_pipeline.tasks.multilabel import MultiLabelTask
from tests.helpers import tiny_models

TEXTS = ['what ' * 20, 'the capital', '']
WINDOWS = [0, 0, 0, 1, 2]  # of rows of 12: the first text has 20 pieces, 10 a row, 5 apart


@pytest.fixture(scope='module')
def tokenizer():
    return tiny_models.tokenizer()


@pytest.mark.parametrize('longer', [0, 1])
def test_the_shorter_of_a_pair_stands_in_every_window(tokenizer, longer):
    pair = [['the capital'], ['the capital']]
    pair[longer] = ['what ' * 20]
    rows = make_window_rows(*pair, tokenizer, 12, 7)
    short = tokenizer.encode('the capital')
    assert len(rows['example_index']) == 3
    begin = 1 if longer else 2 + 7
    for row, count in zip(rows['input_ids'], (7, 7, 6), strict=True):
        at = begin if longer else 2 + count
        assert row[at : at + 2].tolist() == short
    # Both are longer than half of a row: the other one loses its end, which is counted.
    rows = make_window_rows(['the ' * 15], ['what ' * 20], tokenizer, 13, 3)
    assert count_cut(rows).tolist() == [1, 1, 35, 10]


CLASSES = make_text_task('x', 'classification', ('no', 'yes'), ('accuracy',), {})
SETS = MultiLabelTask('x', 'multilabel', ('a', 'b'), ('micro_f1',), {}, thresholds={'a': 0.5})


@pytest.mark.parametrize(
    'task, label, logits, expected',
    [
        # One window of three is sure of "yes", and so is their mean.
        (CLASSES, 1, [[1, 0], [1, 0], [0, 3], [1, 0], [0, 1]], ['yes', 'no', 'yes']),
        (
            SETS,
            (0,),
            [[-1, 1], [-1, 1], [3, -3], [-1, -1], [1, 1]],
            [('a',), (), ('a', 'b')],
        ),
    ],
    ids=['classification', 'multilabel'],
)
def test_scores_are_the_mean_over_windows(tokenizer, task, label, logits, expected):
    examples = [TextExample(str(i), text, None, label) for i, text in enumerate(TEXTS)]
    assert len(task.features(examples, tokenizer, 12)['labels']) == 3  # cut, where nothing is said
    windowed = dataclasses.replace(task, doc_stride=5)
    rows = windowed.features(examples, tokenizer, 12)
    assert rows['example_index'].tolist() == WINDOWS and len(rows['labels']) == 5
    outputs = {'logits': np.array(logits, np.float32)}
    assert list(windowed.decode(examples, rows, outputs).answers.values()) == expected
