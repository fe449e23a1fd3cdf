"""The rows that one fine-tuning run trains on, in their order.

Owns nothing but that choice; the order itself is arithmetic in input_pipeline/tasks/batching.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.configs.schema import FinetuneConfig
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays
from bert_jax.input_pipeline.tasks.batching import bucketed_batches, training_batches


class TrainingRows:
    """The rows of some examples, as batches from any step on."""

    def __init__(
        self,
        config: FinetuneConfig,
        features: Arrays,
        examples: Sequence[int],
        label_keys: Sequence[str],
    ):
        """`features` are of the whole split; of them, the rows of these `examples`."""
        # An example may have several rows (windows of a context): all of them are trained on.
        rows = np.flatnonzero(np.isin(features['example_index'], examples))
        self._config, self._keys = config, [*INPUT_KEYS, *label_keys]
        self._arrays = {name: features[name][rows] for name in (*self._keys, 'example_index')}

    def batches(self, start: int) -> Iterator[Arrays]:
        """Endless batches of what a model reads, with labels, from step `start` (from 0) on."""
        return self._batches(self._keys, start)

    def _batches(self, keys: Sequence[str], start: int) -> Iterator[Arrays]:
        # Without buckets every batch has one length, and one program is compiled.
        buckets = self._config.length_buckets
        arguments = self._arrays, keys, self._config.batch_size, self._config.seed
        if buckets == 1:
            return training_batches(*arguments, start)
        return bucketed_batches(*arguments, buckets, start)

    def read_by(self, step: int) -> str:
        """Which training examples step number `step` (from 1) has read, in words."""
        # The order is arithmetic, so any step's batch can be asked for again.
        batch = next(self._batches(['example_index'], step - 1))
        # The same example may come twice in a batch, through two of its rows.
        numbers = sorted({int(number) for number in batch['example_index']})
        shown = ', '.join(map(str, numbers[:8]))
        more = f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''
        return f'; step {step} read the training examples {shown}{more} (from 0)'
