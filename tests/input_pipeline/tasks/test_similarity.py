"""Scores of similarities by hand, intervals against the exact ones, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from bert_jax.input_pipeline.tasks import similarity
from bert_jax.input_pipeline.tasks.task_metrics import bootstrap
from tests.helpers.refusals import refused


def test_pairs_that_match():
    # By similarity: 1 | 0, 1 | 0; the two of 0.5 are on one side.
    found = similarity.matches(np.array([1, 0, 1, 0]), np.array([0.75, 0.5, 0.5, 0.25], np.float32))
    assert found == pytest.approx(
        {
            'accuracy': 3 / 4,
            'accuracy_threshold': 0.625,
            'f1': 2 * (2 / 3) / (2 / 3 + 1),
            'f1_threshold': 0.375,
            'precision': 2 / 3,
            'recall': 1,
            'ap': 1 / 2 + 1 / 2 * 2 / 3,
            'mcc': (2 * 1 - 1 * 0) / np.sqrt(3 * 2 * 2 * 1),
        }
    )


def test_no_pair_is_better_than_all_below():
    found = similarity.matches(np.array([0, 0, 1]), np.array([0.5, 0.5, 0.25], np.float32))
    assert (found['accuracy'], found['f1'], found['recall']) == (2 / 3, 0.5, 1)
    assert 0.5 < found['accuracy_threshold'] < 0.5001


def test_intervals_are_those_of_the_binomial():
    values = np.repeat([1.0, 0.0], [60, 40])
    mean = lambda chosen: {'mean': values[chosen].mean()}
    (low, high) = bootstrap(mean, 100, 2000, seed=1)['mean']
    wanted = np.array(scipy.stats.binom(100, 0.6).interval(0.95)) / 100
    assert (low, high) == pytest.approx(wanted, abs=0.011)
    assert bootstrap(mean, 100, 20, seed=1) == bootstrap(mean, 100, 20, seed=1)
    assert bootstrap(mean, 100, 20, seed=1) != bootstrap(mean, 100, 20, seed=2)
    assert bootstrap(mean, 100, 0, seed=1) == {}


HEADER = 'sentence1\tsentence2\tscore\tlabel\n'


def test_pairs_are_read_by_their_columns(tmp_path):
    (tmp_path / 'a.tsv').write_text(HEADER + 'a\tb\t5\t1\nc\td\t0.5\t0\n')
    found = similarity.read_scored(str(tmp_path / 'a.tsv'))
    assert (found.a, found.b, list(found.numbers)) == (['a', 'c'], ['b', 'd'], [5, 0.5])
    found = similarity.read_labelled(str(tmp_path / 'a.tsv'), {'text': 1, 'text_b': 'sentence1'})
    assert (found.a, found.b, list(found.numbers)) == (['b', 'd'], ['a', 'c'], [1, 0])
    (tmp_path / 'a.csv').write_text('"x, y",z,1\nu,v,0\n')
    places = {'text': 0, 'text_b': 1, 'score': 2}
    assert similarity.read_scored(str(tmp_path / 'a.csv'), places, header=False).a == ['x, y', 'u']


@pytest.mark.parametrize(
    'reader, row, message',
    [
        (similarity.read_scored, 'a\tb\t5.1\t1\n', r'a.tsv:3: score 5.1 is outside 0 to 5'),
        (similarity.read_scored, '', r'a.tsv: 1 pairs in it: two or more are needed'),
        (similarity.read_labelled, 'a\tb\t5\t2\n', r'a.tsv:3: label 2 must be 0 or 1'),
        (similarity.read_labelled, 'a\tb\t5\t1\n', r'a.tsv: all labels are 1'),
    ],
)
def test_pairs_that_are_refused(tmp_path, reader, row, message):
    (tmp_path / 'a.tsv').write_text(HEADER + 'a\tb\t5\t1\n' + row)
    with refused(message):
        reader(str(tmp_path / 'a.tsv'))
    with refused("--columns: 'text_a' is not among text, text_b"):
        reader(str(tmp_path / 'a.tsv'), {'text_a': 0})
