"""Bootstrap intervals: how far a score moves where its queries or pairs are drawn again.

Owns the draws, which a seed decides. It must not know what the scores are of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

LEVEL = 0.95


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
    outside = (1 - LEVEL) / 2
    return {
        name: np.quantile([row[name] for row in rows], [outside, 1 - outside]).tolist()
        for name in (rows[0] if rows else ())
    }
