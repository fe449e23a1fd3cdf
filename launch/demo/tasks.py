"""Fine-tuning tasks cut from a text folder (see text_split.py), with labels that the text itself
gives.

Two tasks: which library does a docstring come from, and do two passages come from one
document. Owns how their examples are chosen, balanced and cleared of what would give the
label away, and writes them as JSONL files with a JSON task file. Training examples come
from the side that pre-training saw, held-out examples from the other side alone. It must
not know how a model is trained on them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from configs.atomic import atomic_file, atomic_write
from configs.errors import UserError
from launch.demo.text_split import Document, hashed

# Of a thousand examples an accuracy has a standard error of 1.6 % at most.
MAX_TRAIN, MAX_HELD_OUT = 4000, 1000
# `dev` is what launch.finetune scores; the quickstart selects nothing on it
FILES = {
    'train': 'train.jsonl',
    'dev': 'held_out.jsonl',
}

# --- which library does a docstring come from? -----------------------------------------

MAX_CLASSES, MIN_CLASSES = 10, 2
# What a library is also called: in `import numpy as np`, on the package index, in its own class
# names.
ALIASES = {
    'numpy': ('np',),
    'tensorflow': ('tf', 'tfl', 'tflite'),
    'tensorflow_datasets': ('tfds', 'tensorflow', 'tf'),
    'jax': ('jnp', 'jaxlib'),
    'jaxlib': ('jnp', 'jax'),
    'matplotlib': ('mpl', 'plt', 'pyplot', 'pylab'),
    'sklearn': ('scikit', 'scikitlearn'),
    'huggingface_hub': ('hf', 'hub', 'huggingface', 'hugging'),
    'orbax': ('ocp',),
    'flax': ('nnx', 'linen'),
    'tensorboard': ('tb',),
    'PIL': ('pillow',),
    'google': ('protobuf',),
}
# A word with what is joined to it by dots and dashes, since names are joined so (`np.linalg.norm`).
_TOKEN = re.compile(r'\w+(?:[.-]\w+)*', re.ASCII)
# The parts of a name in camel case: JaxArray -> Jax, Array.
_PARTS = re.compile(r'[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+')
# A sentence with one is left out as a whole: what it imports is what it is about.
_IMPORT = re.compile(r'\b(?:import\s+\w+|from\s+[\w.]+\s+import)\b')


class NameRemover:
    """Takes the names of libraries out of a text: `np.array` -> `array`, `KerasTensor` -> ''."""

    def __init__(self, labels: Iterable[str]):
        # Long names are looked for anywhere in a word, short ones only where a part begins: `tf`
        # stands inside of too many words (`outfit`).
        names = {name.lower() for label in labels for name in (label, *ALIASES.get(label, ()))}
        self._long = tuple(sorted(name for name in names if len(name) > 4))
        self._short = tuple(sorted(name for name in names if len(name) <= 4))

    def __call__(self, text: str) -> str:
        """The text without the names, the module aliases and the words made with one."""
        return re.sub(r'\s+', ' ', _TOKEN.sub(self._clean, text)).strip()

    def _clean(self, match: re.Match) -> str:
        # Even entries are words, of which those with a name go; odd ones the dots and dashes.
        pieces = re.split(r'([.-])', match[0])
        kept = [i for i in range(0, len(pieces), 2) if not self._tells(pieces[i])]

        # None went: 2 k - 1 pieces hold k words.
        if 2 * len(kept) > len(pieces):
            return match[0]

        # The first word that stays loses the dot before it: `np.array` -> `array`.
        return ''.join(
            pieces[i - 1] + pieces[i] if n and i else pieces[i] for n, i in enumerate(kept)
        )

    def _tells(self, word: str) -> bool:
        """Whether a word holds a library's name.

        A long one anywhere, a short one at the beginning of a part (`JaxArray`, `is_tf`).
        """
        parts = [
            part.lower() for piece in word.split('_') for part in (piece, *_PARTS.findall(piece))
        ]
        return any(name in word.lower() for name in self._long) or any(
            part.startswith(self._short) for part in parts
        )


def library_task(
    documents: Iterable[Document], directory: str, min_train: int = 200, min_held_out: int = 50
) -> Path:
    """Writes the task: which library does a docstring come from?

    The classes are the labels with most documents (at most MAX_CLASSES, each with at least
    `min_train` and `min_held_out`), balanced within each split by a hash of the names. Returns
    the task file. Raises UserError where fewer than MIN_CLASSES labels have enough.
    """
    # By side, then by label: a class must have enough on both sides.
    sides: dict[bool, dict[str, list[Document]]] = {
        False: defaultdict(list),
        True: defaultdict(list),
    }
    for document in documents:
        sides[document.held_out][document.label].append(document)
    enough = [
        label
        for label, train in sides[False].items()
        if len(train) >= min_train and len(sides[True][label]) >= min_held_out
    ]

    # The largest classes; the order of the labels is then the alphabet's, which tells nothing.
    classes = sorted(
        sorted(enough, key=lambda label: (-len(sides[False][label]), label))[:MAX_CLASSES]
    )
    if len(classes) < MIN_CLASSES:
        raise UserError(
            f'{len(classes)} of the installed packages have {min_train} docstrings or more: too few'
            ' for a task; install the dependencies'
        )

    # All packages' names and not only those of the classes: docstrings name one another's.
    remove = NameRemover(sides[False] | sides[True])
    splits = {}
    for split, side, most in (
        ('train', sides[False], MAX_TRAIN),
        ('dev', sides[True], MAX_HELD_OUT),
    ):
        # As many of each class, so that the commonest label is no answer.
        size = min(most // len(classes), *(len(side[label]) for label in classes))
        rows = []
        for label in classes:
            # Names go after sentences with an import have gone.
            for document in sorted(side[label], key=_order)[:size]:
                prose = [
                    remove(sentence)
                    for sentence in document.sentences
                    if not _IMPORT.search(sentence)
                ]
                row = {
                    'text': ' '.join(filter(None, prose)),
                    'label': label,
                    'source': f'{document.group}:{document.name}',
                }
                rows.append((_order(document), row))

        # Shuffled by hash: in a file sorted by label the first examples would all be of one class.
        splits[split] = [row for _, row in sorted(rows, key=lambda pair: pair[0]) if row['text']]
    return _write(
        Path(directory), splits, 'classification', classes, {'text': 'text', 'label': 'label'}
    )


def _order(document: Document) -> float:
    """Where a document stands in a shuffle that depends on its names alone."""
    return hashed(f'task {document.group} {document.name}')


# --- do two passages come from one document? -------------------------------------------

# About two sentences: enough to tell what a passage is about.
PASSAGE_CHARS = 160
# So that a few long documents do not make up the task.
MAX_PAIRS_OF_DOCUMENT = 6
_SAME, _DIFFERENT = 'same', 'different'


def pair_task(documents: Iterable[Document], directory: str) -> Path:
    """Writes the task: do two passages come from one document?

    A pair is a passage and a later one, not the next, of the same document. For the
    negatives the second passages change places among themselves, each with one of the
    nearest length, from the same part of its document (its first or second half), of
    another document: neither passage alone, nor length, nor position tells the label.
    Returns the task file. Raises UserError where the documents are too few or too short.
    """
    # Passages are made once, of whole sentences, for both sides alike.
    sides: dict[bool, list[tuple[Document, list[str]]]] = {False: [], True: []}
    for document in documents:
        sides[document.held_out].append((document, passages(document.sentences)))
    splits = {}
    for split, side, most in (
        ('train', sides[False], MAX_TRAIN),
        ('dev', sides[True], MAX_HELD_OUT),
    ):
        # Half of `most` are positives, the other half negatives.
        rows = sorted(_pairs(side, most // 2), key=lambda row: hashed(row['source']))
        if len(rows) < 20:
            raise UserError(
                f'the documents give {len(rows)} pairs for the {split} split, '
                '20 are needed: use more documents, of three or more passages each'
            )
        splits[split] = rows
    return _write(
        Path(directory),
        splits,
        'pair',
        [_DIFFERENT, _SAME],
        {'text': 'text', 'text_b': 'text_b', 'label': 'label'},
    )


def passages(sentences: Sequence[str]) -> list[str]:
    """Neighbouring sentences joined to passages of about PASSAGE_CHARS characters."""
    # What is left at the end is too short to be a passage, and is dropped.
    joined, current = [], ''
    for sentence in sentences:
        current = f'{current} {sentence}'.strip()
        if len(current) >= PASSAGE_CHARS:
            joined.append(current)
            current = ''
    return joined


def _pairs(side: Sequence[tuple[Document, list[str]]], most: int) -> list[dict[str, str]]:
    """At most `most` positive pairs, and as many negatives, of one side's documents."""
    positives = []
    for document, texts in side:
        name = f'{document.group} {document.name}'

        # First passages, chosen by hash; the last two have no passage two places on.
        places = sorted(range(len(texts) - 2), key=lambda i: hashed(f'pair {name} {i}'))
        for i in places[:MAX_PAIRS_OF_DOCUMENT]:
            # The second is not the next one: neighbours continue one another's sentences.
            j = i + 2 + int(hashed(f'second {name} {i}') * (len(texts) - i - 2))
            positives.append((name, i, j, texts[i], texts[j], 2 * j >= len(texts)))

    # Down to `most` by hash, so that documents early in the text are not preferred.
    positives = sorted(positives, key=lambda p: hashed(f'{p[0]} {p[1]}'))[:most]
    rows = []
    for half in (False, True):
        # By the length of the second passage: those near one another in the list exchange theirs.
        chosen = sorted(
            (p for p in positives if p[5] is half), key=lambda p: (len(p[4]), p[0], p[1])
        )
        seconds = _exchanged(chosen)
        for (name, i, j, first, second, _), other in zip(chosen, seconds):
            # Both rows or none: labels stay balanced, and each first passage stands on both sides.
            if other is not None:
                rows.append(
                    {'text': first, 'text_b': second, 'label': _SAME, 'source': f'{name} {i} {j}'}
                )
                rows.append(
                    {
                        'text': first,
                        'text_b': other[4],
                        'label': _DIFFERENT,
                        'source': f'{name} {i} / {other[0]} {other[2]}',
                    }
                )
    return rows


def _exchanged(chosen: list[tuple]) -> list[tuple | None]:
    """For each pair another one, whose second passage it gets; a permutation.

    Pairs are sorted by the length of their second passages. Neighbours of different documents
    swap; a pair that finds none within reach gets None.
    """
    # Greedy, within 20 places: further away the lengths would differ.
    partner: list[tuple | None] = [None] * len(chosen)
    for place, pair in enumerate(chosen):
        if partner[place] is None:
            for other in range(place + 1, min(place + 20, len(chosen))):
                if partner[other] is None and chosen[other][0] != pair[0]:
                    partner[place], partner[other] = chosen[other], pair
                    break
    return partner


# --- files -----------------------------------------------------------------------------


def _write(
    folder: Path,
    splits: dict[str, list[dict[str, str]]],
    kind: str,
    labels: list[str],
    columns: dict[str, str],
) -> Path:
    """Writes a JSONL file for each split, and task.json; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        with atomic_file(folder / FILES[split], 'w') as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)

    # The task file last: it names the others.
    task: dict[str, Any] = {
        'kind': kind,
        'files': FILES,
        'columns': columns,
        'labels': labels,
        'metrics': ['accuracy'],
    }
    atomic_write(folder / 'task.json', json.dumps(task, indent=2) + '\n')
    return folder / 'task.json'
