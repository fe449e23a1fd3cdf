"""Fine-tuning runs of one task: a run from its configuration to its scored predictions.

Owns how a run goes, from top to bottom of this file, early stopping with it, and the files of its
folder: config.json, data.json, tokenizer/, checkpoints/, best/, metrics.jsonl and the results of
finetuning/evaluation.py, of which eval/SPLIT.json comes last and means that the run is done. What
is trained, from where and on what is an Approach. It must not know how a sweep is laid out.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import FeatureConfig, FinetuneConfig, OptimizerConfig
from bert_jax.costs.throughput import StepCosts
from bert_jax.input_pipeline.tasks import Predictions
from bert_jax.input_pipeline.tasks.base import Arrays
from bert_jax.input_pipeline.tasks.metrics.constant_baseline import LEARNT
from bert_jax.mesh import exchange, sharding
from bert_jax.model import dropout, layout, partition
from bert_jax.runs.finetuning import data_collator, evaluation
from bert_jax.runs.finetuning.approach import Approach
from bert_jax.runs.finetuning.best_checkpoint import BestCheckpoint
from bert_jax.runs.finetuning.machine import Machine, Stopped
from bert_jax.runs.finetuning.task_data import TrainingRows
from bert_jax.runs.workdir import metrics, notes, plots
from bert_jax.runs.workdir.run_context import RunContext, choose_products
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, loop, task_heads
from bert_jax.train.losses import Objective
from bert_jax.train.state import (
    TrainState,
    fresh_state,
    init_params,
    joined,
    load_params_into,
    parameter_count,
)
from bert_jax.train.step import make_train_step


class Programs(NamedTuple):
    """What is compiled for a run.

    Attributes:
      init: seed -> fresh state.
      train_step: the train step.
      predictor: predicts a split.
      trained: how many weights the step trains.
      costs: what the step takes.
    """

    init: Callable[[np.uint32], TrainState]
    train_step: Any
    predictor: Callable[..., Predictions]
    trained: int
    costs: StepCosts


class FineTuner:
    """All runs of one process: same task, source and approach; configurations may differ.

    Attributes:
      approach: what is trained, from where and on what.
      data: the task.
      compilations: how often each program (init, train, predict) was compiled.
    """

    def __init__(self, approach: Approach, machine: Machine, profile_steps: int = 0):
        """Take up an approach; `profile_steps` of each run are traced into its folder."""
        # Runs of a sweep differ in rates and seeds, mostly, so `programs` lets them share.
        self.approach, self.data, self._machine = approach, approach.data, machine
        self.compilations, self._profile_steps = machine.compilations, profile_steps
        self._programs: dict[Any, Programs] = {}

    def run(self, config: FinetuneConfig, folder: str) -> tuple[dict[str, Any], bool]:
        """Train, predict the scored split and score it in `folder`, or take what is there.

        Returns:
          The contents of eval/SPLIT.json, and whether they were there already.

        Raises:
          Stopped: after a signal, with the state saved.
          UserError: the folder holds another run.
        """
        # What cannot be made is refused before the folder is this run's.
        self.check(config)
        data, workdir = self.data, Workdir(folder)
        config = choose_products(workdir, config)
        result_file = workdir.result(data.split)
        if not result_file.exists():
            self.approach.features(config)
            self.approach.models(config)

        # From here on it is. A run that is done is taken as it is.
        with RunContext(
            folder,
            config,
            self._machine.mesh,
            steps=self.total_steps(config),
            signal=self._machine.signal,
            profile_steps=self._profile_steps,
        ) as context:
            identity = {**data.identity, **self.approach.identity(config)}
            was_there = context.claim(data.source.tokenizer, identity)
            if was_there and result_file.exists():
                return read_object(result_file, 'the result of the run'), True
            started = time.perf_counter()

            # Noted before the first step, and so on the pictures of a run that is stopped too.
            chance = self._constant_loss(config)
            guess = {'loss': chance, **data.task.constant_scores(data.scored)}
            notes.note_guess(folder, notes.Guess(0, guess))

            # To predict may take as long as to train, so one watchdog is for both.
            context.watch()
            params, selected_step = self._train(context, config)
            predictions = self._predict(config, params, context.heartbeat)

        # The result comes last, and with it the run is done.
        loss = training_loss(folder)
        facts = {'step': context.total_steps, 'train_loss': loss}
        if config.select == 'best':
            facts['selected_step'] = selected_step
        facts |= {
            'config_hash': evaluation.config_hash(config),
            'chance_loss': chance,
            'failed': loss is None or loss >= LEARNT * chance,
            'seconds': time.perf_counter() - started,
            'costs': self._costs(config, workdir),
        }
        result = evaluation.record(data.task, data.split, data.scored, predictions, workdir, facts)
        return result, False

    def check(self, config: FinetuneConfig) -> None:
        """Raise UserError where there can be no run of `config`, before anything is computed."""
        # First the length: jax reads another row for a position beyond the table, and is silent.
        length, limit = config.max_seq_length, self.data.source.model.max_position
        if length > limit:
            raise UserError(
                f'max_seq_length={length} is beyond the position table of'
                f' {self.data.source.where} (max_position={limit}): use {limit}'
            )

        # Then what each part says of its own settings, cheapest first.
        config.refuse_unused()
        self.total_steps(config)
        self._machine.check(config)
        self.approach.check(config)

    def _constant_loss(self, config: FinetuneConfig) -> float:
        """Return the training loss of a constant answer: the objective's own, or the task's."""
        features, _ = self.approach.features(config)
        _, trained = self.approach.models(config)
        constant = self._objective(config, trained).constant
        if constant is None:
            return self.data.task.constant_loss(features)
        return constant(features, config.batch_size)

    def _objective(self, config: FinetuneConfig, trained: Any) -> Objective:
        head, targets = self.data.task.head, self.approach.targets(config)
        return task_heads.make_objective(head, trained, config.embedding, targets)

    def total_steps(self, config: FinetuneConfig) -> int:
        """Count the steps of a run of `config`. UserError where that is none."""
        return total_steps(len(self.data.chosen(config)), config)

    def _train(self, context: RunContext, config: FinetuneConfig) -> tuple[Any, int]:
        """Return the parameters that the run ends with, and the step that they are of.

        Raises:
          Stopped: after a signal.
        """
        # The fresh state is made in any case: it says which arrays there are, and how they lie.
        folder, steps = context.folder.name, context.total_steps
        with jax.set_mesh(context.mesh):
            fresh = self.programs(config).init(np.uint32(config.seed & 0xFFFFFFFF))
            state = self.approach.begin(config, fresh, folder)

        # A run that was stopped between its last step and its score has no more to train.
        if context.checkpoints.steps()[-1:] == [steps]:
            trained = context.checkpoints.params(steps)
            if trained:
                plots.plot_workdir(folder)
                best_step = BestCheckpoint(folder).step if config.select == 'best' else 0
                params = load_params_into(state.params, trained, folder)
                return joined(params, state.frozen), best_step or steps

        # What an interrupted run has left takes the place of the source's weights.
        context.begin(state)
        best, held_out = None, None
        if config.score_every:
            required = config.runtime.on_full_disk == 'stop'
            best = BestCheckpoint(folder, required, context.is_resumed)
            held_out = self._evaluation(config, best, context.heartbeat)
        ended = self._make_steps(context, config, held_out)

        # Short of its steps and not by patience: a signal. There is no score, and the message is
        # what is saved.
        step = int(ended.state.step)
        if step < steps and not ended.early:
            context.checkpoints.wait()
            assert ended.signal is not None, 'nothing else ends the loop early'
            raise Stopped(ended.signal, checkpoint.standing(folder, step))
        return self._conclude(context, config, ended, best)

    def _make_steps(
        self, context: RunContext, config: FinetuneConfig, held_out: loop.Evaluation | None
    ) -> loop.TrainResult:
        """Train to the last step, or as far as it comes."""
        # What is read at which step is arithmetic, so to resume is to begin at another step.
        data, programs = self.data, self.programs(config)
        features, _ = self.approach.features(config)
        rows = TrainingRows(config, features, data.chosen(config), data.task.label_keys)

        # Runs a few batches ahead of the step (loop.prefetch), so that the device need not wait.
        def place(batch: Arrays) -> dict[str, Any]:
            inputs = self.approach.inputs(config, 'train', batch)
            return data_collator.place_global(inputs, context.mesh, config.batch_size)

        # The loop does not save the last state: `_conclude` saves weights alone in its place.
        part = loop.Part(
            name=context.folder.name,
            costs=programs.costs,
            read_by=lambda first, last: rows.read_by(first),
            programs=config.length_buckets,
            save_last=False,
        )
        batches = loop.prefetch(rows.batches(int(context.state.step)), place)
        return loop.train_steps(context, programs.train_step, batches, held_out, part)

    def _conclude(
        self,
        context: RunContext,
        config: FinetuneConfig,
        ended: loop.TrainResult,
        best: BestCheckpoint | None,
    ) -> tuple[Any, int]:
        """Save the parameters that a trained run ends with; return them, and the step of them."""
        # Only patience makes a run end early, and then the best step is what the user asks about.
        folder, steps = context.folder.name, context.total_steps
        params, step = ended.state.params, int(ended.state.step)
        if ended.early and best:
            logging.info(
                f'{folder}: stopped at step {step} of {steps}, {self.data.task.metric} is best at'
                f' step {best.step}'
            )

        # The best weights take the place of the last where they are another step's; that is 0 where
        # none could be saved.
        if config.select == 'best' and best and best.step not in (0, step):
            params = load_params_into(params, best.params(), folder)

        # The folder of a finished run holds weights alone, without moments; whenever it stopped,
        # under its last step's number.
        last = ended.state.step - step + steps
        context.state = ended.state._replace(params=params, opt_state={}, step=last)
        context.checkpoints.save(context.state, {'kind': context.kind})
        return joined(params, ended.state.frozen), (best.step if best else 0) or steps

    def _costs(self, config: FinetuneConfig, workdir: Workdir) -> dict[str, Any]:
        """Return what a run that has ended took, for the table of a sweep (sweep.py has names)."""
        programs = self.programs(config)
        return {
            'trained_parameters': programs.trained,
            'checkpoint_bytes': workdir.checkpoint_bytes(),
            'step_memory_bytes': programs.costs.memory_bytes,
            'step_ms': step_ms(workdir),
        }

    def programs(self, config: FinetuneConfig) -> Programs:
        """Return the programs of a run, shared by all configurations that make the same ones.

        Learning rates, decay and seeds are arguments of the programs, so they are left out of the
        key.
        """
        # The values put in their place are arbitrary: they only make equal what compiles alike.
        fixed = dataclasses.replace(config.optimizer, peak_lr=1.0, end_lr=0.0, weight_decay=0.0)
        self.approach.features(config)  # first: inputs are looked up in them

        # One token through `inputs` shows which arrays the model reads, and of which rank.
        model, trained = self.approach.models(config)
        token = self.approach.inputs(config, 'train', {'input_ids': np.zeros((1, 1), np.int32)})
        shapes = (array.shape for array in token.values())
        targets = self.approach.targets(config)
        key = (fixed, config.runtime, trained, config.embedding, targets, *shapes)
        if key not in self._programs:
            self._programs[key] = self._made(config, fixed, model, trained, token)
        return self._programs[key]

    def _made(
        self,
        config: FinetuneConfig,
        fixed: OptimizerConfig,
        model: Any,
        trained: Any,
        token: Arrays,
    ) -> Programs:
        """Make the programs of `programs`; nothing is compiled yet."""
        # Seeds come as an argument, so that a sweep over them compiles `init` once.
        mesh, runtime = self._machine.mesh, config.runtime
        for line in self._departures(config):
            logging.warning(line)
        shards = sharding.shards_update(runtime, mesh)

        def init(seed: Any) -> TrainState:
            fresh = init_params(model, seed, token)
            params, frozen = self.approach.split(config, layout.for_model(fresh, model))
            return fresh_state(params, fixed, frozen)

        # Shapes alone, without memory: what the shardings are made of.
        state = jax.eval_shape(init, np.uint32(0))
        shardings = partition.shardings(state, mesh, shards)
        step = make_train_step(
            self._objective(config, trained),
            fixed,
            runtime.accumulation,
            dropout_rng=runtime.dropout_rng,
            shard_optimizer=shards,
            dtype=jnp.dtype(runtime.compute_dtype),
            encoder=self.data.source.model,
        )

        # The state is donated: the step writes over the old one, which is not needed any more.
        # Metrics are left where the compiler puts them.
        jit = functools.partial(data_collator.counted_jit, counts=self.compilations)
        return Programs(
            jit(init, name='init', out_shardings=shardings),
            jit(
                step,
                name='train',
                donate_argnums=0,
                out_shardings=(shardings, None),
            ),
            evaluation.split_predictor(self.data.task, model, mesh, self.compilations),
            parameter_count(state.params, self.data.source.model),
            self.approach.costs(config),
        )

    def _departures(self, config: FinetuneConfig) -> list[str]:
        """Say what a run of `config` does otherwise than its settings say, a line each."""
        rates = {'head_dropout': config.head_dropout}
        if not isinstance(config, FeatureConfig):  # whose encoder drops nothing
            encoder = config.encoder(self.data.source.model)
            rates |= {
                'hidden_dropout': encoder.hidden_dropout,
                'attention_dropout': encoder.attention_dropout,
                'tuning.lora_dropout': config.tuning.lora_dropout or 0.0,
            }
        return [
            *config.optimizer.without_effect(),
            *exchange.without_effect(config.runtime, self._machine.mesh),
            *dropout.rounded(rates, config.runtime.dropout_rng),
        ]

    def _evaluation(
        self, config: FinetuneConfig, best: BestCheckpoint, heartbeat: Callable[[], None]
    ) -> loop.Evaluation:
        """Score the split, keep the best weights, and end the run when they are old.

        That is early stopping, after `patience` scores that were not better.
        """
        data, metric = self.data, self.data.task.metric

        def evaluate(step: int, state: TrainState) -> loop.EvalResult:
            # The whole split, as at the end of the run: scores on the way compare with the last.
            predictions = self._predict(config, joined(state.params, state.frozen), heartbeat)
            score = data.task.score(data.scored, predictions)[metric]
            best.offer(state, score)

            # patience counts scores; 0 is no limit, and so is left out of the comparison.
            patience = config.patience * config.score_every
            line = {'split': data.split, metric: score}
            return loop.EvalResult(line, stop=0 < patience <= step - best.step)

        return loop.Evaluation(config.score_every, evaluate)

    def _predict(
        self, config: FinetuneConfig, params: Any, heartbeat: Callable[[], None]
    ) -> Predictions:
        """Predict the scored split."""
        # Features of both splits are made once, so to ask for them here costs nothing.
        predictor, data = self.programs(config).predictor, self.data
        _, features = self.approach.features(config)

        def inputs(batch: Arrays) -> Arrays:
            heartbeat()  # a large split may take longer than runtime.stall_minutes
            return self.approach.inputs(config, data.split, batch)

        return predictor(params, data.scored, features, config.length_buckets, inputs)


def total_steps(examples: int, config: FinetuneConfig) -> int:
    """Return the steps that are asked for, or int(examples / batch_size * epochs).

    The latter is run_classifier.py:863. It is of examples, also where windows are more
    (run_squad.py:1160).

    Raises:
      UserError: that is not one step.
    """
    # where the product should be whole, it may fall just short
    steps = config.steps or int(examples / config.batch_size * config.epochs + 1e-6)
    if steps < 1:
        raise UserError(
            f'{examples} training examples, batch_size={config.batch_size} and'
            f' epochs={config.epochs:g} make no whole step: lower batch_size or raise epochs'
        )
    return steps


def training_loss(folder: str) -> float | None:
    """Return the mean over the log lines of a run that end in the last tenth of it.

    The last line alone may be a single batch. None where all their steps were discarded.
    """
    # Late lines are chosen by step: a run that was resumed may have lines of unequal length.
    lines = _train_lines(Workdir(folder))
    late = [line for line in lines if line['step'] > 0.9 * lines[-1]['step'] and 'loss' in line]
    if not late:
        return None

    # Each line is a mean over its own steps, so it counts by those that were not discarded.
    weights = [line['steps'] - line['discarded_steps'] for line in late]
    losses = zip((line['loss'] for line in late), weights)
    return sum(loss * weight for loss, weight in losses) / sum(weights)


def step_ms(workdir: Workdir) -> float | None:
    """Return the median time of a step over the log lines of a run, each a mean of its steps.

    Compiling, scoring and saving are left out. None where no line has a time.
    """
    times = [line['step_ms'] for line in _train_lines(workdir) if 'step_ms' in line]
    return statistics.median(times) if times else None


def _train_lines(workdir: Workdir) -> list[dict[str, Any]]:
    lines = metrics.read_metrics(workdir.metrics_file)
    return [line for line in lines if line['split'] == 'train']
