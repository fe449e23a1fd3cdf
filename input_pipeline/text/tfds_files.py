"""Text from datasets of TensorFlow Datasets, and the rows of a task.

Owns where a prepared dataset lies (tensorflow_datasets says it, imported inside functions), the
reading of text from its TFRecord files by our own decoder, without TensorFlow, and what the values
of a row become. Must not know what a document is, nor what the rows are for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError, require_extra
from bert_jax.input_pipeline.records.example_proto import bytes_of
from bert_jax.input_pipeline.records.tfrecord import CorruptRecord, read_records
from bert_jax.input_pipeline.text.formats import word_missing_column


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

    with _asking(pattern):
        builder = tfds.builder(name, data_dir=os.environ.get('TFDS_DATA_DIR'))

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
        raise UserError(f'{pattern}: {word_missing_column(column, texts)}')
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
                values = bytes_of(payload, column)
                yield at, b''.join(values) if values else None
        except CorruptRecord as error:
            raise UserError(
                f'{path}: the record at byte {error.byte} is damaged or cut: prepare the dataset'
                ' again'
            ) from None


def records(name: str, split: str, data_dir: str, class_names: bool) -> Iterator[dict[str, Any]]:
    """Yield the records of a split in the order on disk.

    Text is str, lists are list, class labels are names or numbers.

    Args:
      name: of the dataset.
      split: its split.
      data_dir: where datasets are kept, '' for what TFDS_DATA_DIR names or else the library's own
        default; what is not there is downloaded.
      class_names: whether a class label is given by its name, or else as a number.

    Raises:
      UserError: the library is not installed, or knows no such dataset or split.
    """
    require_extra(f'tensorflow-datasets {name!r}', 'tensorflow', 'tensorflow_datasets')
    import tensorflow_datasets as tfds

    # Prepared on first use, in the folder of the user or of the environment.
    with _asking(f'tensorflow-datasets {name!r}, split {split!r}'):
        builder = tfds.builder(name, data_dir=data_dir or os.environ.get('TFDS_DATA_DIR'))
        builder.download_and_prepare()
        data = builder.as_dataset(split=split)

    # as_numpy_iterator keeps the order on disk, so example numbers mean the same every time.
    features = builder.info.features
    for record in data.as_numpy_iterator():
        yield _plain(record, features, class_names)


def _plain(value: Any, feature: Any, class_names: bool) -> Any:
    """Convert numpy values to Python's own; `feature` is the library's description of the value."""
    import tensorflow_datasets as tfds

    # A sequence of objects comes as an object of sequences (SQuAD's answers).
    if isinstance(value, dict):
        inner = feature.feature if isinstance(feature, tfds.features.Sequence) else feature
        return {key: _plain(item, inner[key], class_names) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode('utf-8')

    # An array: its items have the description of its entries.
    if getattr(value, 'ndim', 0):
        inner = getattr(feature, 'feature', feature)
        return [_plain(item, inner, class_names) for item in value]

    # A label below 0 stands for "not known" in test splits.
    if class_names and isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)) if value >= 0 else None
    return value.item() if hasattr(value, 'item') else value


@contextlib.contextmanager
def _asking(what: str) -> Iterator[None]:
    """Put what a dataset's own code raises into one line."""
    try:
        yield
    except Exception as error:
        why = ' '.join(str(error).split())[:200]
        raise UserError(f'{what}: cannot be read ({why})') from error
