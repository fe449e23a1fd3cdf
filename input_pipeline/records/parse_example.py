"""TensorFlow's parser of tf.train.Example, for whole batches; the one that most readers use.

Owns how TensorFlow is imported and called here. It must not know which features a record has
(records/fields.py does) nor what is done where the parser refuses a batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline.records.example_proto import Feature


def parse(features: tuple[Feature, ...], payloads: Sequence[bytes]) -> dict[str, np.ndarray] | None:
    """Decodes N serialised records: [N, length] int64 or float32 a feature.

    None where TensorFlow refuses one of them; it does not say which.
    """
    tf = tensorflow()
    try:
        parsed = tf.raw_ops.ParseExampleV2(
            serialized=tf.constant(payloads, tf.string), **_arguments(features)
        )
    except tf.errors.OpError:
        return None
    columns = (column.numpy() for column in parsed.dense_values)
    return {f.name: column for f, column in zip(features, columns, strict=True)}


@functools.cache
def _arguments(features: tuple[Feature, ...]) -> dict[str, Any]:
    """All that tf.raw_ops.ParseExampleV2 wants besides the records."""
    # The operation itself: tf.io.parse_example makes these anew at each call, which takes as long
    # as parsing a hundred records.
    tf = tensorflow()
    types = {'int': tf.int64, 'float': tf.float32}  # it knows no others
    none = tf.constant([], tf.string)
    return {
        'names': none,
        'dense_keys': tf.constant([f.name for f in features]),
        'dense_shapes': [tf.TensorShape([f.length]) for f in features],
        'dense_defaults': [tf.constant([], types[f.kind]) for f in features],  # it must be there
        'sparse_keys': none,
        'sparse_types': [],
        'num_sparse': 0,
        'ragged_keys': none,
        'ragged_value_types': [],
        'ragged_split_types': [],
    }


@functools.cache
def tensorflow() -> Any:
    """TensorFlow, kept off the accelerators: they belong to jax."""
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    # nothing is computed with it here, and it announces itself at every start
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
    import tensorflow as tf

    for kind in ('GPU', 'TPU'):
        tf.config.set_visible_devices([], kind)
    return tf
