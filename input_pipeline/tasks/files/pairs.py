"""Pairs of texts with a number: a score of how alike they are, or whether they match.

Owns which columns are read and which numbers are right. It must not know models or scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tasks.files.predictions import number
from bert_jax.input_pipeline.text.tables import Table

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
    return _read(path, 'score', columns, header, lambda number: low <= number <= high, wrong)


def read_labelled(
    path: str, columns: Mapping[str, str | int] | None = None, header: bool = True
) -> Pairs:
    """Read pairs that match (1) or not (0); `columns` names 'text', 'text_b' and 'label'.

    Raises:
      UserError: the file is not as expected, or lacks pairs of either kind.
    """
    pairs = _read(path, 'label', columns, header, {0, 1}.__contains__, 'must be 0 or 1')
    if len(set(pairs.numbers)) < 2:
        raise UserError(
            f'{path}: all labels are {pairs.numbers[0]:g}: pairs that match and pairs that do not'
            ' are needed'
        )
    return pairs


def _read(
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
        numbers.append(number(row[role], location))
        if not fits(numbers[-1]):
            raise UserError(f'{location}: {role} {row[role]} {wrong}')
        a.append(row['text'])
        b.append(row['text_b'])
    if len(a) < 2:
        raise UserError(f'{path}: {len(a)} pairs in it: two or more are needed')
    return Pairs(a, b, np.array(numbers))
