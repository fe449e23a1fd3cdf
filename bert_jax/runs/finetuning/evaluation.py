"""A model over a split of a task: predictions, scores, and the files that hold them.

Owns the way of a split to its predictions, and the results of a fine-tuned workdir:
predictions/SPLIT/ in the task's official format, and eval/SPLIT.json. How batches are run is
data_collator.py's.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.atomic import atomic_write
from bert_jax.input_pipeline.tasks import Predictions, Task, load_task
from bert_jax.input_pipeline.tasks import features as task_features
from bert_jax.input_pipeline.tasks.base import INPUT_KEYS, Arrays, Example, trim
from bert_jax.input_pipeline.text.whole_text import read_json
from bert_jax.mesh import sharding
from bert_jax.model import partition
from bert_jax.runs.finetuning.data_collator import by_length, counted_jit, gather, run
from bert_jax.runs.sources.source import Source, load_source
from bert_jax.runs.workdir import word_vectors
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import task_heads


def check_segments(task: Task, features: Arrays, source: Source) -> None:
    """Raises UserError where inputs have a segment that the model has no row for: jax would read
    another row.
    """
    segments, rows = int(features['segment_ids'].max(initial=0)) + 1, source.model.type_vocab_size
    if segments > rows:
        raise UserError(
            f'task {task.name}: its inputs are of {segments} segments, and {source.where} knows'
            f' {rows} (type_vocab_size={rows}): take a model with type_vocab_size={segments} or'
            ' more'
        )


def say_cut(task: Task, split: str, features: Arrays, length: int) -> None:
    """A line in the log where texts of the split were cut to fit in rows of `length`."""
    limit = task_features.limit_of(task.options, length)
    task_features.say_cut(f'{task.name} {split}', task_features.cut_of(features), limit)


class SplitPredictor:
    """Runs a model over splits of a task: features in, predictions out. Compiles once for each
    length of input.
    """

    def __init__(
        self, task: Task, model: Any, mesh: jax.sharding.Mesh, counts: collections.Counter
    ):
        self._task, self._mesh = task, mesh
        predict = task_heads.make_predict(task.head, model, task.n_best)
        self._predict = counted_jit(
            predict, counts, 'predict', out_shardings=sharding.replicated(mesh)
        )

    def __call__(
        self,
        params: Any,
        examples: Sequence[Example],
        features: Arrays,
        buckets: int = 1,
        inputs: Callable[[Arrays], Arrays] | None = None,
    ) -> Predictions:
        """The model's predictions for all examples.

        features: the task's, of `examples`; rows of like length go together, in at most `buckets`
        lengths. `inputs` makes what the model reads of a batch of INPUT_KEYS; without it that is
        the batch.
        """
        arrays = {name: features[name] for name in INPUT_KEYS}
        plan = by_length(features, buckets, self._mesh)

        # Every row once: the plan holds all of them, and `gather` restores their order.
        # all batches are on their way before the first is waited for
        results = list(run(self._predict, params, arrays, plan, self._mesh, inputs))
        outputs = gather(results, len(features['input_ids']))
        return self._task.decode(examples, features, outputs)


def config_hash(config: schema.Config) -> str:
    """Sixteen hex digits that name a configuration."""
    return hashlib.sha256(schema.dumps(config).encode()).hexdigest()[:16]


def check_writable(workdir: Workdir) -> None:
    """Raises UserError where a local workdir takes no results, before they are computed."""
    if '://' not in workdir.name and not os.access(workdir, os.W_OK):
        raise UserError(
            f'--workdir={workdir} cannot be written to, and the results go there: copy it to where'
            ' they can'
        )


def write_result(workdir: Workdir, split: str, result: dict[str, Any]) -> dict[str, Any]:
    """Writes `result` as eval/SPLIT.json in a workdir; returns it."""
    target = workdir.result(split)
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, json.dumps(result, indent=2) + '\n')
    return result


def record(
    task: Task,
    split: str,
    examples: Sequence[Example],
    predictions: Predictions,
    workdir: Workdir,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Writes the predictions of a split and then eval/SPLIT.json, whose contents it returns.

    A split without labels has no metrics. `facts` are what else is known of the run: its step, the
    hash of its configuration.
    """
    # Predictions first: eval/SPLIT.json is the mark that all of it is there.
    task.write_predictions(str(workdir.predictions(split)), examples, predictions)

    # A test split often has no labels: then there are predictions alone.
    scores = task.score(examples, predictions) if task.labelled(examples) else {}
    result = {
        'task': task.name,
        'split': split,
        'metric': task.metric,
        'metrics': scores,
        'examples': len(examples),
    }

    # `result` wins over `facts`: what is measured now replaces what was noted before.
    return write_result(workdir, split, facts | result)


def _texts(number: int) -> str:
    """What an example has."""
    return 'one text' if number == 1 else 'two texts'


class TrainedTask:
    """A fine-tuned model in memory, and the split of a task that it is asked about.

    Attributes: workdir; config: its run's; task, split, examples; step: of its weights; name: what
    results on the split are filed under, which another task's do not share with its own.
    """

    def __init__(self, folder: str, task_name: str | None, data_dir: str | None, split: str | None):
        """Loads the newest checkpoint.

        task_name, data_dir: of another task with the same head and labels; None: of its own, as in
          fine-tuning.
        split: None: dev, or test where the task has no dev.

        UserError where the workdir is none, or its model does not fit the task.
        """
        # What the workdir was trained for, which must be what is asked.
        workdir = Workdir(folder)
        config = workdir.config()
        if not isinstance(config, schema.FinetuneConfig):
            raise UserError(
                f'--workdir={workdir} is not fine-tuned: name its held-out records with --data'
            )
        check_writable(workdir)
        data = workdir.data(task=str, data_dir=str, head=str, labels=list)

        # Another task may be scored (AX by an MNLI model) if its head and labels are the model's
        # own.
        self.own = task_name is None
        task = load_task(
            data['task'] if task_name is None else task_name,
            data['data_dir'] if self.own and data_dir is None else data_dir or '',
        )
        if (task.head, list(task.labels)) != (data['head'], data['labels']):
            raise UserError(
                f'--task={task.name}: its labels {list(task.labels)} are not those of'
                f' --workdir={workdir}, {data["labels"]}'
            )
        here, there = task.options.get('texts'), data.get('options', {}).get('texts')
        if here and there and here != there:
            raise UserError(
                f'--task={task.name}: its examples have {_texts(here)}, and those that'
                f' --workdir={workdir} was trained on have {_texts(there)}'
            )
        self.workdir, self.config, self.task = workdir, config, task
        self.split = split or task.selection_split
        self.name = self.split if self.own else f'{task.name}-{self.split}'

        # The same model, with the weights of the newest checkpoint.
        self._source = load_source(folder)
        self.step = self._source.step
        self.examples = task.examples(self.split)
        runtime, params = sharding.of_devices_here(config.runtime), self._source.params
        mesh = sharding.make_mesh(runtime)
        self._params = partition.put(params, mesh, runtime.scan_layers)
        model = task_heads.make_model(
            task.head, self._source.model, task.num_outputs, config.head_dropout, runtime
        )
        self._compilations: collections.Counter = collections.Counter()
        self._predict = SplitPredictor(task, model, mesh, self._compilations)
        self._inputs = word_vectors.inputs(self._source.model, self._source.tokenizer)

    def predict(self, examples: Sequence[Example], cache: str = '') -> Predictions:
        """The answers to examples of the task; cache: folder for features that are slow to make."""
        # Rows as those that it was trained on were made.
        length, tokenizer = self.config.max_seq_length, self._source.tokenizer
        features = trim(task_features.features_of(self.task, examples, tokenizer, length, cache))
        check_segments(self.task, features, self._source)
        say_cut(self.task, self.split, features, length)
        buckets = self.config.length_buckets
        predictions = self._predict(self._params, examples, features, buckets, self._inputs)
        logging.info('compilations: %s', dict(self._compilations))
        return predictions


def evaluate(
    folder: str, task_name: str | None, data_dir: str | None, split: str | None
) -> dict[str, Any]:
    """Predicts and scores a split with a fine-tuned workdir; returns what eval/SPLIT.json says.

    Arguments and errors as of TrainedTask.
    """
    trained = TrainedTask(folder, task_name, data_dir, split)
    workdir, name = trained.workdir, trained.name
    predictions = trained.predict(trained.examples, str(workdir.features))

    # The result, beside what is known of the run that made the weights.
    facts = {'step': trained.step, 'config_hash': config_hash(trained.config)}
    # another task's results do not take the place of its own
    before = workdir.result(name)
    if trained.own and before.exists():  # what fine-tuning noted of its own run stays
        earlier = read_json(str(before))
        facts = earlier | facts if {name: earlier.get(name) for name in facts} == facts else facts
    return record(trained.task, name, trained.examples, predictions, workdir, facts)
