"""A model over a split of a task: predictions, scores, and the files that hold them.

Owns the way of a split to its predictions, and the results of a fine-tuned workdir:
predictions/SPLIT/ in the task's official format, and eval/SPLIT.json with what training
took. How batches are run is data_collator.py's.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.store import write_note
from bert_jax.input_pipeline.tasks import features as task_features
from bert_jax.input_pipeline.tasks.base import ROW_KEYS, Arrays, Example, Predictions, Task, trim
from bert_jax.input_pipeline.tasks.load_task import load_task
from bert_jax.input_pipeline.tasks.task_metrics import LEARNT
from bert_jax.input_pipeline.text.encodings import read_json
from bert_jax.mesh import construction, sharding
from bert_jax.model import partition
from bert_jax.runs.finetuning.data_collator import (
    DataCollator,
    bucket_by_length,
    counted_jit,
    gather,
    run,
)
from bert_jax.runs.sources.source import Source, load_source
from bert_jax.runs.workdir import metrics, word_vectors
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import task_heads


def make_features(
    task: Task, split: str, examples: Sequence[Example], source: Source, length: int, cache: str
) -> Arrays:
    """Return a task's features of some examples, in rows of at most `length` pieces.

    A line in the log tells where texts of the split were cut.

    Args:
      task: the task.
      split: where the examples are from, for messages.
      examples: what the rows are made of.
      source: the model that reads the rows, and its tokenizer.
      length: the most word pieces of a row.
      cache: folder for features that are slow to make; '' for no folder.

    Raises:
      UserError: inputs have a segment that the model has no row for; jax would read another row.
    """
    # Trimmed to the longest row there is: padding beyond it would only cost time.
    features = trim(task_features.load_features(task, examples, source.tokenizer, length, cache))
    segments, rows = int(features['segment_ids'].max(initial=0)) + 1, source.model.type_vocab_size
    if not source.model.reads_segments(segments):
        raise UserError(
            f'task {task.name}: its inputs are of {segments} segments, and {source.where} knows'
            f' {rows} (type_vocab_size={rows}): take a model with type_vocab_size={segments} or'
            ' more'
        )
    limit = task_features.name_limit(task.options, length)
    task_features.say_cut(f'{task.name} {split}', task_features.count_cut(features), limit)
    return features


def make_split_predictor(
    task: Task, model: Any, mesh: jax.sharding.Mesh, counts: collections.Counter
) -> Callable[..., Predictions]:
    """Make what runs a model over splits of a task: features in, predictions out.

    It compiles once for each length of input, which `counts` counts.
    """
    function = task_heads.make_predict(task.head, model, task.n_best)
    compiled = counted_jit(
        function, counts, 'predict', out_shardings=sharding.make_whole_sharding(mesh)
    )

    def predict(
        params: Any,
        examples: Sequence[Example],
        features: Arrays,
        buckets: int,
        inputs: Callable[[Arrays], Arrays],
    ) -> Predictions:
        """Return the model's predictions for all examples.

        Args:
          params: the model's parameters, on the mesh.
          examples: what is predicted.
          features: the task's, of `examples`.
          buckets: rows of like length go together, in at most so many lengths.
          inputs: makes what the model reads of a batch of ROW_KEYS.
        """
        arrays = {name: features[name] for name in ROW_KEYS if name in features}
        plan = bucket_by_length(features, buckets, mesh)

        # All batches are on their way before the first is waited for; `gather` restores the order.
        results = list(run(compiled, params, arrays, plan, DataCollator(mesh, inputs)))
        outputs = gather(results, len(features['input_ids']))
        return task.decode(examples, features, task_heads.HEADS[task.head].read_host(outputs))

    return predict


def check_writable(workdir: Workdir) -> None:
    """Raise UserError where a local workdir takes no results, before they are computed."""
    if '://' not in workdir.name and not os.access(workdir, os.W_OK):
        raise UserError(
            f'--workdir={workdir} cannot be written to, and the results go there: copy it to where'
            ' they can'
        )


def write_result(workdir: Workdir, split: str, result: dict[str, Any]) -> dict[str, Any]:
    """Write `result` as eval/SPLIT.json in a workdir; return it."""
    write_note(workdir.result(split), result, 2)
    return result


def record(
    task: Task,
    split: str,
    examples: Sequence[Example],
    predictions: Predictions,
    workdir: Workdir,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write the predictions of a split and then eval/SPLIT.json, whose contents are returned.

    A split without labels has no metrics. `facts` are what else is known of the run: its step, the
    hash of its configuration.
    """
    # Predictions first: eval/SPLIT.json is the mark that all of it is there.
    if predictions.chosen:
        write_note(workdir.chosen_file, predictions.chosen, 2)
    task.write_predictions(str(workdir.predictions(split)), examples, predictions)
    result = {
        'task': task.name,
        'split': split,
        'metric': task.metric,
        'metrics': task.score(examples, predictions) if task.labelled(examples) else {},
        'examples': len(examples),
    }

    # `result` wins over `facts`: what is measured now replaces what was noted before.
    return write_result(workdir, split, facts | result)


def describe_training(
    workdir: Workdir,
    chance: float,
    trained_parameters: int,
    step_memory_bytes: int | None,
    least: float = 0.0,
) -> dict[str, Any]:
    """Return what a run that has ended came to, and took (sweep.py has names for its table).

    Args:
      workdir: its folder.
      chance: the training loss of a constant answer.
      trained_parameters: how many weights it has trained.
      step_memory_bytes: memory of its compiled step; None: unknown.
      least: the least training loss there can be.
    """
    loss, limit = measure_training_loss(workdir), least + LEARNT * (chance - least)
    return {
        'train_loss': loss,
        'chance_loss': chance,
        **({'least_loss': least} if least else {}),
        'failed': loss is None or loss >= limit,
        'costs': {
            'trained_parameters': trained_parameters,
            'checkpoint_bytes': workdir.checkpoint_bytes(),
            'step_memory_bytes': step_memory_bytes,
            'step_ms': measure_step_ms(workdir),
        },
    }


def measure_training_loss(workdir: Workdir) -> float | None:
    """Return the mean over the log lines of a run that end in the last tenth of it.

    The last line alone may be a single batch. None where all their steps were discarded.
    """
    # Late lines are chosen by step: a run that was resumed may have lines of unequal length.
    lines = _read_train_lines(workdir)
    late = [line for line in lines if line['step'] > 0.9 * lines[-1]['step'] and 'loss' in line]
    if not late:
        return None

    # Each line is a mean over its own steps, so it counts by those that were not discarded.
    weights = [line['steps'] - line['discarded_steps'] for line in late]
    weighted = [line['loss'] * weight for line, weight in zip(late, weights)]
    return sum(weighted) / sum(weights)


def measure_step_ms(workdir: Workdir) -> float | None:
    """Return the median time of a step over the log lines of a run, each a mean of its steps.

    Compiling, scoring and saving are left out. None where no line has a time.
    """
    times = [line['step_ms'] for line in _read_train_lines(workdir) if 'step_ms' in line]
    if not times:
        return None
    return statistics.median(times)


def _read_train_lines(workdir: Workdir) -> list[dict[str, Any]]:
    lines = metrics.read_metrics(workdir.metrics_file)
    return [line for line in lines if line['split'] == 'train']


def write_report(task: Task, split: str, examples: Sequence[Example], workdir: Workdir) -> str:
    """Return the detailed scores of the predictions that a workdir has of a split, as text."""
    file = workdir.predictions(split) / 'predictions.tsv'
    if not file.exists() or not task.labelled(examples):
        return ''
    return task.report(examples, task.read_predictions(str(file), examples))


def _check_fit(task: Task, data: dict[str, Any], workdir: Workdir) -> None:
    """Raise UserError where a task asks another thing than a workdir was trained for.

    `data`: what the workdir notes of that.
    """
    if (task.head, list(task.labels)) != (data['head'], data['labels']):
        raise UserError(
            f'--task={task.name}: its labels {list(task.labels)} are not those of'
            f' --workdir={workdir}, {data["labels"]}'
        )
    asked, trained = task.options.get('texts'), data.get('options', {}).get('texts')
    if asked and trained and asked != trained:
        texts = {1: 'one text', 2: 'two texts'}
        raise UserError(
            f'--task={task.name}: its examples have {texts[asked]}, and those that'
            f' --workdir={workdir} was trained on have {texts[trained]}'
        )


def set_doc_stride(task: Any, doc_stride: int) -> Any:
    """Return the task with windows on long texts that begin so many pieces after each other.

    Raises:
      UserError: its texts are not read in windows.
    """
    if not task.in_windows:
        raise UserError(
            f'--doc_stride: a task of kind {task.kind} is not read in windows, as classification,'
            ' regression and multilabel are: leave it out'
        )
    return dataclasses.replace(task, doc_stride=doc_stride)


class TaskEvaluator:
    """A fine-tuned model in memory, and the split of a task that it is asked about.

    Attributes:
      workdir: the run's folder.
      config: its configuration.
      task, split, examples: what is predicted.
      step: of the weights.
      name: what results on the split are filed under; another task has another name.
    """

    def __init__(
        self,
        folder: str,
        task_name: str | None,
        data_dir: str | None,
        split: str | None,
        doc_stride: int | None = None,
    ):
        """Load the newest checkpoint.

        Args:
          folder: the workdir.
          task_name: another task with the same head and labels; None: its own, as in fine-tuning.
          data_dir: of that task.
          split: None: dev, or test where the task has no dev.
          doc_stride: of windows on texts that are longer than a row; None: as in training.

        Raises:
          UserError: the workdir is none, or its model does not fit the task.
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
        if task_name is None:
            task_name = data['task']
            if data_dir is None:
                data_dir = data['data_dir']
        task = load_task(task_name, data_dir or '')
        _check_fit(task, data, workdir)
        task = task.under(data.get('options', {}) | workdir.chosen())
        if doc_stride:
            task = set_doc_stride(task, doc_stride)
        self.workdir, self.config, self.task = workdir, config, task
        self.split = split or task.selection_split
        self.name = self.split if self.own else f'{task.name}-{self.split}'
        if doc_stride:
            self.name += f'-doc_stride_{doc_stride}'

        # The same model, with the weights of the newest checkpoint.
        self._source = load_source(folder)
        self.step = self._source.step
        self.examples = task.examples(self.split)
        runtime, params = construction.fit_to_devices(config.runtime), self._source.params
        mesh = construction.make_mesh(runtime)
        self._params = partition.put(params, mesh, runtime.scan_layers)
        of_head = task.head, self._source.model, task.num_outputs, config.head_dropout
        model = task_heads.make_model(*of_head, runtime, self._source.bert.sentence)
        self._compilations: collections.Counter = collections.Counter()
        self._predict = make_split_predictor(task, model, mesh, self._compilations)
        self._inputs = word_vectors.inputs(self._source.model, self._source.tokenizer)

    def predict(self, examples: Sequence[Example], cache: str = '') -> Predictions:
        """Answer examples of the task; `cache`: folder for features that are slow to make."""
        # Rows as those that it was trained on were made.
        task = self.task.with_vectors(self._source.bert.sentence)
        length, buckets = self.config.max_seq_length, self.config.length_buckets
        features = make_features(task, self.split, examples, self._source, length, cache)
        predictions = self._predict(self._params, examples, features, buckets, self._inputs)
        logging.info(f'compilations: {dict(self._compilations)}')
        return predictions

    def record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Predict the split and file the results under `name`, as `record` does."""
        predictions = self.predict(self.examples, str(self.workdir.features))
        facts = facts | {'step': self.step}
        return record(self.task, name, self.examples, predictions, self.workdir, facts)


def evaluate(
    workdir: str,
    task: str | None = None,
    data_dir: str | None = None,
    split: str | None = None,
    show: Callable[[str], object] | None = None,
    doc_stride: int | None = None,
) -> dict[str, Any]:
    """Predict and score a split with a fine-tuned workdir; return what eval/SPLIT.json says.

    Args:
      workdir: the run's folder, whose newest checkpoint is taken.
      task: another task with the same head and labels; None: the one it was fine-tuned on.
      data_dir: the folder of the task's files; None: as in fine-tuning.
      split: None: dev, or test where the task has no dev.
      show: is given the scores of each class as text, where there are classes.
      doc_stride: score texts that are longer than a row by the mean over windows that begin so many
        word pieces after each other; None: as in training, where classifiers cut them.

    Raises:
      UserError: the workdir is none, or its model does not fit the task.
    """
    trained = TaskEvaluator(workdir, task, data_dir, split, doc_stride)
    facts: dict[str, Any] = {
        'step': trained.step,
        'config_hash': schema.hash_config(trained.config),
    }
    facts |= {'doc_stride': doc_stride} if doc_stride else {}

    # Another task's results do not take the place of its own; what fine-tuning noted of its own
    # run stays where it is of the same weights.
    before = trained.workdir.result(trained.name)
    if trained.own and before.exists():
        earlier = read_json(str(before))
        if facts.items() <= earlier.items():
            facts = earlier | facts
    result = trained.record(trained.name, facts)
    text = write_report(trained.task, trained.name, trained.examples, trained.workdir)
    if show and text:
        show(text)
    return result
