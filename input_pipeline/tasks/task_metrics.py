"""Metrics of label and number predictions, and what else is computed of truths and answers.

This file owns which library computes what (scikit-learn and scipy, imported only where they are
used: each costs seconds) and what is returned where a score is undefined; thresholds of labels, the
loss of a constant answer, bootstrap intervals, and scores of each class as text for a terminal. It
must not know tasks. Scores are fractions, not percent.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

# A run has learnt nothing where its loss is not below this share of `Task.constant_loss`.
LEARNT = 0.95
LEVEL = 0.95  # of bootstrap intervals
_EVEN = 0.5
# Of texts for a terminal.
_COLUMNS = 80
_NAME = 39  # of a class in scikit-learn's layout, whose numbers take the rest
_ROW = 20  # of a class at the left of the matrix
_PAIRS = 10  # mistakes that are listed where the matrix is too wide


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

    return _correlate(matthews_corrcoef, truth, predicted)


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the linear correlation (GLUE: STS-B); a constant prediction counts as 0."""
    from scipy.stats import pearsonr

    return _correlate(pearsonr, truth, predicted)


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return the rank correlation (GLUE: STS-B); a constant prediction counts as 0."""
    from scipy.stats import spearmanr

    return _correlate(spearmanr, truth, predicted)


def _correlate(function: Callable, truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return a correlation; 0 where it is undefined: a constant model has found nothing."""
    if len(truth) < 2 or np.all(predicted == predicted[0]) or np.all(truth == truth[0]):
        return 0.0
    with warnings.catch_warnings():
        # scipy warns of nearly constant input, as an untrained model's predictions are
        warnings.simplefilter('ignore')
        correlation = function(truth, predicted)
    return float(getattr(correlation, 'statistic', correlation))  # scipy's come with a p-value


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


# ---- the training loss of an answer that does not look at its input


def binary_entropy(held: np.ndarray) -> float:
    """Return the mean entropy of columns of 0 and 1 [N, K], in nats."""
    shares = np.stack([held.mean(axis=0), 1 - held.mean(axis=0)])
    return float(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=0).mean())


def entropy(values: np.ndarray) -> float:
    """Return the entropy of the values' distribution, in nats.

    It is the lowest mean cross-entropy of one constant answer to them.
    """
    # The best constant distribution is that of the values themselves, and its cross-entropy their
    # entropy.
    _, counts = np.unique(values, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


# ---- from which probability on a label is given


def best_thresholds(truth: np.ndarray, shares: np.ndarray) -> list[float]:
    """Return for each label the threshold above which giving it has the best F1.

    Of equally good ones the nearest to one half; one half for a label that no example has.

    Args:
      truth: [N, labels] of 0 and 1.
      shares: the labels' probabilities [N, labels].
    """
    return [_choose_threshold(*column) for column in zip(truth.T, shares.T, strict=True)]


def _choose_threshold(truth: np.ndarray, shares: np.ndarray) -> float:
    if not truth.any():
        return _EVEN
    # Falling probabilities: with the k highest given, F1 is 2 tp / (k + positives). A threshold is
    # between two that differ, and so every one of them is a step.
    order = np.argsort(-shares, kind='stable')
    ranked, right = shares[order], np.cumsum(truth[order])
    scores = 2 * right / (np.arange(1, len(ranked) + 1) + truth.sum())
    below = np.append(ranked[1:], 0.0)
    is_step = ranked > below
    middles = (ranked + below)[is_step] / 2
    # One half itself where it is as good as the middle around it.
    low, high = below[is_step], ranked[is_step]
    middles = np.where((low <= _EVEN) & (high > _EVEN), _EVEN, middles)
    best = scores[is_step] >= scores[is_step].max() - 1e-12
    return float(min(middles[best], key=lambda value: abs(value - _EVEN)))


# ---- how far a score moves where its examples are drawn again


def bootstrap(
    score: Callable[[np.ndarray], Mapping[str, float]], size: int, draws: int, seed: int
) -> dict[str, list[float]]:
    """Return score -> [low, high], the middle 95 % of its values over the draws.

    Args:
      score: gives the scores of some examples, by their indices [size].
      size: how many examples there are; a draw has as many, with repetition.
      draws: how many draws; 0 gives no intervals.
      seed: of the draws.
    """
    random = np.random.default_rng(seed)
    rows = [score(random.integers(0, size, size)) for _ in range(draws)]
    if not rows:
        return {}
    outside = (1 - LEVEL) / 2
    intervals = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        intervals[name] = np.quantile(values, [outside, 1 - outside]).tolist()
    return intervals


# ---- scores of each class, as text for a terminal of 80 columns


def write_class_scores(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> str:
    """Return precision, recall, F1 and support of each class, as scikit-learn writes them.

    Args:
      labels: the classes.
      truth: their places [N], or columns of 0 and 1 [N, labels].
      predicted: the same of the answers.
    """
    from sklearn.metrics import classification_report

    names = [_shorten(label, _NAME) for label in labels]
    places = list(range(len(labels)))
    text = classification_report(
        truth, predicted, labels=places, target_names=names, zero_division=0, digits=4
    )
    return text.rstrip()


def write_confusions(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> str:
    """Return how often each class, a row, was answered by each, a column.

    Where that is too wide the commonest mistakes are listed.
    """
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    digits = len(str(counts.max(initial=0)))
    room = (_COLUMNS - _ROW) // len(labels) - 1
    if room < max(digits, 4):
        return _list_commonest(labels, counts)
    names = [_shorten(label, room) for label in labels]
    width = max(digits, *map(_count_columns, names))
    text = _align_right('true \\ answer', _ROW)
    for name in names:
        text += ' ' + _align_right(name, width)
    for label, row in zip(labels, counts.tolist(), strict=True):
        text += '\n' + _align_right(_shorten(label, _ROW), _ROW)
        for count in row:
            text += f' {count:{width}}'
    return text


def _list_commonest(labels: Sequence[str], counts: np.ndarray) -> str:
    wrong = counts * (1 - np.eye(len(labels), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind='stable')[:_PAIRS]
    text = 'commonest mistakes: times, true -> answer'
    for cell in order.tolist():
        true, answer = divmod(cell, len(labels))
        count = wrong[true, answer]
        if count:
            text += f'\n{count:8} {_shorten(labels[true], 33)} -> {_shorten(labels[answer], 33)}'
    return text if wrong.any() else 'no mistakes'


def _count_columns(text: str) -> int:
    """Return the columns that a text takes: ideographs take two."""
    return sum(2 if unicodedata.east_asian_width(sign) in 'WF' else 1 for sign in text)


def _shorten(text: str, width: int) -> str:
    """Return a text of at most `width` columns, in one line."""
    text = ' '.join(text.split())
    if _count_columns(text) <= width:
        return text
    while _count_columns(text) >= width:
        text = text[:-1]
    return f'{text}…'


def _align_right(text: str, width: int) -> str:
    return ' ' * (width - _count_columns(text)) + text
