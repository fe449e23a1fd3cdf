"""Hashed vectors of entries, held against the rule written in Python's unbounded integers."""

from __future__ import annotations

import ast
import hashlib
import inspect
from fractions import Fraction

import numpy as np
import pytest

from bert_jax.input_pipeline.tokenizer import spelling

M = 10**9 + 7


def vector(entry: str, width: int, n: int) -> list[float]:
    """The rule at the head of the file, gram by gram; each number is rounded once, at its end."""
    found, column = [], 0
    total = sum(range(1, n + 1))
    for k in range(1, n + 1):
        grams = [entry[i : i + k] for i in range(len(entry) - k + 1)]
        hashes = [sum(ord(c) * 31 ** (k - 1 - i) for i, c in enumerate(gram)) for gram in grams]
        for _ in range(width * sum(range(k + 1)) // total - width * sum(range(k)) // total):
            digest = hashlib.sha256(f'hashed column {column}'.encode()).hexdigest()
            seed = 1 + int(digest[:16], 16) % (M - 1)
            numbers = [(h % M) * seed % M for h in hashes]
            numbers = [p - M if 2 * p > M else p for p in numbers]
            mean = Fraction(2 * sum(numbers), M * len(numbers)) if numbers else Fraction(0)
            found.append(float(mean))
            column += 1
    return found


ENTRIES = (
    *map(str, range(300)),
    '[CLS]', '[unused12]', '##ing', 'ing', 'a', '##', 'an', 'the', 'unbelievable' * 20, '한국어',
    'Straße', '𝔘𐍈', '\U0010ffff' * 5, 'zzz', 'नमस्ते', '',
)  # fmt: skip


@pytest.mark.parametrize('width, n', [(128, 3), (6, 3), (11, 4)])
def test_vectors_are_those_of_exact_arithmetic(width, n):
    wanted = np.array([vector(entry, width, n) for entry in ENTRIES]).astype(np.float32)
    found = spelling.vectors(ENTRIES, width, n)
    assert found.dtype == np.float32 and np.array_equal(found, wanted)


def test_the_vectors_are_the_same_for_good():
    """A model that is trained on them can use no others: these bytes must never change."""
    found = spelling.vectors(['[CLS]', '##ing', 'the', 'Straße', '한국어', 'a'], 128)
    assert hashlib.sha256(found.astype('<f4').tobytes()).hexdigest().startswith('eb8ae1461bb07863')


def test_the_file_stands_alone():
    """Exported folders have a copy of it, beside which there is no other file of ours."""
    tree = ast.parse(inspect.getsource(spelling))
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split('.')[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert 'numpy' in names and not names & {'bert_jax', 'configs', 'input_pipeline', 'launch'}
