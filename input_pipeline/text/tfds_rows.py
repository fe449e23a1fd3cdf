"""Records of tensorflow-datasets as plain Python values.

Owns how a dataset is loaded and what its values become. It must not know what the records are for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from bert_jax.configs.errors import UserError, require_extra


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
    try:
        builder = tfds.builder(name, data_dir=data_dir or os.environ.get('TFDS_DATA_DIR'))
        builder.download_and_prepare()
        data = builder.as_dataset(split=split)
    except Exception as error:  # whatever a dataset's own code raises
        reason = ' '.join(str(error).split())[:200]
        raise UserError(
            f'tensorflow-datasets {name!r}, split {split!r}: cannot be read ({reason})'
        ) from error

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
