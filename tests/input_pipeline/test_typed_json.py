"""Values as JSON and back: what is declared comes back, and nothing else is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bert_jax.configs.files import typed_json
from bert_jax.input_pipeline.preprocess.job_directory import KeptResults


@dataclass
class Inner:
    index: tuple[int, ...] = ()
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))


@dataclass
class Outer:
    inner: Inner
    sums: Counter[str]
    languages: dict[str, Counter[str]]
    free: dict[str, Any]
    names: list[str]
    note: str | None = None


def made(number: int) -> tuple[dict[str, Outer], int]:
    inner = Inner((1, 2, 3), np.array([2**64 - 1, number], np.uint64))
    counts = Counter(documents=3)
    return {
        'a': Outer(inner, counts, {'ko': counts}, {'histogram': [1, 2]}, ['é', '\ud800'])
    }, number


def test_what_is_declared_comes_back(tmp_path):
    kept = KeptResults.numbered(str(tmp_path / 'stage'), 4)
    assert kept.load(made) == {}
    for number in (3, 1):
        kept.run(number, made, (number,))
    found = kept.load(made)
    for number in (1, 3):
        outer, same = (value[0]['a'] for value in (found[number], made(number)))
        assert found[number][1] == number and type(outer.sums) is Counter
        np.testing.assert_array_equal(outer.inner.numbers, same.inner.numbers)
        assert outer.inner.numbers.dtype == np.uint64 and outer.inner.index == (1, 2, 3)
        assert (outer.sums, outer.languages, outer.free, outer.names, outer.note) == (
            same.sums, same.languages, same.free, same.names, same.note
        )  # fmt: skip
    empty = typed_json.load(Inner, typed_json.dump(Inner()))
    assert empty.index == () and empty.numbers.size == 0


@pytest.mark.parametrize(
    'text',
    [
        b'\x80\x04cos\nsystem\n',
        '[' * 100_000,
        'null',
        '[{"a": {"module": "os"}}, 1]',
        '[{"a": 3}, 1]',
        '[{}, true]',
        '[{}, 1, 2]',
    ],
)
def test_what_is_not_declared_is_refused(text):
    with pytest.raises(ValueError):
        typed_json.load(tuple[dict[str, Outer], int], text)


@pytest.mark.parametrize(
    'array',
    ['{"dtype": "O", "base64": "AAAAAAAAAAA="}', '{"dtype": "<u8", "base64": "AAA="}', '[]'],
)
def test_arrays_hold_numbers(array):
    with pytest.raises(ValueError):
        typed_json.load(np.ndarray, array)
    for value in (np.array([print]), np.int64(3), {1, 2}):
        with pytest.raises(TypeError):
            typed_json.dump(value)
