"""GLUE's tasks as data: which columns, labels and metrics, over classification.py.

This file owns the layout of the official files (columns counted from 0) and the order of
the labels, which is that of run_classifier.py. It must not read anything itself.
"""

from __future__ import annotations

import os

from bert_jax.input_pipeline.tasks.classification import TextTask
from bert_jax.input_pipeline.text.tables import Table

# The place of a label is its index, in the order of run_classifier.py's processors.
NLI = ('contradiction', 'entailment', 'neutral')
ENTAILMENT = ('entailment', 'not_entailment')
BINARY = ('0', '1')


def _columns(
    text: int, text_b: int | None = None, label: int | None = None, id: int | None = None
) -> dict[str, int]:
    """Role -> place of those columns that the file has."""
    places = {'text': text, 'text_b': text_b, 'label': label, 'id': id}
    return {role: place for role, place in places.items() if place is not None}


# fmt: off
_Files = dict[str, tuple[str, dict[str, int]]]  # split -> (file, columns)
# Task -> (kind, labels, metrics (the first selects), files).
_TASKS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], _Files]] = {
    'cola': ('classification', BINARY, ('matthews', 'accuracy'), {
        'train': ('train.tsv', _columns(3, label=1)),
        'dev': ('dev.tsv', _columns(3, label=1)),
        'test': ('test.tsv', _columns(1, id=0)),
    }),
    'sst2': ('classification', BINARY, ('accuracy',), {
        'train': ('train.tsv', _columns(0, label=1)),
        'dev': ('dev.tsv', _columns(0, label=1)),
        'test': ('test.tsv', _columns(1, id=0)),
    }),
    'mrpc': ('pair', BINARY, ('f1', 'accuracy'), {
        'train': ('train.tsv', _columns(3, 4, label=0)),
        'dev': ('dev.tsv', _columns(3, 4, label=0)),
        'test': ('test.tsv', _columns(3, 4, id=0)),
    }),
    'stsb': ('regression', (), ('spearman', 'pearson'), {
        'train': ('train.tsv', _columns(7, 8, label=9, id=0)),
        'dev': ('dev.tsv', _columns(7, 8, label=9, id=0)),
        'test': ('test.tsv', _columns(7, 8, id=0)),
    }),
    'qqp': ('pair', BINARY, ('f1', 'accuracy'), {
        'train': ('train.tsv', _columns(3, 4, label=5)),
        'dev': ('dev.tsv', _columns(3, 4, label=5)),
        'test': ('test.tsv', _columns(1, 2, id=0)),
    }),
    'mnli': ('pair', NLI, ('accuracy',), {
        'train': ('train.tsv', _columns(8, 9, label=-1)),
        'dev': ('dev_matched.tsv', _columns(8, 9, label=-1, id=0)),
        'dev_mismatched': ('dev_mismatched.tsv', _columns(8, 9, label=-1, id=0)),
        'test': ('test_matched.tsv', _columns(8, 9, id=0)),
        'test_mismatched': ('test_mismatched.tsv', _columns(8, 9, id=0)),
    }),
    'qnli': ('pair', ENTAILMENT, ('accuracy',), {
        'train': ('train.tsv', _columns(1, 2, label=3)),
        'dev': ('dev.tsv', _columns(1, 2, label=3, id=0)),
        'test': ('test.tsv', _columns(1, 2, id=0)),
    }),
    'rte': ('pair', ENTAILMENT, ('accuracy',), {
        'train': ('train.tsv', _columns(1, 2, label=3)),
        'dev': ('dev.tsv', _columns(1, 2, label=3, id=0)),
        'test': ('test.tsv', _columns(1, 2, id=0)),
    }),
    'wnli': ('pair', BINARY, ('accuracy',), {
        'train': ('train.tsv', _columns(1, 2, label=3)),
        'dev': ('dev.tsv', _columns(1, 2, label=3, id=0)),
        'test': ('test.tsv', _columns(1, 2, id=0)),
    }),
    # The diagnostic set has no training data: an MNLI model answers it.
    'ax': ('pair', NLI, ('matthews', 'accuracy'), {
        'test': ('diagnostic.tsv', _columns(1, 2, id=0)),
    }),
}
# fmt: on
NAMES = tuple(_TASKS)
# The columns of tensorflow-datasets' `glue`, where they are not sentence1 and sentence2.
_TFDS_TEXTS = {
    'cola': ('sentence',),
    'sst2': ('sentence',),
    'qqp': ('question1', 'question2'),
    'mnli': ('premise', 'hypothesis'),
    'qnli': ('question', 'sentence'),
    'ax': ('premise', 'hypothesis'),
}
_TFDS_SPLITS = {'train': 'train', 'dev': 'validation', 'test': 'test'}
_TFDS_MNLI = {
    'dev': 'validation_matched',
    'dev_mismatched': 'validation_mismatched',
    'test': 'test_matched',
    'test_mismatched': 'test_mismatched',
}
# CoLA's labelled files start with an example, not with names.
_HEADERLESS = (('cola', 'train'), ('cola', 'dev'))


def by_name(name: str, data_dir: str) -> TextTask:
    """The GLUE task `name` on the official files in `data_dir`, or on tensorflow-datasets.

    For the latter `data_dir` is tfds:, or tfds:FOLDER of all data sets.
    """
    kind, labels, metrics, splits = _TASKS[name]
    if data_dir.startswith('tfds:'):
        files = {
            split: (_tfds_table(name, split, data_dir.removeprefix('tfds:')),) for split in splits
        }
        return TextTask(name, kind, labels, metrics, files)

    # Official files, by their columns' places: their headers differ from task to task.
    files = {
        split: (
            Table(
                os.path.join(data_dir, file),
                columns,
                header=(name, split) not in _HEADERLESS,
                # QQP has questions with line breaks in them: a few rows are torn, and everyone
                # leaves them out
                skip_bad_rows=name == 'qqp' and split != 'test',
            ),
        )
        for split, (file, columns) in splits.items()
    }
    return TextTask(name, kind, labels, metrics, files)


def _tfds_table(name: str, split: str, folder: str) -> Table:
    """A split of tensorflow-datasets' glue.

    Its test splits have a column of labels that are none, so it is left out.
    """
    labels = _TASKS[name][1]
    texts = _TFDS_TEXTS.get(name, ('sentence1', 'sentence2'))
    columns = dict(zip(('text', 'text_b'), texts, strict=False)) | {'id': 'idx'}
    if 'test' not in split:
        columns['label'] = 'label'
    theirs = (_TFDS_MNLI if name == 'mnli' else _TFDS_SPLITS).get(split, split)

    # Labels called 0 and 1 are given as numbers there, others by their names.
    return Table(folder, columns, tfds=f'glue/{name}', split=theirs, class_names=labels != BINARY)
