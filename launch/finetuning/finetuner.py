"""Fine-tuning runs of one task: a run from its configuration to its scored predictions.

Owns what the runs of one process share (compiled programs, features, source weights) and the
files of a run's folder: config.json, data.json, tokenizer/, checkpoints/, best/, metrics.jsonl and
the results of finetuning/evaluation.py, of which eval/SPLIT.json comes last and means that the run
is done. It must not know how a sweep is laid out.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging

from bert_jax.mesh import determinism, processes, sharding
from bert_jax.model import attention, splits
from bert_jax.train import checkpoint, loop, schedule, task_heads
from bert_jax.train.state import TrainState, fresh_state, init_params, load_params_into
from bert_jax.train.step import make_train_step, use_compilation_cache
from configs import schema
from configs.errors import UserError
from configs.json_object import read_object
from input_pipeline.tasks import Predictions, Task
from input_pipeline.tasks.base import INPUT_KEYS, trim
from input_pipeline.tasks.batching import bucketed_batches, subset, training_batches
from input_pipeline.tasks.features import features_of
from input_pipeline.tasks.scores.constant_baseline import LEARNT
from input_pipeline.tasks.task_file import is_task_file
from launch.finetuning import batch_runner, evaluation
from launch.finetuning.best import BestCheckpoint
from launch.workdir import metrics, plots
from launch.workdir.source import Source
from launch.workdir.workdir import MEND, Workdir

Features = dict[str, np.ndarray]
# Runtime settings that all runs of a process have from the first.
_OF_THE_PROCESS = ('data_parallel', 'fsdp', 'model_parallel', 'compilation_cache')


def task_identity(task: Task, name: str, data_dir: str) -> dict[str, Any]:
    """What data.json says of a task: where it is (absolute), and what its model must have."""

    def absolute(path: str) -> str:
        return (
            os.path.abspath(path)
            if path and '://' not in path and not path.startswith('tfds:')
            else path
        )

    return {
        'task': absolute(name) if is_task_file(name) else name,
        'data_dir': absolute(data_dir),
        'head': task.head,
        'labels': list(task.labels),
        'options': task.options,
    }


class Stopped(Exception):
    """A signal asked the run to save and stop, and it has stopped; `said` is what the run can go on
    from.
    """

    def __init__(self, signal_number: int, said: str = 'stopped'):
        super().__init__(signal_number, said)
        self.signal_number, self.said = signal_number, said


class FineTuner:
    """All runs of one process: same task, same source; configurations may differ.

    What is trained, from where and on what is `models`, `begin`, `features` and `inputs`:
    finetuning/feature_based.py has others.

    Attributes:
      split: the split that is scored, dev where the task has one.
      compilations: how often each program (init, train, predict) was compiled.
    """

    def __init__(
        self,
        task: Task,
        source: Source,
        identity: dict[str, Any],
        runtime: schema.RuntimeConfig,
        cache: str = '',
    ):
        """`identity` names the task and its data in the runs' data.json (JSON values); `cache` is a
        folder for slow features.
        """
        self.task, self.source, self._cache = task, source, cache
        self.compilations: collections.Counter = collections.Counter()
        self.split = task.selection_split
        use_compilation_cache(runtime.compilation_cache)
        self._mesh, self._runtime = sharding.make_mesh(runtime), runtime
        for warning in splits.left_whole(source.model, runtime):
            logging.warning('%s', warning)
        logging.info('%s', determinism.described(jax.default_backend()))
        self._stop = processes.StopSignal()
        self._beat: Callable[[], None] = lambda: None  # told of each step and each scored batch
        self._train_examples = task.examples('train')
        self._scored_examples = task.examples(self.split)
        if not task.labelled(self._scored_examples):
            raise UserError(
                f'task {task.name}: its {self.split} split has no labels, so nothing can be scored:'
                ' give it a dev split'
            )
        self._identity = {
            **identity,
            'examples': (
                hashlib.sha256(
                    repr((self._train_examples, self._scored_examples)).encode()
                ).hexdigest()[:16]
            ),
            'init_from': source.where,
            'init_step': source.step,
            'init_fingerprint': source.fingerprint(),
            'tokenizer': source.tokenizer.fingerprint,
            'model': schema.to_dict(source.model),
        }
        self._features: dict[int, tuple[Features, Features]] = {}
        self._programs: dict[Any, tuple[Callable, Callable, evaluation.SplitPredictor]] = {}

    def run(self, config: schema.FinetuneConfig, folder: str) -> tuple[dict[str, Any], bool]:
        """Trains, predicts the scored split and scores it in `folder`, or takes up what is there.

        Returns the contents of eval/SPLIT.json, and whether they were there already. Raises Stopped
        after a signal, with the state saved; UserError where the folder holds another run.
        """
        self.check(config)
        workdir = Workdir(folder)
        result_file = workdir.result(self.split)
        # what cannot be made is refused before the folder is this run's
        if not result_file.exists():
            self.features(config)
            self.models(config)
        known = workdir.create_or_resume(config, self._identity)
        if known and result_file.exists():
            return read_object(result_file, MEND), True
        started = time.perf_counter()
        self.source.tokenizer.save(workdir.tokenizer_folder)
        with processes.watchdog(config.runtime.stall_minutes) as self._beat:
            with jax.set_mesh(self._mesh):
                params, facts = self._train(config, folder)
            plots.plot_workdir(folder)
            predictions = self._predict(config, params)
        chance = self.task.constant_loss(self.features(config)[0])
        failed = facts['train_loss'] is None or facts['train_loss'] >= LEARNT * chance
        facts |= {
            'config_hash': evaluation.config_hash(config),
            'chance_loss': chance,
            'failed': failed,
        }
        facts |= {'seconds': time.perf_counter() - started}
        return (
            evaluation.record(
                self.task, self.split, self._scored_examples, predictions, workdir, facts
            ),
            False,
        )

    def check(self, config: schema.FinetuneConfig) -> None:
        """Raises UserError where there can be no run of `config`, before anything is computed."""
        length, most = config.max_seq_length, self.source.model.max_position
        if length > most:
            raise UserError(
                f'max_seq_length={length} is beyond the position table of {self.source.where}'
                f' (max_position={most}): use {most}'
            )
        config.refuse_unused()
        for name in _OF_THE_PROCESS:
            if (value := getattr(config.runtime, name)) != getattr(self._runtime, name):
                raise UserError(
                    f'runtime.{name}={value}: the runs of one command share it '
                    f'({getattr(self._runtime, name)}): give it to all of them, with --set'
                )
        total_steps(len(self.chosen(config)), config)
        sharding.check_divides(
            self._mesh, config.batch_size, config.runtime.accumulation, 'batch_size'
        )

    def chosen(self, config: schema.FinetuneConfig) -> list[int]:
        """The places of the examples that are trained on."""
        return subset(range(len(self._train_examples)), config.train_examples, config.seed)

    def features(self, config: schema.FinetuneConfig) -> tuple[Features, Features]:
        """(training, scored) features of at most max_seq_length pieces; made once for each
        length.
        """
        length = config.max_seq_length
        if length not in self._features:
            splits = (self._train_examples, self._scored_examples)
            made = (
                features_of(self.task, examples, self.source.tokenizer, length, self._cache)
                for examples in splits
            )
            train, scored = (trim(features) for features in made)
            for features in (train, scored):
                evaluation.check_segments(self.task, features, self.source)
            self._features[length] = train, scored
            for split, examples, features in (
                ('train', splits[0], train),
                (self.split, splits[1], scored),
            ):
                rows, *shape = features['input_ids'].shape
                pieces = ' x '.join(map(str, shape))
                logging.info(
                    '%s %s: %d examples, %d rows of %s pieces',
                    self.task.name,
                    split,
                    len(examples),
                    rows,
                    pieces,
                )
        return self._features[length]

    def inputs(self, config: schema.FinetuneConfig, split: str, batch: Features) -> Features:
        """What the model reads of a batch of the features of 'train' or the scored split."""
        del config, split
        return batch

    def models(self, config: schema.FinetuneConfig) -> tuple[Any, Any]:
        """(the model, and the same as it is trained, whose kernel may be another)."""
        encoder = config.encoder(self.source.model)
        model = task_heads.make_model(
            self.task.head, encoder, self.task.num_outputs, config.head_dropout, config.runtime
        )
        length = self.features(config)[0]['input_ids'].shape[-1]
        return model, model.clone(kernel=attention.choose(config.runtime, encoder, length))

    def begin(self, config: schema.FinetuneConfig, state: TrainState, folder: str) -> TrainState:
        """The fresh state with the weights that training begins with."""
        if config.init == 'random':
            return state
        where, encoder = f'--init_from={self.source.where}', self.source.params['encoder']
        if config.bilstm and not self.source.model.bilstm:
            logging.info('%s: its BiLSTM is fresh', folder)
            encoder = {**encoder, 'bilstm': state.params['encoder']['bilstm']}
        return state._replace(
            params=load_params_into(state.params, {'encoder': encoder}, where, 'encoder')
        )

    def programs(
        self, config: schema.FinetuneConfig
    ) -> tuple[Callable, Callable, evaluation.SplitPredictor]:
        """(seed -> fresh state, train step, predictor), shared by all configurations that make the
        same ones.

        Learning rates, decay and seeds are arguments of the programs, so they are left out of the
        key.
        """
        fixed = dataclasses.replace(config.optimizer, peak_lr=1.0, end_lr=0.0, weight_decay=0.0)
        self.features(config)
        model, trained = self.models(config)
        token = self.inputs(config, 'train', {'input_ids': np.zeros((1, 1), np.int32)})
        key = (fixed, config.runtime, trained, *(array.shape for array in token.values()))
        if key not in self._programs:

            def init(seed: Any) -> TrainState:
                return fresh_state(init_params(model, seed, token), fixed)

            where = sharding.shardings(
                jax.eval_shape(init, np.uint32(0)), self._mesh, config.runtime.shard_optimizer
            )
            objective = task_heads.make_objective(self.task.head, trained)
            step = make_train_step(
                objective,
                fixed,
                config.runtime.accumulation,
                dropout_rng=config.runtime.dropout_rng,
            )
            self._programs[key] = (
                evaluation.counted_jit(init, self.compilations, 'init', out_shardings=where),
                evaluation.counted_jit(
                    step, self.compilations, 'train', donate_argnums=0, out_shardings=(where, None)
                ),
                evaluation.SplitPredictor(self.task, model, self._mesh, self.compilations),
            )
        return self._programs[key]

    def _train(self, config: schema.FinetuneConfig, folder: str) -> tuple[Any, dict[str, Any]]:
        """-> (final parameters; step, training loss, and where the best are selected their
        step).
        """
        features, _ = self.features(config)
        chosen = self.chosen(config)
        steps = total_steps(len(chosen), config)
        init, train_step, _ = self.programs(config)
        state = self.begin(config, init(np.uint32(config.seed & 0xFFFFFFFF)), folder)
        checkpoints, kept = checkpoint.Checkpoints(folder, config.runtime.keep_checkpoints), None
        selects = config.select == 'best'
        must = config.runtime.on_full_disk == 'stop'
        trained = checkpoints.params(steps) if checkpoints.steps()[-1:] == [steps] else None
        if trained:  # and stopped before it was scored
            params = load_params_into(state.params, trained, folder)
            return params, _facts(folder, steps, BestCheckpoint(folder) if selects else None)
        if found := checkpoints.restore(state):
            state, meta = found
            kept = meta.get('meter')  # checkpoints of older versions have none
            logging.info('%s: resumed at step %d of %d', folder, int(state.step), steps)
        rows = np.flatnonzero(np.isin(features['example_index'], chosen))
        arrays = {name: features[name][rows] for name in (*INPUT_KEYS, *self.task.label_keys)}
        best = BestCheckpoint(folder, must, found is not None) if config.score_every else None
        start = int(state.step)
        batches = _batches(config, arrays, list(arrays), start)
        numbers = arrays | {'example_index': features['example_index'][rows]}
        meter = loop.Meter(config.runtime.max_bad_steps, kept)
        meter.where = lambda first, last: _examples_of(config, numbers, first)
        scalars = schedule.hparams_of(
            config.optimizer, config.seed, steps, warmup_steps=int(steps * config.warmup_fraction)
        )
        take = lambda state, batch: train_step(state, batch, scalars)
        checkpoints.check_room(state, 1 + (steps - start) // config.runtime.checkpoint_every, must)
        # However training ends: a save under way is on the disk, and the metrics are closed.
        with contextlib.closing(metrics.MetricWriter(folder, start, must)) as writer, checkpoints:
            params = self._loop(
                config, folder, state, steps, batches, take, checkpoints, best, meter, writer
            )
        return params, _facts(folder, steps, best if selects else None)

    def _loop(
        self,
        config: schema.FinetuneConfig,
        folder: str,
        state: Any,
        steps: int,
        batches: Any,
        train_step: Callable,
        checkpoints: checkpoint.Checkpoints,
        best: BestCheckpoint | None,
        meter: loop.Meter,
        writer: metrics.MetricWriter,
    ) -> Any:
        """Trains to the last step, or until the dev score no longer rises; -> parameters. Raises
        Stopped after a signal.
        """
        size, runtime, step = config.batch_size, config.runtime, int(state.step)
        ahead = loop.prefetch(
            batches,
            lambda batch: batch_runner.place(self.inputs(config, 'train', batch), self._mesh, size),
        )
        enough = False
        while step < steps and not enough and self._stop.received is None:
            programs = self.compilations['train']
            with meter.waiting():
                batch = next(ahead)
            state, sums = train_step(state, batch)
            step += 1
            meter.push(step, sums, compiled=self.compilations['train'] > programs)
            self._beat()
            score: float | None = None
            if best is not None and (step % config.score_every == 0 or step == steps):
                with meter.paused():
                    score = self.task.score(
                        self._scored_examples, self._predict(config, state.params)
                    )[self.task.metric]
                    best.offer(state, score)
                enough = 0 < config.patience * config.score_every <= step - best.step
            if step % runtime.log_every == 0 or step == steps or enough:
                means = meter.drain()
                if 'step_ms' in means:
                    means['sequences_per_s'] = 1e3 * size / means['step_ms']
                eta = loop.eta(steps - step, means)
                writer.write(step, {'split': 'train', **means}, steps, eta)
            if score is not None:
                writer.write(step, {'split': self.split, self.task.metric: score}, steps)
            if (
                step < steps
                and not enough
                and (step % runtime.checkpoint_every == 0 or self._stop.received is not None)
            ):
                meta = {'kind': 'finetune', 'meter': meter.state()}
                with meter.paused():
                    checkpoints.save(state, meta, must=runtime.on_full_disk == 'stop')
                self._beat()
        if step < steps and not enough:
            checkpoints.wait()
            assert self._stop.received is not None, 'nothing else ends the loop early'
            raise Stopped(self._stop.received, checkpoint.standing(folder, step))
        if enough and best is not None:
            logging.info(
                '%s: stopped at step %d of %d, %s is best at step %d',
                folder,
                step,
                steps,
                self.task.metric,
                best.step,
            )
        params = state.params
        # There is one where the best are selected; it is of step 0 where none could be saved.
        if config.select == 'best' and best is not None and best.step not in (0, step):
            params = load_params_into(params, best.params(), folder)
        # The folder of a finished run holds weights alone, without moments; whenever it stopped,
        # under its last step's number.
        checkpoints.save(
            state._replace(params=params, opt_state={}, step=state.step - step + steps),
            {'kind': 'finetune'},
        )
        return params

    def _predict(self, config: schema.FinetuneConfig, params: Any) -> Predictions:
        """Of the scored split."""
        predictor, features = self.programs(config)[2], self.features(config)[1]

        def inputs(batch: Features) -> Features:
            self._beat()  # a large split may take longer than runtime.stall_minutes
            return self.inputs(config, self.split, batch)

        return predictor(params, self._scored_examples, features, config.length_buckets, inputs)


def _batches(config: schema.FinetuneConfig, arrays: Features, keys: list[str], start: int) -> Any:
    """The endless training batches of the arrays named by `keys`, from step `start` on."""
    arguments = arrays, keys, config.batch_size, config.seed
    if config.length_buckets == 1:
        return training_batches(*arguments, start)
    return bucketed_batches(*arguments, config.length_buckets, start)


def _examples_of(config: schema.FinetuneConfig, arrays: Features, step: int) -> str:
    """Which training examples step number `step` (from 1) has read, in words; `arrays` have
    example_index.
    """
    batch = next(_batches(config, arrays, ['example_index'], step - 1))
    numbers = sorted({int(number) for number in batch['example_index']})
    more = f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''
    return (
        f'; step {step} read the training examples {", ".join(map(str, numbers[:8]))}{more}'
        ' (from 0)'
    )


def _facts(folder: str, steps: int, selected: BestCheckpoint | None) -> dict[str, Any]:
    """What is known of a trained run: its steps, its training loss and the step that was selected.

    The loss is the mean over the log lines that end in the last tenth of the run: the last line
    alone may be a single batch. None where all their steps were discarded.
    """
    lines = [
        line
        for line in metrics.read_metrics(Workdir(folder).metrics_file)
        if line['split'] == 'train'
    ]
    late = [line for line in lines if line['step'] > 0.9 * lines[-1]['step'] and 'loss' in line]
    weights = [line['steps'] - line['discarded_steps'] for line in late]
    loss = (
        sum(line['loss'] * weight for line, weight in zip(late, weights, strict=True))
        / sum(weights)
        if late
        else None
    )
    return {'step': steps, 'train_loss': loss} | (
        {'selected_step': selected.step or steps} if selected else {}
    )


def total_steps(examples: int, config: schema.FinetuneConfig) -> int:
    """int(examples / batch_size * epochs), as run_classifier.py:863; examples, also where windows
    are more (run_squad.py:1160).
    """
    # where the product should be whole, it may fall just short
    steps = int(examples / config.batch_size * config.epochs + 1e-6)
    if steps < 1:
        raise UserError(
            f'{examples} training examples, batch_size={config.batch_size} and'
            f' epochs={config.epochs:g} make no whole step: lower batch_size or raise epochs'
        )
    return steps
