"""Comparisons of trees of arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def assert_same(found: Any, wanted: Any) -> None:
    """Asserts that two trees have the same structure and the same numbers."""
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def equal(one: Any, other: Any) -> bool:
    """Whether they have the same leaves, to the bit."""
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))
