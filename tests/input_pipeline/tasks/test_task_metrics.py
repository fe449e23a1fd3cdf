"""The report of classes: scikit-learn's numbers in 80 columns, whatever the labels are called."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn import metrics

from bert_jax.input_pipeline.tasks.task_metrics import (
    _count_columns,
    write_class_scores,
    write_confusions,
)


@pytest.mark.parametrize(
    'labels',
    [
        [f'a label with a name of more than forty letters, {i}' for i in range(6)],
        ['좋은 영화라고 생각합니다 정말로 좋은 영화라고 생각합니다', '별로예요', 'o'],
        [f'intent_{i}' for i in range(40)],
    ],
)
def test_numbers_are_scikit_learns_and_lines_fit(labels):
    rng, C = np.random.default_rng(0), len(labels)
    truth, predicted = rng.integers(0, C, 300), rng.integers(0, C, 300)
    predicted[:200] = truth[:200]
    text = write_class_scores(labels, truth, predicted)
    matrix = write_confusions(labels, truth, predicted)
    assert max(map(_count_columns, f'{text}\n{matrix}'.split('\n'))) <= 80
    assert 'accuracy' in text

    rows = text.split('\n')[2 : 2 + C]
    supports = [int(row.split()[-1]) for row in rows]
    assert supports == np.bincount(truth, minlength=C).tolist()

    counts = metrics.confusion_matrix(truth, predicted)
    if C < 10:
        for row, expected in zip(matrix.split('\n')[1:], counts, strict=True):
            assert [int(n) for n in row.split()[-C:]] == expected.tolist()
    else:
        wrong = counts * (1 - np.eye(C, dtype=int))
        first = re.fullmatch(r' *(\d+) intent_(\d+) -> intent_(\d+)', matrix.split('\n')[1])
        assert int(first[1]) == wrong.max() == wrong[int(first[2]), int(first[3])]
