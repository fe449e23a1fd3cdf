"""Fine-tuning tasks cut from a text folder (see text_split.py), labelled by the text itself.

Two tasks: which library does a docstring come from, and is a passage whole or mixed with another.
Owns how their examples are chosen, balanced and cleared of what would give the label away, and
writes them as JSONL files with a JSON task file. Training examples come from the side that
pre-training saw, held-out examples from the other side alone. It must not know how a model is
trained on them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_file, atomic_write
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.reports.quickstart.pieces import passages, words
from bert_jax.reports.quickstart.text_split import Document, hashed

# Of a thousand examples an accuracy has a standard error of 1.6 % at most.
MAX_TRAIN, MAX_HELD_OUT = 4000, 1000
# `dev` is what bert-finetune scores; the quickstart selects nothing on it
FILES = {
    'train': 'train.jsonl',
    'dev': 'held_out.jsonl',
}

MAX_CLASSES, MIN_CLASSES = 10, 2
# Of passages; of a library more are asked for, of which there are enough.
MIN_TRAIN, MIN_HELD_OUT = 20, 4

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
# Words that dots and dashes join, since names are joined so (`np.linalg.norm`).
_TOKEN = re.compile(r'\w+(?:[.-]\w+)*', re.ASCII)
_JOINED = re.compile(r'[.-]?\w+', re.ASCII)
# Where a part of a word begins: `JaxArray`, `is_tf`, `TFRecord`, `H5py`.
_PART = r'(?:\b|_|(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?=[a-z]))'
# A sentence with one is left out as a whole: what it imports is what it is about.
_IMPORT = re.compile(r'\b(?:import\s+\w+|from\s+[\w.]+\s+import)\b')


class NameRemover:
    """Takes the names of libraries out of a text: `np.array` -> `array`, `KerasTensor` -> ''."""

    def __init__(self, labels: Iterable[str]):
        # Long names are looked for anywhere in a word, short ones only where a part begins: `tf`
        # stands inside of too many words (`outfit`).
        names = {name for label in labels for name in (label, *ALIASES.get(label, ()))}
        long, short = (
            '|'.join(re.escape(name) for name in sorted(names) if (len(name) > 4) is is_long)
            for is_long in (True, False)
        )
        self._name = re.compile(rf'(?i:{long or "(?!)"})|{_PART}(?i:{short or "(?!)"})', re.ASCII)

    def __call__(self, text: str) -> str:
        """Return the text without the names, the module aliases and the words made with one."""
        return re.sub(r'\s+', ' ', _TOKEN.sub(self._clean, text)).strip()

    def _clean(self, match: re.Match) -> str:
        # A word goes with what joins it to the one before: `np.array` -> `array`.
        words = _JOINED.findall(match[0])
        return ''.join(word for word in words if not self._name.search(word)).lstrip('.-')


def library_task(
    documents: Iterable[Document], folder: Path, min_train: int = 200, min_held_out: int = 50
) -> None:
    """Write the task: which library does a docstring come from?

    The classes are the labels with most examples (at most MAX_CLASSES, each with at least
    `min_train` and `min_held_out`), balanced within each split by a hash of the sources.

    Raises:
      UserError: fewer than MIN_CLASSES labels have enough.
    """
    documents = list(documents)

    # All packages' names and not only those of the classes: docstrings name one another's.
    remove = NameRemover(document.label for document in documents)

    # By side, then by label: a class must have enough on both sides.
    train, held_out = sides = [defaultdict[str, list[Document]](list) for _ in range(2)]
    for document in documents:
        sides[document.held_out][document.label].append(document)
    enough = [
        label
        for label, of_label in train.items()
        if len(of_label) >= min_train and len(held_out[label]) >= min_held_out
    ]

    # The largest classes; the order of the labels is then the alphabet's, which tells nothing.
    classes = sorted(sorted(enough, key=lambda label: (-len(train[label]), label))[:MAX_CLASSES])
    if len(classes) < MIN_CLASSES:
        raise UserError(
            f'{len(classes)} of the installed packages have {min_train} docstrings or more: too few'
            ' for a task; install the dependencies'
        )
    splits = {}
    for split, side, limit in (('train', train, MAX_TRAIN), ('dev', held_out, MAX_HELD_OUT)):
        # As many of each class, so that the commonest label is no answer.
        size = min(limit // len(classes), *(len(side[label]) for label in classes))
        chosen = [d for label in classes for d in sorted(side[label], key=_order)[:size]]

        # Shuffled by hash: in a file sorted by label the first examples would all be of one class.
        examples = (_example(document, remove) for document in sorted(chosen, key=_order))
        splits[split] = [example for example in examples if example.text]
    write(folder, splits, classes)


def _example(document: Document, remove: NameRemover) -> Example:
    """Return a docstring without names of libraries, and without sentences that import one."""
    prose = (remove(s) for s in document.sentences if not _IMPORT.search(s))
    return Example(' '.join(filter(None, prose)), document.label, document.source)


# --- is a passage whole, or mixed with another? ----------------------------------------

WHOLE, MIXED = 'whole', 'mixed'
# A word of more pieces is exchanged piece by piece: so that about as much is exchanged of languages
# whose words are long, and of scripts without spaces.
WORD_PIECES = 3
# Of shorter passages too few words could be exchanged.
MIN_WORDS = 6


def mixing_task(
    documents: Iterable[Document], tokenizer: Tokenizer, pieces: int, folder: Path
) -> None:
    """Write the task: is a passage whole, or mixed with another?

    Passages have at most `pieces` word pieces, and half as many at least. Every second of them has
    exchanged every second word with another passage, at the same place and on the same side of the
    split. So no word by itself gives the label away, nor its place: what tells is which words
    stand together.

    Raises:
      UserError: there are too few passages.
    """
    sides: tuple[list[Example], list[Example]] = [], []
    for document in documents:
        for i, text in enumerate(passages(document.sentences, tokenizer, pieces)):
            sides[document.held_out].append(Example(text, WHOLE, f'{document.group} {i}'))
    splits = {
        split: _mixed_by_half(side, tokenizer, pieces, limit)
        for split, side, limit in zip(FILES, sides, (MAX_TRAIN, MAX_HELD_OUT))
    }
    train, held_out = map(len, splits.values())
    if train < MIN_TRAIN or held_out < MIN_HELD_OUT:
        raise UserError(
            f'the text has {train} passages to learn from and {held_out} to be scored on: a'
            f' task needs {MIN_TRAIN} and {MIN_HELD_OUT}; give more text'
        )
    write(folder, splits, [WHOLE, MIXED])


def _mixed_by_half(
    examples: list[Example], tokenizer: Tokenizer, pieces: int, limit: int
) -> list[Example]:
    """Return at most `limit` rows of a task, by turns two whole ones and two mixed ones."""
    rows: list[Example] = []
    shuffled = sorted(examples, key=_order)
    for pair in zip(shuffled[::2], shuffled[1::2]):
        a, b = (words(example.text, tokenizer, WORD_PIECES) for example in pair)
        if min(len(a), len(b)) < MIN_WORDS:
            continue

        # Whether it is then mixed or not: where either would not fit, its length would tell.
        exchanged = slice(1, min(len(a), len(b)) - 1, 2)
        a[exchanged], b[exchanged] = b[exchanged], a[exchanged]
        whole, mixed = [example.text for example in pair], [''.join(a), ''.join(b)]
        sizes = [ids.size for ids in tokenizer.encode_batch([*whole, *mixed])]
        if max(sizes) > pieces or 2 * min(sizes) < pieces:
            continue
        label, texts = (MIXED, mixed) if len(rows) % 4 else (WHOLE, whole)
        rows += [Example(text, label, e.source) for text, e in zip(texts, pair)]
        if len(rows) >= limit:
            break

    # As many of both labels.
    return rows[: len(rows) // 4 * 4]


# --- the files of a task ---------------------------------------------------------------


class Example(NamedTuple):
    """A row of a task: a text, its label, and where it comes from."""

    text: str
    label: str
    source: str


def _order(example: Example | Document) -> float:
    """Return the key of an example in a shuffle that depends on its source alone."""
    return hashed(f'task {example.source}')


def write(folder: Path, splits: Mapping[str, Iterable[Example]], labels: list[str]) -> None:
    """Write a JSONL file for each split, and task.json; `splits`: 'train' and 'dev'."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        rows = (json.dumps(example._asdict(), ensure_ascii=False) for example in examples)
        with atomic_file(folder / FILES[split], 'w') as file:
            file.writelines(f'{row}\n' for row in rows)

    # The task file last: it names the others.
    task: dict[str, Any] = {
        'kind': 'classification',
        'files': FILES,
        'columns': {'text': 'text', 'label': 'label'},
        'labels': labels,
        'metrics': ['accuracy'],
    }
    atomic_write(folder / 'task.json', json.dumps(task, indent=2) + '\n')
