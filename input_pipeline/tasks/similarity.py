"""How alike texts are: files of pairs with a number, and scores of similarities.

Owns which columns are read and which numbers are right, and what is computed of similarities and
labels, equal to sentence-transformers' evaluators. It must not know models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.base import parse_number
from bert_jax.input_pipeline.tasks.task_metrics import matthews, pearson, spearman
from bert_jax.input_pipeline.text.tables import Table

_TINY = 1e-12  # where nothing is found, nothing is divided by 0
COLUMNS: Mapping[str, str | int] = {'text': 'sentence1', 'text_b': 'sentence2'}
STS = (0.0, 5.0)  # the scores of the STS benchmarks


class Pairs(NamedTuple):
    """Texts a and b, and the numbers [N] of the pairs."""

    a: list[str]
    b: list[str]
    numbers: np.ndarray


def read_scored(
    path: str,
    columns: Mapping[str, str | int] | None = None,
    header: bool = True,
    span: tuple[float, float] = STS,
) -> Pairs:
    """Read pairs with a score; `columns` names those of 'text', 'text_b' and 'score'.

    Raises:
      UserError: the file is not as expected, or a score is outside `span`.
    """
    low, high = span
    wrong = f'is outside {low:g} to {high:g}: name the range with --score_range'
    return _read_pairs(path, 'score', columns, header, lambda number: low <= number <= high, wrong)


def read_labelled(
    path: str, columns: Mapping[str, str | int] | None = None, header: bool = True
) -> Pairs:
    """Read pairs that match (1) or not (0); `columns` names 'text', 'text_b' and 'label'.

    Raises:
      UserError: the file is not as expected, or lacks pairs of either kind.
    """
    pairs = _read_pairs(path, 'label', columns, header, {0, 1}.__contains__, 'must be 0 or 1')
    if len(set(pairs.numbers)) < 2:
        raise UserError(
            f'{path}: all labels are {pairs.numbers[0]:g}: pairs that match and pairs that do not'
            ' are needed'
        )
    return pairs


def _read_pairs(
    path: str,
    role: str,
    columns: Mapping[str, str | int] | None,
    header: bool,
    fits: Callable[[float], bool],
    wrong: str,
) -> Pairs:
    names = {**COLUMNS, role: role, **(columns or {})}
    if len(names) > 3:
        raise UserError(f'--columns: {[*names][3]!r} is not among {", ".join([*names][:3])}')
    a, b, numbers = [], [], []
    for location, row in Table(path, names, header).rows():
        numbers.append(parse_number(row[role], location))
        if not fits(numbers[-1]):
            raise UserError(f'{location}: {role} {row[role]} {wrong}')
        a.append(row['text'])
        b.append(row['text_b'])
    if len(a) < 2:
        raise UserError(f'{path}: {len(a)} pairs in it: two or more are needed')
    return Pairs(a, b, np.array(numbers))


# ---- scores


def correlate_scores(truth: np.ndarray, similarities: np.ndarray) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation with the true scores (STS)."""
    return {'spearman': spearman(truth, similarities), 'pearson': pearson(truth, similarities)}


def matches(labels: np.ndarray, similarities: np.ndarray) -> dict[str, float]:
    """Return how well a threshold parts pairs that match (label 1) from those that do not (0).

    Accuracy and F1 each have the threshold that is best for it, half-way to the next similarity;
    precision, recall and Matthews' correlation have that of F1. Average precision has none.
    """
    from sklearn.metrics import average_precision_score

    order = np.argsort(-similarities, kind='stable')
    values, positives = similarities[order], np.cumsum(labels[order] == 1)
    # Pairs of one similarity are on the same side of any threshold.
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    tp, taken, positive = positives[ends], ends + 1, int(positives[-1])

    # First the threshold above all.
    negative = len(values) - positive
    right = np.concatenate([[negative], tp + negative - (taken - tp)])
    best = int(right.argmax())
    above_all = np.nextafter(values[0], np.float32(np.inf), dtype=values.dtype)
    threshold = _between(values, ends[best - 1]) if best else above_all

    precisions, recalls = tp / taken, tp / max(positive, 1)
    f1s = 2 * precisions * recalls / np.maximum(precisions + recalls, _TINY)
    top = int(f1s.argmax())
    f1_threshold = _between(values, ends[top]) if f1s[top] else 0.0
    return {
        'accuracy': float(right[best]) / len(values),
        'accuracy_threshold': float(threshold),
        'f1': float(f1s[top]),
        'f1_threshold': float(f1_threshold),
        'precision': float(precisions[top]) if f1s[top] else 0.0,
        'recall': float(recalls[top]),
        'ap': float(average_precision_score(labels, similarities)) if positive else 0.0,
        'mcc': matthews(labels, (similarities >= f1_threshold).astype(int)),
    }


def _between(values: np.ndarray, end: int) -> np.floating:
    """Return the threshold that has values[:end + 1], which descend, on its side."""
    if end == len(values) - 1:
        return values[end]
    middle = (values[end] + values[end + 1]) / 2
    # a middle that is rounded to the next value would take it in
    return values[end] if middle == values[end + 1] else middle


def translated(texts: Sequence[str], nearest_N: np.ndarray) -> np.ndarray:
    """Tell of each text whether its translation was nearest, or one of the same words.

    Args:
      texts: the translations [N], the N-th of the N-th text.
      nearest_N: the index of the translation that is nearest to each text.
    """
    return np.array([texts[other] == text for other, text in zip(nearest_N, texts, strict=True)])
