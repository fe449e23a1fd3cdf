"""Pairs of texts with a number: a score of how alike they are, or whether they match.

Owns which columns are read and which numbers are right. It must not know models or scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.configs.errors import UserError
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

    def check(number: float) -> None:
        if not low <= number <= high:
            raise ValueError(f'is outside {low:g} to {high:g}: name the range with --score_range')

    return _read(path, 'score', columns, header, check)


def read_labelled(
    path: str, columns: Mapping[str, str | int] | None = None, header: bool = True
) -> Pairs:
    """Read pairs that match (1) or not (0); `columns` names 'text', 'text_b' and 'label'.

    Raises:
      UserError: the file is not as expected, or lacks pairs of either kind.
    """

    def check(number: float) -> None:
        if number not in (0, 1):
            raise ValueError('must be 0 or 1')

    pairs = _read(path, 'label', columns, header, check)
    if len(set(pairs.numbers)) < 2:
        raise UserError(
            f'{path}: all labels are {pairs.numbers[0]:g}: pairs that match and pairs that do not'
            ' are needed'
        )
    return pairs


def _read(
    path: str, role: str, columns: Mapping[str, str | int] | None, header: bool, check
) -> Pairs:
    names = {**COLUMNS, role: role}
    if unknown := [name for name in columns or {} if name not in names]:
        raise UserError(f'--columns: {unknown[0]!r} is not among {", ".join(names)}')
    a, b, numbers = [], [], []
    for location, row in Table(path, {**names, **(columns or {})}, header).rows():
        try:
            number = float(row[role])
        except ValueError:
            raise UserError(f'{location}: {role} {row[role]!r} is not a number') from None
        try:
            check(number)
        except ValueError as error:
            raise UserError(f'{location}: {role} {row[role]} {error}') from None
        a.append(row['text'])
        b.append(row['text_b'])
        numbers.append(number)
    if len(a) < 2:
        raise UserError(f'{path}: {len(a)} pairs in it: two or more are needed')
    return Pairs(a, b, np.array(numbers))
