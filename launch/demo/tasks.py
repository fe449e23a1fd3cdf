"""Fine-tuning tasks cut from a text folder (see text_split.py), with labels that the text itself
gives.

Two tasks: which library does a docstring come from, and which document does a passage come from.
Owns how their examples are chosen, balanced and cleared of what would give the label away, and
writes them as JSONL files with a JSON task file. Training examples come from the side that
pre-training saw, held-out examples from the other side alone. It must not know how a model is
trained on them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from configs.errors import UserError
from configs.files.atomic import atomic_file, atomic_write
from input_pipeline.tokenizer import Tokenizer
from launch.demo.pieces import passages
from launch.demo.text_split import Document, hashed

# Of a thousand examples an accuracy has a standard error of 1.6 % at most.
MAX_TRAIN, MAX_HELD_OUT = 4000, 1000
# `dev` is what launch.finetune scores; the quickstart selects nothing on it
FILES = {
    'train': 'train.jsonl',
    'dev': 'held_out.jsonl',
}

MAX_CLASSES, MIN_CLASSES = 10, 2
# Of a class of documents; of libraries more are asked for, of which there are enough.
MIN_TRAIN, MIN_HELD_OUT = 20, 5
# More of a document need not be: ten classes then give 2,000 examples, and 1,000 to be scored on.
ENOUGH_TRAIN, ENOUGH_HELD_OUT = 200, 100

# --- which library does a docstring come from? -----------------------------------------

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

    Its classes as `classification` chooses them.
    """
    documents = list(documents)

    # All packages' names and not only those of the classes: docstrings name one another's.
    remove = NameRemover(document.label for document in documents)

    def examples() -> Iterator[Example]:
        for document in documents:
            # Names go after sentences with an import have gone.
            prose = (remove(s) for s in document.sentences if not _IMPORT.search(s))
            text = ' '.join(filter(None, prose))
            source = f'{document.group} {document.name}'
            yield Example(document.label, document.held_out, text, source)

    few = f'the installed packages have {min_train} docstrings or more: too few for a task; install'
    largest = lambda label, train, held_out: (-train, label)
    return classification(
        examples(), directory, largest, min_train, min_held_out, f'{few} the dependencies'
    )


# --- which document does a passage come from? ------------------------------------------


def document_task(
    documents: Iterable[Document], tokenizer: Tokenizer, pieces: int, directory: str
) -> Path:
    """Writes the task: which document does a passage come from?

    Passages have at most `pieces` word pieces, and half as many at least. They come from parts of
    the documents, each part wholly on one side, so that no held-out passage was seen before. Of the
    documents that have passages enough any are taken, not the largest: those are often chapters of
    one book, which nothing but the names of its people tells apart.
    """

    def rank(label: str, train: int, held_out: int) -> tuple[float, float]:
        enough = min(train / ENOUGH_TRAIN, held_out / ENOUGH_HELD_OUT, 1)
        return -enough, hashed(label)

    def examples() -> Iterator[Example]:
        for document in documents:
            found = passages(document.sentences, tokenizer, pieces)
            for i, text in enumerate(found):
                yield Example(document.label, document.held_out, text, f'{document.group} {i}')

    few = f'the documents have {MIN_TRAIN} passages or more: too few for a task; give longer ones'
    return classification(
        examples(),
        directory,
        rank,
        MIN_TRAIN,
        MIN_HELD_OUT,
        f'{few} (--documents=file: a file is one)',
    )


# --- any task of one text and its label ------------------------------------------------


class Example(NamedTuple):
    """A text, its label, the side that it is on, and where it comes from."""

    label: str
    held_out: bool
    text: str
    source: str


def classification(
    examples: Iterable[Example],
    directory: str,
    rank: Callable[[str, int, int], Any],
    min_train: int,
    min_held_out: int,
    few: str,
) -> Path:
    """Writes a task; returns its file.

    The classes are the first MAX_CLASSES of the labels with at least `min_train` and `min_held_out`
    examples, sorted by `rank(label, to learn from, held out)`; they are balanced within each split
    by a hash of the sources. Raises UserError, ending in `few`, where fewer than MIN_CLASSES labels
    have enough.
    """
    # By side, then by label: a class must have enough on both sides.
    sides: dict[bool, dict[str, list[Example]]] = {
        False: defaultdict(list),
        True: defaultdict(list),
    }
    for example in examples:
        sides[example.held_out][example.label].append(example)
    enough = [
        label
        for label, train in sides[False].items()
        if len(train) >= min_train and len(sides[True][label]) >= min_held_out
    ]

    # The order of the labels is then the alphabet's, which tells nothing.
    by_rank = lambda label: rank(label, len(sides[False][label]), len(sides[True][label]))
    classes = sorted(sorted(enough, key=by_rank)[:MAX_CLASSES])
    if len(classes) < MIN_CLASSES:
        raise UserError(f'{len(classes)} of {few}')
    splits = {}
    for split, side, most in (
        ('train', sides[False], MAX_TRAIN),
        ('dev', sides[True], MAX_HELD_OUT),
    ):
        # As many of each class, so that the commonest label is no answer.
        size = min(most // len(classes), *(len(side[label]) for label in classes))
        chosen = [e for label in classes for e in sorted(side[label], key=_order)[:size]]

        # Shuffled by hash: in a file sorted by label the first examples would all be of one class.
        splits[split] = [
            {'text': example.text, 'label': example.label, 'source': example.source}
            for example in sorted(chosen, key=_order)
            if example.text
        ]
    return write(Path(directory), splits, classes)


def _order(example: Example) -> float:
    """Where an example stands in a shuffle that depends on its source alone."""
    return hashed(f'task {example.source}')


# --- the files of a task ---------------------------------------------------------------


def write(folder: Path, splits: dict[str, list[dict[str, str]]], labels: list[str]) -> Path:
    """Writes a JSONL file for each split, and task.json; returns the latter.

    `splits`: the rows of 'train' and 'dev', each with a text, its label and where it comes from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        with atomic_file(folder / FILES[split], 'w') as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)

    # The task file last: it names the others.
    task: dict[str, Any] = {
        'kind': 'classification',
        'files': FILES,
        'columns': {'text': 'text', 'label': 'label'},
        'labels': labels,
        'metrics': ['accuracy'],
    }
    atomic_write(folder / 'task.json', json.dumps(task, indent=2) + '\n')
    return folder / 'task.json'
