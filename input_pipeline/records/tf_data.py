"""tf.data: groups of serialised tf.train.Examples, read ahead and parsed in TensorFlow's threads.

Owns how TensorFlow is imported and called here. It must not know which features a record has
(records/fields.py does), nor where the records come from.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.input_pipeline.records.example_proto import Feature

_AT_ONCE = 2  # groups that are decoded at a time
_AHEAD = 4  # groups made ready before they are asked for


def parse_groups(
    features: Sequence[Feature], groups: range, load: Callable[[int], list[bytes]]
) -> Iterator[dict[str, np.ndarray] | None]:
    """Yield what `load` gives for each number of `groups`, decoded, in their order.

    Args:
      features: what each record holds.
      groups: the numbers that `load` is called with.
      load: called in TensorFlow's threads; what it raises is raised here.

    Yields:
      [N, length] int32 or float32 a feature, with the largest int32 for what is beyond 32 bits;
      None for a group that TensorFlow refuses, since it does not say which record is at fault.
    """
    tf = import_tensorflow()

    # Raised below: TensorFlow would print the traceback, and raise an error of its own kind.
    failed: dict[int, Exception] = {}

    def payloads(number: int) -> np.ndarray:
        try:
            return np.array(load(int(number)), object)
        except Exception as error:
            failed[number] = error
            return np.array([], object)

    def decode(number: Any) -> dict[str, Any]:
        # Shapes are lost on the way through Python, and parse_example wants to know the rank.
        texts = tf.numpy_function(payloads, [number], tf.string, stateful=False)
        return _parse(tf, features, tf.ensure_shape(texts, [None]))

    # In the order of the groups whichever is ready first, or a resumed run would see other batches.
    dataset = tf.data.Dataset.range(groups.start, groups.stop, groups.step)
    dataset = dataset.map(decode, num_parallel_calls=_AT_ONCE, deterministic=True).prefetch(_AHEAD)

    # The iterator's threads call `load`. One that does so when the interpreter ends hangs or
    # crashes it, so the iterator goes before, even where an exception still holds this frame.
    alive = [dataset.as_numpy_iterator()]
    atexit.register(alive.clear)
    try:
        for number in groups:
            columns = None
            with contextlib.suppress(tf.errors.OpError):
                columns = next(alive[0])
            if number in failed:
                raise failed[number]
            yield columns
    finally:
        alive.clear()
        atexit.unregister(alive.clear)


def _parse(tf: Any, features: Sequence[Feature], texts: Any) -> dict[str, Any]:
    """Parse serialised records; whole numbers are cut to what int32 holds."""
    types = {'int': tf.int64, 'float': tf.float32}  # parse_example knows no others
    shapes = {f.name: tf.io.FixedLenFeature([f.length], types[f.kind]) for f in features}
    columns = tf.io.parse_example(texts, shapes)
    return {f.name: tf.saturate_cast(columns[f.name], f.dtype) for f in features}


@functools.cache
def import_tensorflow() -> Any:
    """Import TensorFlow and keep it off the accelerators: they belong to jax."""
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    # nothing is computed with it here, and it announces itself at every start
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
    import tensorflow as tf

    for kind in ('GPU', 'TPU'):
        tf.config.set_visible_devices([], kind)
    return tf
