"""Text, and rows of a task, from parquet files and from data sets of two libraries.

Of parquet the text column is read a row group at a time. Data sets of the Hugging Face Hub are
streamed: nothing is downloaded as a whole. Their files, as the library shards them, are read apart,
so workers share the work and need no more than their own. Of a prepared data set of TensorFlow
Datasets the library says where it lies, and our own decoder reads text from its TFRecord files,
without TensorFlow. Owns the use of pyarrow, datasets and tensorflow_datasets, which are imported
inside functions. Must not know what a document is, nor what rows are for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError, reading, require_extra
from bert_jax.input_pipeline.records.example_proto import bytes_of
from bert_jax.input_pipeline.records.tfrecord import CorruptRecord, read_records
from bert_jax.input_pipeline.text.files import CHUNK
from bert_jax.input_pipeline.text.formats import NoText, get_text, word_missing_column

_ROWS = 256  # read at once


# ---- parquet files


def find_row_groups(path: str, column: str) -> list[int]:
    """Return the bytes on disk of each row group's `column`.

    Raises:
      UserError: there is no such column, or it is no text.
    """
    # The column must be there, once, and hold text: all of it is known from the file's footer, so a
    # mistake costs no reading.
    with _open_parquet(path) as (pa, file):
        schema = file.schema_arrow
        many = schema.names.count(column)
        if many > 1:
            raise UserError(
                f'{path}: has {many} columns named {column!r}: write it again with a name for each'
            )
        if not many:
            raise UserError(f'{path}: {word_missing_column(column, schema.names)}')

        # Dictionary-encoded text is text.
        kind = schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        texts = ('string', 'large_string', 'string_view', 'binary', 'large_binary', 'binary_view')
        if not any(getattr(pa.types, f'is_{name}')(kind) for name in texts):
            raise UserError(
                f'{path}: column {column!r} holds {kind} and not text: name another with'
                ' --text_column'
            )

        # Columns of the file are leaves: a struct before this one counts as several.
        leaf = 0
        while file.schema.column(leaf).path != column:
            leaf += 1
        sizes = []
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            sizes.append(group.column(leaf).total_compressed_size)
        return sizes


def iterate_parquet_texts(path: str, group: int, column: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield (row, counted over all of the file, its text or None) of each row of a row group."""
    with _open_parquet(path) as (pa, file):
        # Rows are counted over all groups, so that a document's name does not depend on its unit.
        row = sum(file.metadata.row_group(i).num_rows for i in range(group))

        # 256 rows at a time: a group may be larger than memory once unpacked. Bytes, not str:
        # decoding is text/lines.py's, where what is not UTF-8 is counted.
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column]):
            values = batch.column(0)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            for text in values.cast(pa.large_binary()).to_pylist():
                yield row, text
                row += 1


def iterate_parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, all of their columns."""
    with reading(path), _open_parquet(path) as (_, file):
        for batch in file.iter_batches(_ROWS):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[tuple[ModuleType, Any]]:
    """Return pyarrow and an open file. UserError where that turns out to be damaged."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f'{path}: is a parquet file, and pyarrow is not installed: pip install pyarrow'
        ) from None

    # Checksums of pages are checked where the file has them. By default the library reads all of a
    # row group's column at once, which may be larger than memory.
    with epath.Path(path).open('rb') as f:
        try:
            yield (
                pa,
                parquet.ParquetFile(
                    f, page_checksum_verification=True, pre_buffer=False, buffer_size=CHUNK
                ),
            )
        except (pa.ArrowException, OSError) as error:
            # The library's own error is a plain one; a disk's has a number, a bucket's its kind.
            if isinstance(error, OSError) and (error.errno or type(error) is not OSError):
                raise
            why = ' '.join(str(error).split())[:200]
            raise UserError(
                f'{path}: damaged parquet file ({why}): copy or make it again'
            ) from error


# ---- data sets of the Hugging Face Hub


class HubShards(NamedTuple):
    """A split of a data set of the Hub as it is now.

    Attributes:
      path: hf:NAME[@COMMIT][:CONFIG]:SPLIT, with the commit that the Hub has at present.
      names: of each shard, the same on every machine.
      bytes: of a shard on average, 0 where the data set does not say.
      version: a number that changes with the files.
    """

    path: str
    names: list[str]
    bytes: int
    version: int


def is_hub_name(pattern: str) -> bool:
    """Tell whether a pattern names a data set; hf://datasets/... is an address of files."""
    return pattern.startswith('hf:') and '://' not in pattern


def find_hub_shards(pattern: str, column: str) -> HubShards:
    """Find what hf:NAME[@REVISION][:CONFIG]:SPLIT is; NAME is on the Hub, or a local folder.

    Raises UserError where there is no such data set, split or column.
    """
    name, revision, config, split = _parse_hub_name(pattern)
    builder, data = open_hub(pattern)
    if data.features is not None and column not in data.features:
        raise UserError(f'{pattern}: {word_missing_column(column, sorted(data.features))}')

    # The Hub's files are pinned to their commit; of local ones the library keeps the times.
    files, origins = _get_files(builder, split)
    commits = {origin[1] for origin in origins if len(origin) == 2}
    if len(commits) == 1:
        revision = commits.pop()

    # Names without the folder that a local one lies in.
    short = os.path.basename(os.path.normpath(name)) if os.path.isdir(name) else name
    below = '/'.join(filter(None, (short, config, split)))
    path = ('hf', f'{name}@{revision}' if revision else name, config, split)
    count = data.num_shards
    return HubShards(
        ':'.join(filter(None, path)),
        [f'{below}-{i:05}-of-{count:05}' for i in range(count)],
        _count_bytes(builder, split, files) // count,
        _hash_version(origins, revision),
    )


def require_unchanged_shards(path: str, version: int) -> None:
    """Raise UserError where the local files of `path` are others than they were, by `HubShards`.

    The Hub's are those of a commit, and never change.
    """
    name, revision, _, split = _parse_hub_name(path)
    if os.path.isdir(name):
        builder, _ = open_hub.__wrapped__(path)  # as it is now, and not as it was opened first
        if _hash_version(_get_files(builder, split)[1], revision) != version:
            raise UserError(
                f'{path}: its files have changed since the reading began: run the same command'
                ' again when nobody writes there'
            )


def _get_files(builder: Any, split: str) -> tuple[Any, list]:
    """Return the files of a split, and where each comes from."""
    files = (builder.config.data_files or {}).get(split, [])
    return files, getattr(files, 'origin_metadata', [])


def _hash_version(origins: list, revision: str | None) -> int:
    return zlib.crc32(repr((sorted(origins), revision)).encode())


def iterate_hub_texts(
    path: str, shard: int, column: str
) -> Iterator[tuple[int, str | NoText | None]]:
    """Yield (row, counted within the shard, its text, or why it has none) of each row of a shard.

    `path` as `HubShards` has it.
    """
    _, data = open_hub(path)
    with _asking_hub(f'{path}: shard {shard} cannot be read'):
        for row, record in enumerate(data.shard(num_shards=data.num_shards, index=shard)):
            yield row, get_text(record, column)


def iterate_hub_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split, as hf:NAME[@REVISION][:CONFIG]:SPLIT names it."""
    _, data = open_hub(path)
    with _asking_hub(f'{path}: cannot be read'):
        yield from data


def get_class_names(path: str, column: str) -> list[str]:
    """Return what the numbers of a column of classes, or of lists of them, mean; [] for others."""
    _, data = open_hub(path)
    feature = (data.features or {}).get(column)
    return list(getattr(getattr(feature, 'feature', feature), 'names', None) or [])


def _parse_hub_name(pattern: str) -> tuple[str, str | None, str | None, str]:
    """Return name, revision, configuration and split of a pattern."""
    parts = pattern.removeprefix('hf:').split(':')
    if len(parts) not in (2, 3) or not all(parts):
        raise UserError(
            f'{pattern}: must be hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, as in'
            ' hf:wikimedia/wikipedia:20231101.de:train'
        )
    name, split = parts[0], parts[-1]
    config = None
    if len(parts) == 3:
        config = parts[1]

    # A folder may have an @ in its name.
    if os.path.isdir(name):
        return os.path.abspath(name), None, config, split
    name, _, revision = name.partition('@')
    return name, revision or None, config, split


@functools.lru_cache(maxsize=8)
def open_hub(pattern: str) -> tuple[Any, Any]:
    """Return the library's builder of a data set, and the split as its stream."""
    # Once a process: on the Hub each opening is a dozen requests.
    name, revision, config, split = _parse_hub_name(pattern)
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{pattern}: datasets is not installed: pip install -c constraints.txt '.[datasets]'"
        ) from None
    datasets.disable_progress_bars()
    # each attempt that is made again would be two lines; the last one is worded here
    logging.getLogger('huggingface_hub').setLevel(logging.ERROR)
    with _asking_hub(f'{pattern}: cannot be opened'):
        builder = datasets.load_dataset_builder(name, config, revision=revision)

        # Of parquet the library takes a row group at once, which may be larger than memory.
        if hasattr(builder.config, 'fragment_scan_options'):
            from pyarrow.dataset import ParquetFragmentScanOptions

            builder.config.batch_size = _ROWS
            builder.config.fragment_scan_options = ParquetFragmentScanOptions(
                use_buffered_stream=True, buffer_size=CHUNK, pre_buffer=False
            )
        return builder, builder.as_streaming_dataset(split=split)


def _count_bytes(builder: Any, split: str, files: Any) -> int:
    """Return the bytes of a split: of local files, else as the data set says, else 0."""
    if files and all(os.path.exists(file) for file in files):
        return sum(os.path.getsize(file) for file in files)
    info = (builder.info.splits or {}).get(split)
    return getattr(info, 'num_bytes', None) or 0


@contextlib.contextmanager
def _asking_hub(failed: str) -> Iterator[None]:
    """Put what the library, its storage and its formats raise into one line, with its cause."""
    # No network, no such name, no access: each has its own kind. It has tried again by then.
    try:
        yield
    except Exception as error:
        words = f'{type(error).__name__}: {" ".join(str(error).split())}'[:250]
        if error.__cause__:
            words += f'; {" ".join(str(error.__cause__).split())[:150]}'
        raise UserError(f'{failed} ({words})') from error


# ---- TensorFlow Datasets


def find_tfds_files(pattern: str, column: str) -> list[epath.Path]:
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

    with _asking_tfds(pattern):
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
        for name, feature in _iterate_features(builder.info.features)
        if isinstance(feature, tfds.features.Text)
    )
    if column not in texts:
        raise UserError(f'{pattern}: {word_missing_column(column, texts)}')
    return sorted(epath.Path(path) for path in builder.info.splits[split].filepaths)


def _iterate_features(features: Any, prefix: str = '') -> Iterator[tuple[str, Any]]:
    """Yield (name as the records have it, feature) of all features, nested ones as a/b."""
    # Anything with items is a group of features.
    for name, feature in features.items():
        if hasattr(feature, 'items'):
            yield from _iterate_features(feature, f'{prefix}{name}/')
        else:
            yield f'{prefix}{name}', feature


def iterate_tfds_texts(path: str, start: int, column: str) -> Iterator[tuple[int, bytes | None]]:
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


def iterate_tfds_rows(
    name: str, split: str, data_dir: str, class_names: bool
) -> Iterator[dict[str, Any]]:
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
    with _asking_tfds(f'tensorflow-datasets {name!r}, split {split!r}'):
        builder = tfds.builder(name, data_dir=data_dir or os.environ.get('TFDS_DATA_DIR'))
        builder.download_and_prepare()
        data = builder.as_dataset(split=split)

    # as_numpy_iterator keeps the order on disk, so example numbers mean the same every time.
    features = builder.info.features
    for record in data.as_numpy_iterator():
        yield _make_plain(record, features, class_names)


def _make_plain(value: Any, feature: Any, class_names: bool) -> Any:
    """Convert numpy values to Python's own; `feature` is the library's description of the value."""
    import tensorflow_datasets as tfds

    # A sequence of objects comes as an object of sequences (SQuAD's answers).
    if isinstance(value, dict):
        inner = feature.feature if isinstance(feature, tfds.features.Sequence) else feature
        return {key: _make_plain(item, inner[key], class_names) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode('utf-8')

    # An array: its items have the description of its entries.
    if getattr(value, 'ndim', 0):
        inner = getattr(feature, 'feature', feature)
        return [_make_plain(item, inner, class_names) for item in value]

    # A label below 0 stands for "not known" in test splits.
    if class_names and isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)) if value >= 0 else None
    return value.item() if hasattr(value, 'item') else value


@contextlib.contextmanager
def _asking_tfds(what: str) -> Iterator[None]:
    """Put what a dataset's own code raises into one line."""
    try:
        yield
    except Exception as error:
        why = ' '.join(str(error).split())[:200]
        raise UserError(f'{what}: cannot be read ({why})') from error
