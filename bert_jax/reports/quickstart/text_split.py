"""A text split into what is learned from and what is held out, and cut into lines and passages.

A hash of a name decides what is held out, so it is the same on every machine and in every run. A
sentence that was there before is dropped first, so that none is on both sides.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file
from bert_jax.input_pipeline.text.lines import TextOptions

TRAIN, HELD_OUT = 'train.txt', 'held_out.txt'
# More than the usual few percent, for the task is scored on held-out text too.
HELD_OUT_FRACTION = 0.22
# On either side: a random next sentence needs another document to come from.
MIN_DOCUMENTS = 4
# Of a document: one sentence has no neighbour.
MIN_SENTENCES = 2
# Of a document of the user's, what is held out together: about a page.
PART_SENTENCES = 8
# About three lines to a row of 32 word pieces, or next sentence prediction has few neighbours.
LINE_BYTES = 45
# What a long word is cut to, of a script without spaces for one.
WORD_BYTES = 12


class Document(NamedTuple):
    """Sentences that follow each other; `group` names what is held out together."""

    group: str
    sentences: Sequence[str]


def hash_name(name: str) -> float:
    """Return a number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'big') / 2**64


def list_files(patterns: Sequence[str], options: TextOptions) -> list[Any]:
    """Return what identifies each file of a text, or each stretch of one, and when it was written.

    Raises:
      UserError: no file matches.
    """
    from bert_jax.input_pipeline.text.corpus import units

    files = [file for unit in units(patterns, options) for file in unit.files()]
    return [[file.path, file.start, file.bytes, file.version, file.state] for file in files]


def iterate_own_text(
    patterns: Sequence[str], options: TextOptions, limit: int
) -> Iterator[Document]:
    """Yield parts of the user's documents, of those with the smallest hashes about `limit` bytes.

    They are in the order of the text. A part is on one side of the split, its document on both.
    """
    from bert_jax.input_pipeline.text.corpus import Report, read_documents

    # The largest hash on top. What is kept does not depend on the order of the files, and memory
    # holds no more than the limit.
    heap: list[tuple[float, int, str, list[str]]] = []
    report = Report()
    total = size = 0
    for number, document in enumerate(read_documents(patterns, options, report)):
        name = '{}:{}'.format(*document.name)
        heapq.heappush(heap, (-hash_name(name), number, name, document.sentences))
        added = count_bytes(document.sentences)
        total += added
        size += added
        while size > limit and len(heap) > 1:
            size -= count_bytes(heapq.heappop(heap)[-1])
    for line in report.lines():
        logging.warning(line)
    if size < total:
        logging.info(
            '%.1f of %.1f MB are used, documents chosen by a hash (--corpus_mb for more)',
            size / 1e6,
            total / 1e6,
        )

    for _, _, name, sentences in sorted(heap, key=lambda kept: kept[1]):
        for start in range(0, len(sentences), PART_SENTENCES):
            yield Document(f'{name} {start}', sentences[start : start + PART_SENTENCES])


def count_bytes(sentences: Sequence[str]) -> int:
    """Return the bytes of sentences as UTF-8."""
    return sum(len(sentence.encode()) for sentence in sentences)


def write_split(documents: Iterable[Document], folder: Path) -> None:
    """Write train.txt and held_out.txt, cut to lines, with blank lines between documents.

    Of equal sentences, capitals aside, the first is kept.

    Raises:
      UserError: either side has too few documents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    written = Counter[str]()
    with (
        atomic_file(folder / TRAIN, 'w') as train,
        atomic_file(folder / HELD_OUT, 'w') as held_out,
    ):
        for group, sentences in documents:
            new: dict[str, str] = {}
            for sentence in sentences:
                if sentence.lower() not in seen:
                    new.setdefault(sentence.lower(), sentence)
            if len(new) < MIN_SENTENCES:
                continue
            seen.update(new)
            lines = [line for sentence in new.values() for line in cut_text(sentence, LINE_BYTES)]
            side = held_out if hash_name(group) < HELD_OUT_FRACTION else train
            side.write('\n'.join(lines) + '\n\n')
            written[side.name] += 1
        numbers = written[train.name], written[held_out.name]
        if min(numbers) < MIN_DOCUMENTS:
            raise UserError(
                f'the text has {numbers[0]} documents to learn from and {numbers[1]} to hold out,'
                f' copies dropped: each needs {MIN_DOCUMENTS} (a document is what stands between'
                ' blank lines)'
            )
    logging.info('%s documents to learn from, %s held out', *numbers)


def cut_text(text: str, limit: int) -> list[str]:
    """Return a text in parts of about equal length and about `limit` bytes.

    It is cut between words; inside of a word only where one alone is longer, as a whole sentence
    of Chinese or Thai is.
    """
    count = max(1, -(-len(text.encode()) // limit))
    parts = [''] * count
    end = 0
    for word in split_words(text, limit):
        # A word belongs to the part in which its middle lies.
        end += len(word)
        middle = end - len(word) / 2
        parts[int(middle * count / len(text))] += word
    return [part.strip() for part in parts if part.strip()]


def split_words(text: str, limit: int) -> list[str]:
    """Return the words with the space after them; of one over `limit` bytes its parts."""
    words = []
    for word in re.findall(r'\S+\s*', text):
        if len(word.encode()) <= limit:
            words.append(word)
        else:
            chars = max(1, WORD_BYTES * len(word) // len(word.encode()))
            words += re.findall(rf'\S{{1,{chars}}}\s*', word)
    return words
