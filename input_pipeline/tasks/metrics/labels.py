"""Metrics of label and number predictions, by name.

This file owns which library computes what (scikit-learn and scipy, imported only where
they are used: each costs seconds) and what is returned where a score is undefined. It
must not know tasks. Scores are fractions, not percent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of equal entries."""
    return float(np.mean(truth == predicted))


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return F1 of class 1 (GLUE: MRPC, QQP); 0 where it is never predicted and never true."""
    return _f1(truth == 1, predicted == 1, 'binary')


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean of every class's F1: each counts the same, however rare it is."""
    return _f1(truth, predicted, 'macro')


def micro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return F1 over all decisions, of sets of labels as columns of 0 and 1."""
    return _f1(truth, predicted, 'micro')


def _f1(truth: np.ndarray, predicted: np.ndarray, average: str) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average=average, zero_division=0))


def subset_accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of rows that are equal as a whole."""
    return float(np.mean((truth == predicted).all(axis=1)))


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the Matthews correlation (GLUE: CoLA); 0 where one class only is predicted."""
    from sklearn.metrics import matthews_corrcoef

    return _quiet(matthews_corrcoef, truth, predicted)


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the linear correlation (GLUE: STS-B); a constant prediction counts as 0."""
    from scipy.stats import pearsonr

    return _quiet(lambda *sides: pearsonr(*sides).statistic, truth, predicted)


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the rank correlation (GLUE: STS-B); a constant prediction counts as 0."""
    from scipy.stats import spearmanr

    return _quiet(lambda *sides: spearmanr(*sides).statistic, truth, predicted)


def _quiet(function: Callable, truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return a correlation; 0 where it is undefined: a constant model has found nothing."""
    if len(truth) < 2 or np.all(predicted == predicted[0]) or np.all(truth == truth[0]):
        return 0.0
    with warnings.catch_warnings():
        # scipy warns of nearly constant input, as an untrained model's predictions are
        warnings.simplefilter('ignore')
        return float(function(truth, predicted))


Metric = Callable[[np.ndarray, np.ndarray], float]
LABEL_METRICS: dict[str, Metric] = {
    'accuracy': accuracy,
    'f1': f1,
    'macro_f1': macro_f1,
    'matthews': matthews,
}
SET_METRICS: dict[str, Metric] = {
    'micro_f1': micro_f1,
    'macro_f1': macro_f1,
    'subset_accuracy': subset_accuracy,
}
NUMBER_METRICS: dict[str, Metric] = {'pearson': pearson, 'spearman': spearman}
