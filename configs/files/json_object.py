"""JSON from a file: parsed, or refused in one line.

Owns what may be wrong with such a file: it cannot be read, is no JSON, nests too deep, holds
something else. It must not know what the names in it mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from bert_jax.configs.errors import UserError, check_regular, reading


def parse(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse any JSON value. Raises ValueError where the text is no JSON.

    Bytes are UTF-8, with or without a BOM. `pairs` makes an object of its names and values; without
    it that is a dict.
    """
    # utf-8-sig takes a byte-order mark, which editors on Windows write and JSON forbids.
    try:
        return json.loads(
            text.decode('utf-8-sig') if isinstance(text, bytes) else text, object_pairs_hook=pairs
        )
    # Deep nesting is a fault of the text, not of the program.
    except RecursionError as error:
        raise ValueError('it nests too deep') from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError, which says what it is instead, where it is none."""
    try:
        value = parse(text)
    except ValueError as error:
        raise ValueError(f'not valid JSON ({error})') from error
    if not isinstance(value, dict):
        raise ValueError('not a JSON object')
    return value


def read_object(
    path: os.PathLike[str], mend: str = 'it is damaged, or another file'
) -> dict[str, Any]:
    """Return the JSON object in a file (the kinds of path are those of configs/files/atomic.py).

    UserError, which ends with `mend`, where it cannot be read or holds none.
    """
    check_regular(path)
    # Two kinds of fault, two sentences: the file cannot be read, or holds something else.
    with reading(path, mend):
        content = cast(Path, path).read_bytes()
    try:
        return parse_object(content)
    except ValueError as error:
        raise UserError(f'{os.fspath(path)}: {error}: {mend}') from error
