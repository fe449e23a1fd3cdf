"""A corpus cut into the text to learn from and the text to be tested on.

Owns the held-out rule, a stable hash of the name of what is held out together (a module,
a document), and the files of a text folder. A sentence that was there before is dropped over the
whole corpus first, so that none is on both sides. It must not know where the documents come from.
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

TRAIN, HELD_OUT, DOCUMENTS, COUNTS = 'train.txt', 'held_out.txt', 'documents.jsonl', 'counts.json'
# More than the usual few percent: tasks are cut from the held-out side too.
HELD_OUT_FRACTION = 0.22
# Of either side; a random next sentence needs another document to come from.
MIN_DOCUMENTS = 4
# Of a document without what was there before; one sentence has no neighbour.
MIN_SENTENCES = 2


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

    @property
    def source(self) -> str:
        """Return what tells it from all others."""
        return f'{self.group} {self.name}'


def hashed(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'big') / 2**64


def split(documents: Iterable[Document], directory: Path) -> dict[str, Any]:
    """Write a text folder and return its counts, which counts.json holds as well.

    The folder: train.txt and held_out.txt, a sentence a line, a blank line between
    documents; documents.jsonl, every document with its names and side. Of two equal sentences,
    capitals aside, the first is kept. Whether a group is held out is a matter of its name alone,
    so the same on every machine and in every run.

    Raises:
      UserError: either side has too few documents.
    """
    directory.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    groups: dict[str, set[str]] = {'train': set(), 'held_out': set()}
    # Bytes as written, blank lines included: what the records stage counts on.
    counts = {side: {'groups': 0, 'documents': 0, 'sentences': 0, 'bytes': 0} for side in groups}
    dropped = {'documents': 0, 'sentences': 0}
    with (
        atomic_file(directory / TRAIN, 'w') as train,
        atomic_file(directory / HELD_OUT, 'w') as held_out,
        atomic_file(directory / DOCUMENTS, 'w') as listed,
    ):
        files = {'train': train, 'held_out': held_out}
        # All three files at once, each whole or not at all.
        for document in documents:
            sentences: dict[str, str] = {}
            for sentence in document.sentences:
                sentences.setdefault(sentence.lower(), sentence)
            new = tuple(text for key, text in sentences.items() if key not in seen)
            if len(new) < MIN_SENTENCES:
                dropped['documents'] += 1
                continue
            # What is dropped must not make others drop. (`|=` with keys would copy the whole set.)
            seen.update(sentences)
            dropped['sentences'] += len(document.sentences) - len(new)
            outside = hashed(document.group) < HELD_OUT_FRACTION
            kept = dataclasses.replace(document, sentences=new, held_out=outside)
            listed.write(json.dumps(vars(kept), ensure_ascii=False) + '\n')
            side = 'held_out' if outside else 'train'
            text, sums = '\n'.join(new) + '\n\n', counts[side]
            files[side].write(text)
            groups[side].add(document.group)
            sums['groups'] = len(groups[side])
            sums['documents'] += 1
            sums['sentences'] += len(new)
            sums['bytes'] += len(text.encode())
        if min(side['documents'] for side in counts.values()) < MIN_DOCUMENTS:
            raise UserError(
                f'the text has {counts["train"]["documents"]} documents to learn from and'
                f' {counts["held_out"]["documents"]} to hold out, copies dropped: each needs'
                f' {MIN_DOCUMENTS} (a document is what stands between blank lines)'
            )

    # Last, and with it the folder is complete.
    facts = {**counts, 'dropped': dropped}
    atomic_write(directory / COUNTS, json.dumps(facts, indent=2) + '\n')
    return facts


def read(directory: Path) -> Iterator[Document]:
    """Yield the documents of a text folder, in their order."""
    with open(directory / DOCUMENTS, encoding='utf-8') as file:
        for line in file:
            facts = json.loads(line)
            yield Document(**{**facts, 'sentences': tuple(facts['sentences'])})
