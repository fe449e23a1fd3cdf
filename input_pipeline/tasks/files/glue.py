"""GLUE's tasks as data: which columns, labels and metrics, over classification.py.

This file owns the layout of the official files (columns counted from 0) and the order of
the labels, which is that of run_classifier.py. It must not read anything itself.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from bert_jax.input_pipeline.tasks.classification import TextTask, text_task
from bert_jax.input_pipeline.text.tables import Table

# The place of a label is its index, in the order of run_classifier.py's processors.
NLI = ('contradiction', 'entailment', 'neutral')
ENTAILMENT = ('entailment', 'not_entailment')
BINARY = ('0', '1')


class _Glue(NamedTuple):
    """A task; columns are places from 0, and a test split has its ids in column 0.

    Attributes:
      kind: classification, pair or regression.
      labels: in the order of the outputs.
      metrics: the first selects.
      texts: the columns of the text, or of both, where there are labels.
      label: the column of the label.
      test: the columns of the texts in a test split.
      ids: the other splits that have ids, in column 0.
      splits: those that it has.
    """

    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    texts: tuple[int, ...]
    label: int
    test: tuple[int, ...]
    ids: tuple[str, ...] = ()
    splits: tuple[str, ...] = ('train', 'dev', 'test')

    def columns(self, split: str) -> dict[str, int]:
        """Return role -> place of the columns of a split."""
        test = split.startswith('test')
        columns = dict(zip(('text', 'text_b'), self.test if test else self.texts, strict=False))
        columns |= {} if test else {'label': self.label}
        return columns | ({'id': 0} if test or split in self.ids else {})


_MNLI_IDS = ('dev', 'dev_mismatched')
_MNLI_SPLITS = ('train', *_MNLI_IDS, 'test', 'test_mismatched')
_F1, _ACCURACY, _MATTHEWS = ('f1', 'accuracy'), ('accuracy',), ('matthews', 'accuracy')
_CORRELATIONS = ('spearman', 'pearson')
_TASKS = {
    'cola': _Glue('classification', BINARY, _MATTHEWS, (3,), 1, (1,)),
    'sst2': _Glue('classification', BINARY, _ACCURACY, (0,), 1, (1,)),
    'mrpc': _Glue('pair', BINARY, _F1, (3, 4), 0, (3, 4)),
    'stsb': _Glue('regression', (), _CORRELATIONS, (7, 8), 9, (7, 8), ('train', 'dev')),
    'qqp': _Glue('pair', BINARY, _F1, (3, 4), 5, (1, 2)),
    'mnli': _Glue('pair', NLI, _ACCURACY, (8, 9), -1, (8, 9), _MNLI_IDS, _MNLI_SPLITS),
    'qnli': _Glue('pair', ENTAILMENT, _ACCURACY, (1, 2), 3, (1, 2), ('dev',)),
    'rte': _Glue('pair', ENTAILMENT, _ACCURACY, (1, 2), 3, (1, 2)),
    'wnli': _Glue('pair', BINARY, _ACCURACY, (1, 2), 3, (1, 2)),
    # The diagnostic set has no training data: an MNLI model answers it.
    'ax': _Glue('pair', NLI, _MATTHEWS, (), 0, (1, 2), splits=('test',)),
}
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
# CoLA's labelled files start with an example, not with names.
_HEADERLESS = (('cola', 'train'), ('cola', 'dev'))


def by_name(name: str, data_dir: str) -> TextTask:
    """Return the GLUE task `name` on the official files in `data_dir`, or tensorflow-datasets.

    For the latter `data_dir` is tfds:, or tfds:FOLDER of all data sets.
    """
    task = _TASKS[name]
    make = _tfds_table if data_dir.startswith('tfds:') else _official_table
    folder = data_dir.removeprefix('tfds:')
    files = {split: (make(name, split, folder),) for split in task.splits}
    return text_task(name, task.kind, task.labels, task.metrics, files)


def _whole_name(name: str, split: str) -> str:
    """Return what a split is called in full: of MNLI `dev` and `test` are the matched ones."""
    return f'{split}_matched' if name == 'mnli' and split in ('dev', 'test') else split


def _official_table(name: str, split: str, folder: str) -> Table:
    """Return a split's official file, by its columns' places: headers differ from task to task."""
    stem = 'diagnostic' if name == 'ax' else _whole_name(name, split)
    return Table(
        os.path.join(folder, f'{stem}.tsv'),
        _TASKS[name].columns(split),
        header=(name, split) not in _HEADERLESS,
        # QQP has questions with line breaks in them: a few rows are torn, and everyone leaves them
        # out
        skip_bad_rows=name == 'qqp' and split != 'test',
    )


def _tfds_table(name: str, split: str, folder: str) -> Table:
    """Return a split of tensorflow-datasets' glue.

    Its test splits have a column of labels that say nothing, so it is left out.
    """
    texts = _TFDS_TEXTS.get(name, ('sentence1', 'sentence2'))
    columns = dict(zip(('text', 'text_b'), texts, strict=False)) | {'id': 'idx'}
    if 'test' not in split:
        columns['label'] = 'label'
    # Labels called 0 and 1 are given as numbers there, others by their names.
    return Table(
        folder,
        columns,
        tfds=f'glue/{name}',
        split=_whole_name(name, split).replace('dev', 'validation'),
        class_names=_TASKS[name].labels != BINARY,
    )
