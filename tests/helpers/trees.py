"""Trees of arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def equal(one: Any, other: Any) -> bool:
    """Whether they have the same leaves, to the bit."""
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))
