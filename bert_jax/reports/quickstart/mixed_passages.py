"""A task cut from any text: is a passage whole, or mixed with another?

Half of the passages are as they were written. The others come in pairs that have exchanged every
second word. So no word by itself tells the label, nor its place: what tells is which words stand
together, and that is what pre-training teaches first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file, atomic_write
from bert_jax.reports.quickstart.text_split import (
    HELD_OUT,
    TRAIN,
    WORD_BYTES,
    cut_text,
    hash_name,
    split_words,
)

# {file of a text: (the split's file, most rows, fewest rows)}. Of a thousand an accuracy has a
# standard error of 1.6 % at most. bert-finetune scores `dev`; nothing is selected on it here.
_SPLITS = {TRAIN: ('train.jsonl', 4000, 20), HELD_OUT: ('held_out.jsonl', 1000, 4)}
# A row of 32 word pieces has room for about 135 bytes.
PASSAGE_BYTES = 115
MIN_WORDS = 6


def write_task(folder: Path) -> None:
    """Write a JSONL file for each side of the text in a folder, and task.json.

    Raises:
      UserError: a side has too few passages.
    """
    for side, (name, limit, fewest) in _SPLITS.items():
        passages = []
        for document in (folder / side).read_text(encoding='utf-8').split('\n\n'):
            for passage in cut_text(document.replace('\n', ' '), PASSAGE_BYTES):
                if len(passage.encode()) >= PASSAGE_BYTES // 2:
                    passages.append(passage)
        rows = mix_passages(passages, limit)
        if len(rows) < fewest:
            raise UserError(
                f'{side} gives {len(rows)} passages: a task needs {fewest} of it; give more text'
            )
        with atomic_file(folder / name, 'w') as file:
            for passage, label in rows:
                row = {'text': passage, 'label': label}
                file.write(json.dumps(row, ensure_ascii=False) + '\n')

    # The task file last: it names the others.
    task = {
        'kind': 'classification',
        'files': {'train': _SPLITS[TRAIN][0], 'dev': _SPLITS[HELD_OUT][0]},
        'columns': {'text': 'text', 'label': 'label'},
        'labels': ['whole', 'mixed'],
        'metrics': ['accuracy'],
    }
    atomic_write(folder / 'task.json', json.dumps(task, indent=2) + '\n')


def mix_passages(passages: Sequence[str], limit: int) -> list[tuple[str, str]]:
    """Return at most `limit` (text, label), by turns two whole passages and two mixed ones."""
    shuffled = sorted(passages, key=hash_name)
    rows: list[tuple[str, str]] = []
    for pair in zip(shuffled[::2], shuffled[1::2]):
        # A long word part by part: as much is exchanged of languages whose words are long.
        first, second = (split_words(passage, WORD_BYTES) for passage in pair)
        words = min(len(first), len(second))
        # Also of what stays whole, or length would tell.
        if words < MIN_WORDS:
            continue
        if len(rows) % 4 == 0:
            rows += [(passage, 'whole') for passage in pair]
        else:
            exchanged = slice(1, words - 1, 2)
            first[exchanged], second[exchanged] = second[exchanged], first[exchanged]
            rows += [(''.join(first), 'mixed'), (''.join(second), 'mixed')]
        if len(rows) >= limit:
            break
    # As many of both labels.
    return rows[: len(rows) // 4 * 4]
