"""Fine-tuning runs of one task: a run from its configuration to its scored predictions.

Owns what the runs of one process share (compiled programs, features, source weights) and the
files of a run's folder: config.json, data.json, tokenizer/, checkpoints/, best/, metrics.jsonl and the
results of prediction.py, of which eval/SPLIT.json comes last and means that the run is done. It
must not know how a sweep is laid out.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from bert_jax import attention, checkpoint, loop, metrics, schedule, sharding, task_heads, train_state
from bert_jax.step import make_train_step, use_compilation_cache
from configs import schema
from configs.errors import UserError
from input_pipeline.tasks import Predictions, Task
from input_pipeline.tasks.base import INPUT_KEYS, trim
from input_pipeline.tasks.batching import bucketed_batches, subset, training_batches
from input_pipeline.tasks.chance import chance_loss
from input_pipeline.tasks.feature_cache import features_of
from launch import prediction
from launch import workdir as workdirs
from launch.selection import Best
from launch.source import Source

Features = dict[str, np.ndarray]
_LEARNT = 0.95  # a run has failed where its training loss is not below this share of what a constant answer has


def task_identity(task: Task, name: str, data_dir: str) -> dict[str, Any]:
    """What data.json says of a task: where it is (absolute), and what its model must have."""

    def absolute(path: str) -> str:
        return os.path.abspath(path) if path and '://' not in path and not path.startswith('tfds:') else path

    return {
        'task': absolute(name) if name.endswith('.json') else name,
        'data_dir': absolute(data_dir),
        'head': task.head,
        'labels': list(task.labels),
        'options': task.options,
    }


class Stopped(Exception):
    """A signal asked the run to save and stop, and it has."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number


class Tuner:
    """All runs of one process: same task, same source; configurations may differ.

    What is trained, from where and on what is `models`, `begin`, `features` and `inputs`: feature_tuning.py has others.

    Attributes:
      split: the split that is scored, dev where the task has one.
      compilations: how often each program (init, train, predict) was compiled.
    """

    def __init__(self, task: Task, source: Source, identity: dict[str, Any], runtime: schema.RuntimeConfig, cache: str = ''):
        """`identity` names the task and its data in the runs' data.json (JSON values); `cache` is a folder for slow features."""
        self.task, self.source, self._cache = task, source, cache
        self.compilations: collections.Counter = collections.Counter()
        self.split = task.selection_split
        use_compilation_cache(runtime.compilation_cache)
        self._mesh = sharding.make_mesh(runtime)
        self._stop = loop.StopSignal()
        self._train_examples, self._scored_examples = task.examples('train'), task.examples(self.split)
        if not task.labelled(self._scored_examples):
            raise UserError(f'task {task.name}: its {self.split} split has no labels, so nothing can be scored: give it a dev split')
        self._identity = {
            **identity,
            'examples': hashlib.sha256(repr((self._train_examples, self._scored_examples)).encode()).hexdigest()[:16],
            'init_from': source.where,
            'init_step': source.step,
            'tokenizer': source.tokenizer.fingerprint,
            'model': schema.to_dict(source.model),
        }
        self._features: dict[int, tuple[Features, Features]] = {}
        self._programs: dict[Any, tuple[Callable, Callable, prediction.SplitPredictor]] = {}

    def run(self, config: schema.FinetuneConfig, folder: str) -> tuple[dict[str, Any], bool]:
        """Trains, predicts the scored split and scores it in `folder`, or takes up what is there.

        Returns the contents of eval/SPLIT.json, and whether they were there already. Raises Stopped
        after a signal, with the state saved; UserError where the folder holds another run.
        """
        self.check(config)
        known = workdirs.settle(folder, config, self._identity)
        result_file = epath.Path(folder) / 'eval' / f'{self.split}.json'
        if known and result_file.exists():
            return json.loads(result_file.read_text()), True
        started = time.perf_counter()
        self.source.tokenizer.save(epath.Path(folder) / 'tokenizer')
        with jax.set_mesh(self._mesh):
            params, facts = self._train(config, folder)
        predictions = self._predict(config, params)
        chance = chance_loss(self.task.head, self.features(config)[0])
        failed = facts['train_loss'] is None or facts['train_loss'] >= _LEARNT * chance
        facts |= {'config_hash': prediction.config_hash(config), 'chance_loss': chance, 'failed': failed}
        facts |= {'seconds': time.perf_counter() - started}
        return prediction.record(self.task, self.split, self._scored_examples, predictions, folder, facts), False

    def check(self, config: schema.FinetuneConfig) -> None:
        """Raises UserError where there can be no run of `config`, before anything is computed."""
        length, most = config.max_seq_length, self.source.model.max_position
        if length > most:
            raise UserError(
                f'max_seq_length={length} is beyond the position table of {self.source.where} (max_position={most}): use {most}'
            )
        total_steps(len(self.chosen(config)), config)
        sharding.check_divides(self._mesh, config.batch_size, config.runtime.accumulation, 'batch_size')

    def chosen(self, config: schema.FinetuneConfig) -> list[int]:
        """The places of the examples that are trained on."""
        return subset(range(len(self._train_examples)), config.train_examples, config.seed)

    def features(self, config: schema.FinetuneConfig) -> tuple[Features, Features]:
        """(training, scored) features of at most max_seq_length pieces; made once for each length."""
        length = config.max_seq_length
        if length not in self._features:
            splits = (self._train_examples, self._scored_examples)
            made = (features_of(self.task, examples, self.source.tokenizer, length, self._cache) for examples in splits)
            train, scored = (trim(features) for features in made)
            self._features[length] = train, scored
            for split, examples, made in (('train', splits[0], train), (self.split, splits[1], scored)):
                rows, *shape = made['input_ids'].shape
                pieces = ' x '.join(map(str, shape))
                logging.info('%s %s: %d examples, %d rows of %s pieces', self.task.name, split, len(examples), rows, pieces)
        return self._features[length]

    def inputs(self, config: schema.FinetuneConfig, split: str, batch: Features) -> Features:
        """What the model reads of a batch of the features of 'train' or the scored split."""
        del config, split
        return batch

    def models(self, config: schema.FinetuneConfig) -> tuple[Any, Any]:
        """(the model, and the same as it is trained, whose kernel may be another)."""
        encoder = config.encoder(self.source.model)
        model = task_heads.make_model(self.task.head, encoder, self.task.num_outputs, config.head_dropout, config.runtime)
        length = self.features(config)[0]['input_ids'].shape[-1]
        return model, model.clone(kernel=attention.choose(config.runtime, encoder, length))

    def begin(self, config: schema.FinetuneConfig, state: train_state.TrainState, folder: str) -> train_state.TrainState:
        """The fresh state with the weights that training begins with."""
        if config.init == 'random':
            return state
        where, encoder = f'--init_from={self.source.where}', self.source.params['encoder']
        if config.bilstm and not self.source.model.bilstm:
            logging.info('%s: its BiLSTM is fresh', folder)
            encoder = {**encoder, 'bilstm': state.params['encoder']['bilstm']}
        return state._replace(params=train_state.graft(state.params, {'encoder': encoder}, where, 'encoder'))

    def programs(self, config: schema.FinetuneConfig) -> tuple[Callable, Callable, prediction.SplitPredictor]:
        """(seed -> fresh state, train step, predictor), shared by all configurations that make the same ones.

        Learning rates, decay and seeds are arguments of the programs, so they are left out of the key.
        """
        fixed = dataclasses.replace(config.optimizer, peak_lr=1.0, end_lr=0.0, weight_decay=0.0)
        self.features(config)
        model, trained = self.models(config)
        token = self.inputs(config, 'train', {'input_ids': np.zeros((1, 1), np.int32)})
        key = (fixed, config.runtime, trained, *(array.shape for array in token.values()))
        if key not in self._programs:

            def init(seed: Any) -> train_state.TrainState:
                return train_state.fresh_state(train_state.init_params(model, seed, token), fixed)

            where = sharding.shardings(jax.eval_shape(init, np.uint32(0)), self._mesh, config.runtime.shard_optimizer)
            objective = task_heads.make_objective(self.task.head, trained)
            step = make_train_step(objective, fixed, config.runtime.accumulation, dropout_rng=config.runtime.dropout_rng)
            self._programs[key] = (
                prediction.counted_jit(init, self.compilations, 'init', out_shardings=where),
                prediction.counted_jit(step, self.compilations, 'train', donate_argnums=0, out_shardings=(where, None)),
                prediction.SplitPredictor(self.task, model, self._mesh, self.compilations),
            )
        return self._programs[key]

    def _train(self, config: schema.FinetuneConfig, folder: str) -> tuple[Any, dict[str, Any]]:
        """-> (final parameters; step, training loss, and where the best are selected their step)."""
        features, _ = self.features(config)
        chosen = self.chosen(config)
        steps = total_steps(len(chosen), config)
        init, train_step, _ = self.programs(config)
        state = self.begin(config, init(np.uint32(config.seed & 0xFFFFFFFF)), folder)
        checkpoints = checkpoint.Checkpoints(folder, keep=1)
        best = Best(folder) if config.score_every else None
        if checkpoints.steps()[-1:] == [steps]:  # trained, and stopped before it was scored
            params = train_state.graft(state.params, checkpoint.load_params(folder)[0], folder)
            return params, _facts(folder, steps, best if config.select == 'best' else None)
        if found := checkpoints.restore(state):
            state, _ = found
            logging.info('%s: resumed at step %d of %d', folder, int(state.step), steps)
        rows = np.flatnonzero(np.isin(features['example_index'], chosen))
        arrays = {name: features[name][rows] for name in (*INPUT_KEYS, *self.task.label_keys)}
        keys, start = list(arrays), int(state.step)
        if config.length_buckets == 1:
            batches = training_batches(arrays, keys, config.batch_size, config.seed, start)
        else:
            batches = bucketed_batches(arrays, keys, config.batch_size, config.seed, config.length_buckets, start)
        scalars = schedule.hyper(config.optimizer, config.seed, steps, warmup_steps=int(steps * config.warmup_fraction))
        take = lambda state, batch: train_step(state, batch, scalars)
        params = self._loop(config, folder, state, steps, batches, take, checkpoints, best)
        return params, _facts(folder, steps, best if config.select == 'best' else None)

    def _loop(
        self,
        config: schema.FinetuneConfig,
        folder: str,
        state: Any,
        steps: int,
        batches: Any,
        train_step: Callable,
        checkpoints: checkpoint.Checkpoints,
        best: Best | None,
    ) -> Any:
        """Trains to the last step, or until the dev score no longer rises; -> parameters. Raises Stopped after a signal."""
        size, runtime, step = config.batch_size, config.runtime, int(state.step)
        ahead = loop.prefetch(batches, lambda batch: prediction.place(self.inputs(config, 'train', batch), self._mesh, size))
        writer, meter, enough = metrics.MetricWriter(folder, step), loop.Meter(runtime.max_bad_steps), False
        while step < steps and not enough and self._stop.received is None:
            state, sums = train_step(state, next(ahead))
            meter.push(sums)
            step += 1
            scored = best is not None and (step % config.score_every == 0 or step == steps)
            if scored:
                with meter.paused():
                    score = self.task.score(self._scored_examples, self._predict(config, state.params))[self.task.metric]
                    best.offer(state, score)
                enough = 0 < config.patience * config.score_every <= step - best.step
            if step % runtime.log_every == 0 or step == steps or enough:
                means = meter.drain()
                rates = {'sequences_per_s': means['steps'] * size / means['seconds']}
                writer.write(step, {'split': 'train', **means, **rates}, steps, (steps - step) * means['seconds'] / means['steps'])
            if scored:
                writer.write(step, {'split': self.split, self.task.metric: score}, steps)
            if step < steps and not enough and (step % runtime.checkpoint_every == 0 or self._stop.received is not None):
                checkpoints.save(state, {'kind': 'finetune'})
        writer.close()
        if step < steps and not enough:
            checkpoints.close()
            raise Stopped(self._stop.received)
        if enough:
            logging.info('%s: stopped at step %d of %d, %s is best at step %d', folder, step, steps, self.task.metric, best.step)
        params = state.params
        if config.select == 'best' and best.step != step:
            params = train_state.graft(params, best.params(), folder)
        # The folder of a finished run holds weights alone, without moments; whenever it stopped, under its last step's number.
        checkpoints.save(state._replace(params=params, opt_state={}, step=state.step - step + steps), {'kind': 'finetune'})
        checkpoints.close()
        return params

    def _predict(self, config: schema.FinetuneConfig, params: Any) -> Predictions:
        """Of the scored split."""
        predictor, features = self.programs(config)[2], self.features(config)[1]
        inputs = functools.partial(self.inputs, config, self.split)
        return predictor(params, self._scored_examples, features, config.length_buckets, inputs)


def _facts(folder: str, steps: int, selected: Best | None) -> dict[str, Any]:
    """What is known of a trained run: its steps, its training loss and the step that was selected.

    The loss is the mean over the log lines that end in the last tenth of the run: the last line alone may be a single batch.
    None where all their steps were discarded.
    """
    lines = [line for line in metrics.read_metrics(epath.Path(folder) / metrics.FILE) if line['split'] == 'train']
    late = [line for line in lines if line['step'] > 0.9 * lines[-1]['step'] and 'loss' in line]
    weights = [line['steps'] - line['discarded_steps'] for line in late]
    loss = sum(line['loss'] * weight for line, weight in zip(late, weights, strict=True)) / sum(weights) if late else None
    return {'step': steps, 'train_loss': loss} | ({'selected_step': selected.step} if selected else {})


def total_steps(examples: int, config: schema.FinetuneConfig) -> int:
    """int(examples / batch_size * epochs), as run_classifier.py:863; examples, also where windows are more (run_squad.py:1160)."""
    steps = int(examples / config.batch_size * config.epochs + 1e-6)  # where the product should be whole, it may fall just short
    if steps < 1:
        raise UserError(
            f'{examples} training examples, batch_size={config.batch_size} and epochs={config.epochs:g} make no whole step: '
            'lower batch_size or raise epochs'
        )
    return steps
