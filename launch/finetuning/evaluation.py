"""A model over a split of a task: predictions, scores, and the files that hold them.

Owns how a split is run through a model (static batches, no example lost) and the results of a
fine-tuned workdir: predictions/SPLIT/ in the task's official format, and eval/SPLIT.json.
"""

from __future__ import annotations

import collections
import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from bert_jax.mesh import sharding
from bert_jax.train import task_heads
from configs import schema
from configs.atomic import atomic_write
from configs.errors import UserError
from input_pipeline.tasks import Predictions, Task, load_task
from input_pipeline.tasks.base import INPUT_KEYS, Example, cut, trim
from input_pipeline.tasks.batching import evaluation_batches, length_groups
from input_pipeline.tasks.features import features_of
from input_pipeline.text.whole_text import read_json
from launch.workdir.source import Source, load_source
from launch.workdir.workdir import Workdir

Batch = dict[str, np.ndarray]
# Tokens in an evaluation batch. No gradients are kept, so it may be larger than a training batch;
# on a CPU what stays in the cache is faster (BERT-tiny, S=64: 4096 takes 0.4 of the time of 16384).
_EVAL_TOKENS = {'cpu': 4096, 'gpu': 65536, 'tpu': 65536}


def counted_jit(
    function: Callable, counts: collections.Counter, name: str, **options: Any
) -> Callable:
    """`jax.jit(function, **options)`, every compilation counted under `name`."""

    def traced(*arguments):
        counts[name] += 1  # runs when jit traces, which is once for each shape of the arguments
        return function(*arguments)

    return jax.jit(traced, **options)


def eval_batch_size(mesh: jax.sharding.Mesh, length: int, rows: int) -> int:
    """Rows, of `length` tokens each, of an evaluation batch of at most about _EVAL_TOKENS.

    A multiple of the devices, with as little padding as that allows.
    """
    shards = mesh.shape['data'] * mesh.shape['fsdp']
    batches = -(-rows * length // _EVAL_TOKENS[jax.default_backend()])
    return -(-rows // (batches * shards)) * shards


def place(batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh, size: int) -> dict[str, jax.Array]:
    """A whole batch of `size` rows, of which each process puts its own on its devices."""
    local = sharding.local_rows(mesh, size)
    return sharding.place(
        {name: np.concatenate([value[a:b] for a, b in local]) for name, value in batch.items()},
        mesh,
        size,
    )


def check_segments(task: Task, features: Batch, source: Source) -> None:
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


class SplitPredictor:
    """Runs a model over a split: features in, predictions out. Compiles once for each length of
    input.
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
        features: dict[str, np.ndarray],
        buckets: int = 1,
        inputs: Callable[[Batch], Batch] | None = None,
    ) -> Predictions:
        """Predictions for all examples; rows of like length go together, in at most `buckets`
        lengths.

        `inputs` makes what the model reads of a batch of `features`; without it that is the batch.
        """
        N, *shape = features['input_ids'].shape
        found = []
        with jax.set_mesh(self._mesh):
            for length, rows in length_groups(features, buckets):
                part = cut({name: features[name][rows] for name in INPUT_KEYS}, shape[-1], length)
                size = eval_batch_size(self._mesh, math.prod(shape[:-1]) * length, len(rows))
                batches = evaluation_batches(part, INPUT_KEYS, size)
                read = map(inputs, batches) if inputs else batches
                found.append(
                    (
                        rows,
                        [self._predict(params, place(batch, self._mesh, size)) for batch in read],
                    )
                )
        outputs: dict[str, np.ndarray] = {}
        # the longest first: where there is an output for each position, the others' fit into it
        for rows, batches in reversed(found):
            for name in batches[0]:
                values = np.concatenate([np.asarray(batch[name]) for batch in batches])[: len(rows)]
                whole = outputs.setdefault(name, np.zeros((N, *values.shape[1:]), values.dtype))
                whole[(rows, *(slice(n) for n in values.shape[1:]))] = values
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
    """Writes eval/SPLIT.json; returns `result`."""
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
    """Writes the predictions and then eval/SPLIT.json, which it returns; a split without labels has
    no metrics.

    `facts` are what else is known of the run: its step, the hash of its configuration.
    """
    task.write_predictions(str(workdir.predictions(split)), examples, predictions)
    scores = task.score(examples, predictions) if task.labelled(examples) else {}
    result = {
        'task': task.name,
        'split': split,
        'metric': task.metric,
        'metrics': scores,
        'examples': len(examples),
    }
    return write_result(workdir, split, facts | result)


def evaluate(
    folder: str, task_name: str | None, data_dir: str | None, split: str | None
) -> dict[str, Any]:
    """Predicts and scores a split with a fine-tuned workdir, on its own task or one with the same
    labels.
    """
    workdir = Workdir(folder)
    config = workdir.config()
    if not isinstance(config, schema.FinetuneConfig):
        raise UserError(
            f'--workdir={workdir} is not fine-tuned: name its held-out records with --data'
        )
    check_writable(workdir)
    data = workdir.data(task=str, data_dir=str, head=str, labels=list)
    own = task_name is None
    task = load_task(
        data['task'] if task_name is None else task_name,
        data['data_dir'] if own and data_dir is None else data_dir or '',
    )
    if (task.head, list(task.labels)) != (data['head'], data['labels']):
        raise UserError(
            f'--task={task.name}: its labels {list(task.labels)} are not those of'
            f' --workdir={workdir}, {data["labels"]}'
        )
    split = split or task.selection_split
    source = load_source(folder)
    examples = task.examples(split)
    features = trim(
        features_of(task, examples, source.tokenizer, config.max_seq_length, str(workdir.features))
    )
    check_segments(task, features, source)
    mesh = sharding.make_mesh(config.runtime)
    params = jax.device_put(source.params, sharding.shardings(source.params, mesh))
    model = task_heads.make_model(
        task.head, source.model, task.num_outputs, config.head_dropout, config.runtime
    )
    compilations: collections.Counter = collections.Counter()
    predictions = SplitPredictor(task, model, mesh, compilations)(
        params, examples, features, config.length_buckets
    )
    logging.info('compilations: %s', dict(compilations))
    facts = {'step': source.step, 'config_hash': config_hash(config)}
    # another task's results do not take the place of its own
    name = split if own else f'{task.name}-{split}'
    before = workdir.result(name)
    if own and before.exists():  # what fine-tuning noted of its own run stays
        earlier = read_json(str(before))
        facts = earlier | facts if {name: earlier.get(name) for name in facts} == facts else facts
    return record(task, name, examples, predictions, workdir, facts)
