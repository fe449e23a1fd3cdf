"""A task's files as whole texts: plain or compressed, UTF-8, or JSON.

This file owns how they are read and the line for one that cannot be. It must not know what
they hold.
"""

from __future__ import annotations

import codecs
from typing import Any

from etils import epath

from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.files.json_object import parse
from bert_jax.input_pipeline.text.files import compression_of, decompressed, opened
from bert_jax.input_pipeline.text.inputs import encodings

_COMPRESSED = ('.gz', '.bz2', '.xz', '.zst')


def plain_name(path: str) -> str:
    """Return the name of a file without the ending of its compression: `train.tsv` of `.tsv.gz`."""
    # only one end is taken off: nobody compresses twice
    return next((path.removesuffix(end) for end in _COMPRESSED if path.endswith(end)), path)


def located(path: str) -> epath.Path | None:
    """Return the file, or where there is none the compressed one (`train.tsv.gz`); or None."""
    # The plain file first: it is the one that was named.
    names = (path, *(path + end for end in _COMPRESSED))
    with reading(path):
        return next((epath.Path(name) for name in names if epath.Path(name).exists()), None)


def read_utf8(path: str) -> str:
    """Return the text of a file, without a BOM; its first bytes show whether it is compressed.

    Raises:
      UserError: there is no file, or it cannot be read; it names the line of a bad byte.
    """
    # Whole in memory: a task's files are megabytes. Byte order marks are taken off.
    actual = located(path)
    if actual is None:
        raise UserError(f"{path}: no such file; a task's own files are looked for in --data_dir")
    with reading(path), opened(str(actual)) as file:
        raw = b''.join(decompressed(file, compression_of(file), str(actual)))
    text = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        # A person looks for a line, not for a byte.
        line = text.count(b'\n', 0, error.start) + 1
        byte = len(raw) - len(text) + error.start
        raise UserError(
            f'{path}:{line}: byte {byte} is not UTF-8; {encodings.advice(str(actual))}'
        ) from error


def read_json(path: str, unique: bool = False) -> Any:
    """Parse a JSON file; UserError as `read_utf8`, and for what is no JSON.

    unique: an object that has a name twice is refused; otherwise the last one counts.
    """
    try:
        return parse_json(read_utf8(path), unique)
    except ValueError as error:
        raise UserError(f'{path}: {error}') from error


def parse_json(text: str, unique: bool = False) -> Any:
    """Parse JSON into Python values; `unique` as for `read_json`. ValueError for what is none."""
    try:
        return parse(text, _once if unique else None)
    except ValueError as error:
        raise ValueError(f'not JSON ({error})') from error


def well_formed(text: str) -> bool:
    r"""Tell whether UTF-8 can hold it: JSON may spell half a character, as in "\ud83d"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object, where all names are different."""
    # In a dict the last of two equal names has won.
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'{twice!r} is there more than once')
    return entries
