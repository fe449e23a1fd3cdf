"""Text, and rows of a task, from data sets of the Hugging Face Hub.

They are streamed: nothing is downloaded as a whole. Owns the use of `datasets`, which is imported
inside functions. A data set's files, as its library shards them, are read apart, so workers share
the work and need no more than their own. Must not know what a document is.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.text.formats import NoText, get_text, word_missing_column


class Shards(NamedTuple):
    """A split of a data set as it is now.

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


def is_meant(pattern: str) -> bool:
    """Tell whether a pattern names a data set; hf://datasets/... is an address of files."""
    return pattern.startswith('hf:') and '://' not in pattern


def find(pattern: str, column: str) -> Shards:
    """Find what hf:NAME[@REVISION][:CONFIG]:SPLIT is; NAME is on the Hub, or a local folder.

    Raises UserError where there is no such data set, split or column.
    """
    name, revision, config, split = _parts(pattern)
    builder, data = opened(pattern)
    if data.features is not None and column not in data.features:
        raise UserError(f'{pattern}: {word_missing_column(column, sorted(data.features))}')

    # The Hub's files are pinned to their commit; of local ones the library keeps the times.
    files, origins = _files(builder, split)
    commits = {origin[1] for origin in origins if len(origin) == 2}
    if len(commits) == 1:
        revision = commits.pop()

    # Names without the folder that a local one lies in.
    short = os.path.basename(os.path.normpath(name)) if os.path.isdir(name) else name
    below = '/'.join(filter(None, (short, config, split)))
    path = ('hf', f'{name}@{revision}' if revision else name, config, split)
    count = data.num_shards
    return Shards(
        ':'.join(filter(None, path)),
        [f'{below}-{i:05}-of-{count:05}' for i in range(count)],
        _count_bytes(builder, split, files) // count,
        _version(origins, revision),
    )


def require_unchanged(path: str, version: int) -> None:
    """Raise UserError where the local files of `path` are others than they were, by `Shards`.

    The Hub's are those of a commit, and never change.
    """
    name, revision, _, split = _parts(path)
    if os.path.isdir(name):
        builder, _ = opened.__wrapped__(path)  # as it is now, and not as it was opened first
        if _version(_files(builder, split)[1], revision) != version:
            raise UserError(
                f'{path}: its files have changed since the reading began: run the same command'
                ' again when nobody writes there'
            )


def _files(builder: Any, split: str) -> tuple[Any, list]:
    """Return the files of a split, and where each comes from."""
    files = (builder.config.data_files or {}).get(split, [])
    return files, getattr(files, 'origin_metadata', [])


def _version(origins: list, revision: str | None) -> int:
    return zlib.crc32(repr((sorted(origins), revision)).encode())


def texts(path: str, shard: int, column: str) -> Iterator[tuple[int, str | NoText | None]]:
    """Yield (row, counted within the shard, its text, or why it has none) of each row of a shard.

    `path` as `Shards` has it.
    """
    _, data = opened(path)
    with _asking(f'{path}: shard {shard} cannot be read'):
        for row, record in enumerate(data.shard(num_shards=data.num_shards, index=shard)):
            yield row, get_text(record, column)


def records(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split, as hf:NAME[@REVISION][:CONFIG]:SPLIT names it."""
    _, data = opened(path)
    with _asking(f'{path}: cannot be read'):
        yield from data


def class_names(path: str, column: str) -> list[str]:
    """Return what the numbers of a column of classes, or of lists of them, mean; [] for others."""
    _, data = opened(path)
    feature = (data.features or {}).get(column)
    return list(getattr(getattr(feature, 'feature', feature), 'names', None) or [])


def _parts(pattern: str) -> tuple[str, str | None, str | None, str]:
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
def opened(pattern: str) -> tuple[Any, Any]:
    """Return the library's builder of a data set, and the split as its stream."""
    # Once a process: on the Hub each opening is a dozen requests.
    name, revision, config, split = _parts(pattern)
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{pattern}: datasets is not installed: pip install -c constraints.txt '.[datasets]'"
        ) from None
    datasets.disable_progress_bars()
    # each attempt that is made again would be two lines; the last one is worded here
    logging.getLogger('huggingface_hub').setLevel(logging.ERROR)
    with _asking(f'{pattern}: cannot be opened'):
        builder = datasets.load_dataset_builder(name, config, revision=revision)
        return builder, builder.as_streaming_dataset(split=split)


def _count_bytes(builder: Any, split: str, files: Any) -> int:
    """Return the bytes of a split: of local files, else as the data set says, else 0."""
    if files and all(os.path.exists(file) for file in files):
        return sum(os.path.getsize(file) for file in files)
    info = (builder.info.splits or {}).get(split)
    return getattr(info, 'num_bytes', None) or 0


@contextlib.contextmanager
def _asking(failed: str) -> Iterator[None]:
    """Put what the library, its storage and its formats raise into one line, with its cause."""
    # No network, no such name, no access: each has its own kind. It has tried again by then.
    try:
        yield
    except Exception as error:
        words = f'{type(error).__name__}: {" ".join(str(error).split())}'[:250]
        if error.__cause__:
            words += f'; {" ".join(str(error.__cause__).split())[:150]}'
        raise UserError(f'{failed} ({words})') from error
