"""Batches that grow: how many rows a step reads, which these are, and where they lie in the batch.

All of it is arithmetic in the step, so that a resumed run reads what it would have read. The batch
always has as many places; those that a small step leaves over hold copies of its rows, of weight 0.
Must not know records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Growth(NamedTuple):
    """A batch of `first` rows for `steps` steps, of 2 * first for as many, and so on to `full`.

    parts: how many micro-batches the places of a batch are cut into, place p into micro-batch
    p % parts (bert_jax/train/step.py). The first ones hold the rows, so that a small step makes
    fewer of them. `first` must be a multiple of full / parts, and divide `full`.
    """

    first: int
    steps: int
    full: int
    parts: int

    def size(self, step: int) -> int:
        """Return how many rows a step reads."""
        return min(self.first * (1 + step // self.steps), self.full)

    def before(self, step: int) -> int:
        """Return how many rows all steps before this one read."""
        growing = min(step, self.steps * (self.full // self.first - 1))
        level, within = divmod(growing, self.steps)
        rows = self.first * (self.steps * level * (level + 1) // 2 + within * (level + 1))
        return rows + (step - growing) * self.full

    def rows(self, step: int, places: np.ndarray) -> np.ndarray:
        """Return which row of the order lies at each place of the batch."""
        parts = self._parts(step)
        row = places // self.parts * parts + places % self.parts % parts
        return self.before(step) + row

    def weights(self, step: int, places: np.ndarray) -> np.ndarray:
        """Return 1 for each place whose row counts, 0 for copies; float32."""
        return (places % self.parts < self._parts(step)).astype(np.float32)

    def _parts(self, step: int) -> int:
        """Return how many micro-batches hold rows."""
        return self.parts * self.size(step) // self.full
