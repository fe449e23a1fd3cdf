"""Files of lines and of JSON, written and read."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import Any


def read_json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text())


def read_jsonl(path: pathlib.Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    path.write_text('\n'.join(lines) + '\n')


def write_jsonl(path: pathlib.Path, records: Iterable[Any]) -> None:
    write_lines(path, map(json.dumps, records))
