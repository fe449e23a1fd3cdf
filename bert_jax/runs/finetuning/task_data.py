"""A task as an encoder reads it: examples of two splits, their features, the rows of each step.

Owns what identifies them in a run's data.json, and which rows a run trains on; their order is
arithmetic in input_pipeline/tasks/batching.py. It must not know how they are trained on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.input_pipeline.tasks.base import ROW_KEYS, Arrays, Task
from bert_jax.input_pipeline.tasks.batching import (
    count_left_over,
    draw_subset,
    group_by_length,
    iterate_batches,
    iterate_bucketed_batches,
)
from bert_jax.input_pipeline.tasks.found import FoundTask
from bert_jax.input_pipeline.tasks.task_file import is_task_file
from bert_jax.runs.finetuning.evaluation import make_features
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir.workdir import Workdir


def task_identity(task: Task, name: str, data_dir: str) -> dict[str, Any]:
    """Return what data.json says of a task: where it is (absolute), what its model must have."""

    def absolute(path: str) -> str:
        # A workdir is read from other folders later: local paths are made absolute, others stay.
        is_local = path and '://' not in path and not path.startswith('tfds:')
        return os.path.abspath(path) if is_local else path

    return {
        'task': absolute(name) if is_task_file(name) else name,
        'data_dir': absolute(data_dir),
        'head': task.head,
        'labels': list(task.labels),
        'options': task.options,
    }


def keep_task(task: FoundTask, workdir: Workdir) -> str:
    """Write what was found of a table as the task file of a run, and log it; return its path.

    Raises:
      UserError: the folder holds a run on another task.
    """
    file = workdir.task_file(task.name)
    if workdir.config_file.exists() or workdir.swept():
        if not file.exists():
            raise UserError(f'--workdir={workdir} holds a run on another task; use another folder')
        # More splits may have been added to it, to be scored.
        kept = read_object(file)
        ours = set(task.description['files'])
        files = kept.get('files', {})
        kept['files'] = {split: files[split] for split in files if split in ours}
        differing = []
        for name in sorted({*kept, *task.description}):
            if kept.get(name) != task.description.get(name):
                differing.append(name)
        if differing:
            raise UserError(
                f'--workdir={workdir} holds a run on another task: {file} differs in'
                f' {", ".join(differing)}; use another folder, or --task={file}'
            )
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, task.text)
    logging.info(f'found this task, kept as {file}:\n{task.text.rstrip()}')
    return os.fspath(file)


class TaskData:
    """A task's training and scored examples, for the encoder of a source.

    Attributes:
      task, source: what it was made of.
      cache: folder for slow features.
      split: the split that is scored, dev where the task has one.
      train, scored: the examples of both splits.
      identity: all of it in JSON values, for the runs' data.json.
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        named: dict[str, Any],
        cache: str = '',
        train: list[Any] | None = None,
    ):
        """Read both splits.

        Args:
          task: the task.
          source: the encoder and its tokenizer.
          named: the task's part of data.json (`task_identity`).
          cache: folder for features that are slow to make; '' for no folder.
          train: examples to train on in place of the task's own, as of several languages.

        Raises:
          UserError: the scored split has no labels.
        """
        # Both splits now, so that a fault in either is reported before anything is computed.
        self.task, self.source, self.cache = task, source, cache
        self.split = task.selection_split
        if train is None:
            train = task.examples('train')
        self.train = train
        self.scored = task.examples(self.split)

        # A run is judged by this split, so it must have labels.
        if not task.labelled(self.scored):
            raise UserError(
                f'task {task.name}: its {self.split} split has no labels, so nothing can be scored:'
                ' give it a dev split'
            )

        # What a resumed run compares: the examples themselves and not their file's name, and the
        # encoder's weights and not its path.
        digest = hashlib.sha256(repr((self.train, self.scored)).encode()).hexdigest()
        self.identity = {
            **named,
            'examples': digest[:16],
            'init_from': source.where,
            'init_step': source.step,
            'init_fingerprint': source.fingerprint(),
            'tokenizer': source.tokenizer.fingerprint,
            'model': schema.to_dict(source.model),
        }
        # The runs of a sweep share them, for to make them is slow.
        self._features: dict[Any, tuple[Arrays, Arrays]] = {}

    def choose(self, count: int, seed: int) -> list[int]:
        """Return the numbers of the `count` examples that a run trains on; 0: all."""
        return draw_subset(range(len(self.train)), count, seed)

    def features(self, length: int, vectors: VectorsConfig | None = None) -> tuple[Arrays, Arrays]:
        """Return (training, scored) features of at most `length` pieces, made once.

        vectors: what a model of vectors says of its rows.
        """
        rows = vectors and (vectors.row('query', length), vectors.row('document', length))
        key = length, rows
        if key not in self._features:
            task = self.task.with_vectors(vectors)
            train = self._make_split(task, 'train', self.train, length)
            self._features[key] = train, self._make_split(task, self.split, self.scored, length)
        return self._features[key]

    def _make_split(self, task: Task, split: str, examples: list[Any], length: int) -> Arrays:
        features = make_features(task, split, examples, self.source, length, self.cache)
        rows, *shape = features['input_ids'].shape
        logging.info(
            f'{self.task.name} {split}: {len(examples)} examples, {rows} rows of'
            f' {" x ".join(map(str, shape))} pieces'
        )
        return features


class Batching(NamedTuple):
    """How rows are put together: so many a batch, in so many lengths, in an order drawn by seed."""

    size: int
    lengths: int
    seed: int


class TrainingRows:
    """The rows that one run trains on, as batches from any step on."""

    def __init__(
        self,
        features: Arrays,
        examples: Sequence[int],
        keys: Sequence[str],
        batching: Batching,
        are_negatives: bool = False,
    ):
        """Take, of the `features` of the whole split, the rows of these `examples`.

        Args:
          features: of the training split.
          examples: their numbers.
          keys: what a batch has besides ROW_KEYS.
          batching: how rows are put together.
          are_negatives: whether the other examples of a batch are negatives of each, so that a text
            must not be its own.
        """
        # An example may have several rows (windows of a context): all of them are trained on.
        rows = np.flatnonzero(np.isin(features['example_index'], examples))
        read = [name for name in ROW_KEYS if name in features]
        self._keys, self._batching = [*read, *keys], batching
        self._arrays = {name: features[name][rows] for name in (*self._keys, 'example_index')}
        self._distinct = None
        if are_negatives and 'text_numbers' in features:
            self._distinct = features['text_numbers'][rows, :, 0]
            self._log_left_over(self._distinct)

    def _log_left_over(self, distinct: np.ndarray) -> None:
        """Log how many rows an epoch has no place for."""
        size, lengths, seed = self._batching
        groups = [distinct]
        if lengths > 1:
            groups = [distinct[rows] for _, rows in group_by_length(self._arrays, lengths, size)]
        left = sum(count_left_over(group, size, seed) for group in groups)
        if left:
            logging.warning(
                f'{left} of {len(distinct)} training rows find no place in an epoch, since equal'
                ' texts share no batch; they come first in the next. Fewer are left over with a'
                f' smaller --batch_size (now {size}), or without repeated texts'
            )

    def iterate_batches(self, start: int, keys: Sequence[str] = ()) -> Iterator[Arrays]:
        """Yield endless batches of what a model reads, with labels, from step `start` (from 0) on.

        `keys`: the arrays of a batch, where they are others.
        """
        # With one length one program is compiled.
        size, lengths, seed = self._batching
        arguments = self._arrays, keys or self._keys, size, seed
        if lengths == 1:
            return iterate_batches(*arguments, start, self._distinct)
        return iterate_bucketed_batches(*arguments, lengths, start, self._distinct)

    def describe_step(self, step: int) -> str:
        """Say which training examples step number `step` (from 1) has read."""
        # The order is arithmetic, so any step's batch can be asked for again.
        batch = next(self.iterate_batches(step - 1, ['example_index']))
        # The same example may come twice in a batch, through two of its rows.
        numbers = sorted({int(number) for number in batch['example_index']})
        shown = ', '.join(map(str, numbers[:8]))
        if len(numbers) > 8:
            shown += f' and {len(numbers) - 8} more'
        return f'; step {step} read the training examples {shown} (from 0)'
