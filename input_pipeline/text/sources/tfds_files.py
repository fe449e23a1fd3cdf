"""Text from datasets of TensorFlow Datasets, without TensorFlow.

Owns where a prepared dataset lies (tensorflow_datasets says it, imported inside a function) and
the reading of its TFRecord files by our own decoder. Must not know what a document is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError, require_extra
from bert_jax.input_pipeline.records.example_proto import bytes_of
from bert_jax.input_pipeline.records.tfrecord import CorruptRecord, read_records
from bert_jax.input_pipeline.text.sources.values import missing


def find(pattern: str, column: str) -> list[epath.Path]:
    """Find the files of tfds:NAME/SPLIT, NAME as tfds.builder takes it.

    Raises:
      UserError: they are not there, or have no such text.
    """
    # The split stands behind the last slash: NAME may have a configuration, as
    # wikipedia/20230601.en.
    name, _, split = pattern.removeprefix('tfds:').rpartition('/')
    if not name:
        raise UserError(
            f'{pattern}: must be tfds:NAME/SPLIT, as in tfds:wikipedia/20230601.en/train'
        )

    # From here on each question has its own line: is the library there, does it know the data set
    # ...
    require_extra(pattern, 'tensorflow', 'tensorflow_datasets')
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=os.environ.get('TFDS_DATA_DIR'))
    except Exception as error:  # whatever a dataset's own code raises
        raise UserError(f'{pattern}: {" ".join(str(error).split())[:150]}') from error

    # ... is it prepared, with this split, as TFRecord files (others our decoder cannot read) ...
    if not builder.info.splits:
        raise UserError(
            f'{pattern}: is not there in {builder.data_path} (TFDS_DATA_DIR names the folder of all'
            f' datasets): run tfds build {name}'
        )
    if split not in builder.info.splits:
        raise UserError(f'{pattern}: no split {split!r}, it has {", ".join(builder.info.splits)}')
    if builder.info.file_format.value != 'tfrecord':
        raise UserError(
            f'{pattern}: stored as {builder.info.file_format.value}: run tfds build {name}'
            ' --file_format=tfrecord'
        )

    # ... and is there text under that name.
    texts = sorted(
        name
        for name, feature in _features(builder.info.features)
        if isinstance(feature, tfds.features.Text)
    )
    if column not in texts:
        raise UserError(f'{pattern}: {missing(column, texts)}')
    return sorted(epath.Path(path) for path in builder.info.splits[split].filepaths)


def _features(features: Any, prefix: str = '') -> Iterator[tuple[str, Any]]:
    """Yield (name as the records have it, feature) of all features, nested ones as a/b."""
    # Anything with items is a group of features.
    for name, feature in features.items():
        if hasattr(feature, 'items'):
            yield from _features(feature, f'{prefix}{name}/')
        else:
            yield f'{prefix}{name}', feature


def texts(path: str, start: int, column: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield (byte at which the record begins, its text or None) of each record of a file.

    `start` is 0: such a file is always read as a whole.
    """
    del start
    # A feature of text is a list of one value of bytes, or of none.
    with epath.Path(path).open('rb') as f:
        try:
            for at, payload in read_records(f):
                yield at, b''.join(values) if (values := bytes_of(payload, column)) else None
        except CorruptRecord as error:
            raise UserError(
                f'{path}: the record at byte {error.byte} is damaged or cut: prepare the dataset'
                ' again'
            ) from None
