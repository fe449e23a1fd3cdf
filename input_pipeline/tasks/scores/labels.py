"""Scores of label and number predictions, by name.

This file owns which library computes what (scikit-learn and scipy, imported only where
they are used: each costs seconds) and what is returned where a score is undefined. It
must not know tasks. Scores are fractions, not percent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of equal entries."""
    return float(np.mean(truth == predicted))


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1 (GLUE: MRPC, QQP); 0 where it is never predicted and never true."""
    from sklearn.metrics import f1_score

    # of class 1 alone, as GLUE scores paraphrases
    return float(f1_score(truth == 1, predicted == 1, zero_division=0))


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean of every class's F1."""
    from sklearn.metrics import f1_score

    # each class counts the same, however rare it is
    return float(f1_score(truth, predicted, average='macro', zero_division=0))


def matthews(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews correlation (GLUE: CoLA); 0 where one class only is predicted."""
    from sklearn.metrics import matthews_corrcoef

    # sklearn says the same, with a warning where both are of one class
    if np.all(predicted == predicted[0]) or np.all(truth == truth[0]):
        return 0.0
    return float(matthews_corrcoef(truth, predicted))


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Linear correlation (GLUE: STS-B); a constant prediction has none and counts as 0."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, truth, predicted)


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Rank correlation (GLUE: STS-B); a constant prediction has none and counts as 0."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, truth, predicted)


def _correlation(function: Callable, truth: np.ndarray, predicted: np.ndarray) -> float:
    # Undefined for constants: 0, because such a model has found nothing.
    if len(truth) < 2 or np.all(predicted == predicted[0]) or np.all(truth == truth[0]):
        return 0.0
    with warnings.catch_warnings():
        # scipy warns of nearly constant input, as an untrained model's predictions are
        warnings.simplefilter('ignore')
        return float(function(truth.astype(np.float64), predicted.astype(np.float64)).statistic)


LABEL_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    'accuracy': accuracy,
    'f1': f1,
    'macro_f1': macro_f1,
    'matthews': matthews,
}
NUMBER_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    'pearson': pearson,
    'spearman': spearman,
}
