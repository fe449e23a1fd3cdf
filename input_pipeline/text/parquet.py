"""The text column of parquet files, a row group at a time, and the rows of a task.

Owns the use of pyarrow, which is imported inside functions. Must not know what a document is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.input_pipeline.text.formats import word_missing_column

_ROWS = 256  # read at once


def row_groups(path: str, column: str) -> list[int]:
    """Return the bytes on disk of each row group's `column`.

    Raises:
      UserError: there is no such column, or it is no text.
    """
    # The column must be there, once, and hold text: all of it is known from the file's footer, so a
    # mistake costs no reading.
    with _opened(path) as (pa, file):
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


def texts(path: str, group: int, column: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield (row, counted over all of the file, its text or None) of each row of a row group."""
    with _opened(path) as (pa, file):
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


def records(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, all of their columns."""
    with reading(path), _opened(path) as (_, file):
        for batch in file.iter_batches(_ROWS):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[ModuleType, Any]]:
    """Return pyarrow and an open file. UserError where that turns out to be damaged."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f'{path}: is a parquet file, and pyarrow is not installed: pip install pyarrow'
        ) from None

    # Checksums of pages are checked where the file has them.
    with epath.Path(path).open('rb') as f:
        try:
            yield pa, parquet.ParquetFile(f, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            why = ' '.join(str(error).split())[:200]
            raise UserError(
                f'{path}: damaged parquet file ({why}): copy or make it again'
            ) from error
