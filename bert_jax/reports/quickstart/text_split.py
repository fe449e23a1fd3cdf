"""A corpus cut into the text to learn from and the text to be tested on.

Owns the held-out rule, a stable hash of the name of what is held out together (a module,
a document), and the files of a text folder. Near-duplicates are dropped over the whole corpus
first, so that none lies on both sides. It must not know where the documents come from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file, atomic_write
from bert_jax.reports.quickstart.near_duplicates import NearDuplicates

TRAIN, HELD_OUT, DOCUMENTS, COUNTS = 'train.txt', 'held_out.txt', 'documents.jsonl', 'counts.json'
# More than the usual few percent: tasks are cut from the held-out side too.
HELD_OUT_FRACTION = 0.22
# Of either side; a random next sentence needs another document to come from.
MIN_DOCUMENTS = 4


@dataclasses.dataclass(frozen=True)
class Document:
    """Sentences with a name.

    group: what is held out together. label: whose text it is, '' where nobody asks.
    """

    label: str
    group: str
    name: str
    sentences: tuple[str, ...]
    held_out: bool = False


def is_group_held_out(group: str, fraction: float = HELD_OUT_FRACTION) -> bool:
    """Whether a group is held out.

    A matter of its name alone, so the same on every machine and in every run.
    """
    return hashed(group) < fraction


def hashed(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'big') / 2**64


def split(
    documents: Iterable[Document], directory: str, fraction: float = HELD_OUT_FRACTION
) -> dict[str, Any]:
    """Writes a text folder and returns its counts, which counts.json holds as well.

    The folder: train.txt and held_out.txt, a sentence a line, a blank line between
    documents; documents.jsonl, every document with its names and side. Of two near-duplicates
    the first is kept. Raises UserError where either side has too few documents.
    """
    # Near-duplicates over both sides together, in the order of the text, before the side is chosen.
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    copies, sides = NearDuplicates(), {False: _Side(), True: _Side()}
    with (
        atomic_file(folder / TRAIN, 'w') as train,
        atomic_file(folder / HELD_OUT, 'w') as held_out,
        atomic_file(folder / DOCUMENTS, 'w') as listed,
    ):
        # All three files at once, each whole or not at all.
        for document in documents:
            sentences = copies.unseen(document.sentences)
            if sentences:
                outside = is_group_held_out(document.group, fraction)
                kept = dataclasses.replace(document, sentences=tuple(sentences), held_out=outside)
                text = '\n'.join(sentences) + '\n\n'
                (held_out if outside else train).write(text)
                listed.write(json.dumps(dataclasses.asdict(kept), ensure_ascii=False) + '\n')
                sides[outside].add(kept, text)

        # Inside of the block, so that a refusal leaves none of the files.
        for outside in (False, True):
            if sides[outside].documents < MIN_DOCUMENTS:
                raise UserError(
                    f'the text has {sides[False].documents} documents to learn from and'
                    f' {sides[True].documents} to hold out, near-duplicates dropped: each needs'
                    f' {MIN_DOCUMENTS} (a document is what stands between blank lines)'
                )

    # Last, and with it the folder is complete.
    counts = {
        'train': sides[False].counts(),
        'held_out': sides[True].counts(),
        'dropped': {
            'near_copy_documents': copies.removed.documents + copies.removed.too_short,
            'near_copy_sentences': copies.removed.sentences,
        },
    }
    atomic_write(folder / COUNTS, json.dumps(counts, indent=2) + '\n')
    return counts


def read(directory: str) -> Iterator[Document]:
    """The documents of a text folder, in their order."""
    with open(Path(directory) / DOCUMENTS, encoding='utf-8') as file:
        for line in file:
            # Field by field, so that a file of another version fails here and not later.
            data = json.loads(line)
            yield Document(
                data['label'],
                data['group'],
                data['name'],
                tuple(data['sentences']),
                data['held_out'],
            )


class _Side:
    """Counts one side of the split."""

    def __init__(self) -> None:
        # Bytes as written, blank lines included: what the records stage counts on.
        self.documents = self.sentences = self.bytes = 0
        self.groups: set[str] = set()

    def add(self, document: Document, text: str) -> None:
        self.documents += 1
        self.sentences += len(document.sentences)
        self.bytes += len(text.encode())
        self.groups.add(document.group)

    def counts(self) -> dict[str, int]:
        return {
            'groups': len(self.groups),
            'documents': self.documents,
            'sentences': self.sentences,
            'bytes': self.bytes,
        }
