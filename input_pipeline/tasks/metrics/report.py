"""Scores of each class and what is taken for what, as text for a terminal of 80 columns.

This file owns the layout: scikit-learn's for the scores. It must not know tasks.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

_COLUMNS = 80
_NAME = 39  # of a class in scikit-learn's layout, whose numbers take the rest
_ROW = 20  # of a class at the left of the matrix
_PAIRS = 10  # mistakes that are listed where the matrix is too wide


def scores_of_classes(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> str:
    """Return precision, recall, F1 and support of each class, as scikit-learn writes them.

    Args:
      labels: the classes.
      truth: their places [N], or columns of 0 and 1 [N, labels].
      predicted: the same of the answers.
    """
    from sklearn.metrics import classification_report

    names = [_cut(label, _NAME) for label in labels]
    places = list(range(len(labels)))
    text = classification_report(
        truth, predicted, labels=places, target_names=names, zero_division=0, digits=4
    )
    return text.rstrip()


def confusions(labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray) -> str:
    """Return how often each class, a row, was answered by each, a column.

    Where that is too wide the commonest mistakes are listed.
    """
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    digits = len(str(counts.max(initial=0)))
    room = (_COLUMNS - _ROW) // len(labels) - 1
    if room < max(digits, 4):
        return _commonest(labels, counts)
    names = [_cut(label, room) for label in labels]
    width = max(digits, *map(_width, names))
    lines = [_right('true \\ answer', _ROW) + ''.join(' ' + _right(name, width) for name in names)]
    for label, row in zip(labels, counts.tolist(), strict=True):
        cells = ''.join(f' {count:{width}}' for count in row)
        lines.append(_right(_cut(label, _ROW), _ROW) + cells)
    return '\n'.join(lines)


def _commonest(labels: Sequence[str], counts: np.ndarray) -> str:
    wrong = counts * (1 - np.eye(len(labels), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind='stable')[:_PAIRS]
    lines = ['commonest mistakes: times, true -> answer']
    for cell in order.tolist():
        true, answer = divmod(cell, len(labels))
        if count := wrong[true, answer]:
            lines.append(f'{count:8} {_cut(labels[true], 33)} -> {_cut(labels[answer], 33)}')
    return '\n'.join(lines) if lines[1:] else 'no mistakes'


def _width(text: str) -> int:
    """Return the columns that a text takes: ideographs take two."""
    return sum(2 if unicodedata.east_asian_width(sign) in 'WF' else 1 for sign in text)


def _cut(text: str, width: int) -> str:
    """Return a text of at most `width` columns, in one line."""
    text = ' '.join(text.split())
    if _width(text) <= width:
        return text
    while _width(text) >= width:
        text = text[:-1]
    return f'{text}…'


def _right(text: str, width: int) -> str:
    return ' ' * (width - _width(text)) + text
