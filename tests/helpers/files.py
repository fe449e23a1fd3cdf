"""Files of lines and of JSON, written and read."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any


def read_json(path: pathlib.Path) -> Any:
    return json.loads(path.read_text())


def read_jsonl(path: pathlib.Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    path.write_text('\n'.join(lines) + '\n')


def write_jsonl(path: pathlib.Path, records: Iterable[Any]) -> None:
    write_lines(path, map(json.dumps, records))


def write_beir(
    folder: pathlib.Path,
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Iterable[tuple[str, str, int]],
    split: str = 'test',
) -> str:
    """Writes a set in BEIR's layout: texts by id, and (query, document, grade) of a split."""
    (folder / 'qrels').mkdir(parents=True, exist_ok=True)
    for name, texts in (('corpus', corpus), ('queries', queries)):
        records = ({'_id': key, 'text': text} for key, text in texts.items())
        write_jsonl(folder / f'{name}.jsonl', records)
    rows = ('\t'.join(map(str, row)) for row in judged)
    write_lines(folder / f'qrels/{split}.tsv', ['query-id\tcorpus-id\tscore', *rows])
    return str(folder)


def write_task(
    folder: pathlib.Path, kind: str, splits: Mapping[str, tuple[Any, Iterable[Any]]], **entries: Any
) -> str:
    """Writes a task file with entries of its own, and the (columns, records) of each split."""
    files = {}
    for split, (columns, records) in splits.items():
        write_jsonl(folder / f'{split}.jsonl', records)
        files[split] = {'file': f'{split}.jsonl', 'columns': columns}
    (folder / 'task.json').write_text(json.dumps({'kind': kind, 'files': files} | entries))
    return str(folder / 'task.json')
