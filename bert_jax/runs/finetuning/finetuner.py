"""Fine-tuning runs of one task: a run from its configuration to its scored predictions.

Owns how a run goes, from top to bottom of this file, what its settings come to (`resolve`), and the
files of its folder: config.json, data.json, tokenizer/, checkpoints/, best/, metrics.jsonl and the
results of finetuning/evaluation.py, of which eval/SPLIT.json comes last and means that the run is
done. What is trained, from where and on what is an Approach. It must not know how a sweep is laid
out.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.configs.schema import FeatureConfig, FinetuneConfig, ModelConfig, OptimizerConfig
from bert_jax.input_pipeline.tasks.base import Arrays, Predictions
from bert_jax.input_pipeline.tasks.classification import class_weights
from bert_jax.mesh import exchange, sharding
from bert_jax.model import dropout, layout, partition
from bert_jax.runs.finetuning import data_collator, evaluation
from bert_jax.runs.finetuning.approach import Approach, RunSetup, Tagger, Training
from bert_jax.runs.finetuning.early_stopping import EarlyStopping, StoppingRule
from bert_jax.runs.finetuning.machine import Machine, Stopped
from bert_jax.runs.finetuning.task_data import Batching, TrainingRows
from bert_jax.runs.workdir import notes, plots
from bert_jax.runs.workdir.run_context import RunContext, choose_products
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, loop, task_heads
from bert_jax.train.losses.settings import LossSettings
from bert_jax.train.losses.task_losses import ClassTargets
from bert_jax.train.state import (
    TrainState,
    count_weights,
    init_params,
    join_frozen,
    load_params_into,
    make_state,
    split_frozen,
)
from bert_jax.train.step import StepOptions, make_train_step


class Programs(NamedTuple):
    """What is compiled for a run.

    Attributes:
      init: seed -> fresh state.
      train_step: the train step.
      predictor: predicts a split.
      trained: how many weights the step trains.
    """

    init: Callable[[np.uint32], TrainState]
    train_step: Any
    predictor: Callable[..., Predictions]
    trained: int


class Job(NamedTuple):
    """What one run does.

    Attributes:
      setup: its settings, resolved.
      training: its model, and its features.
      programs: what is compiled for it.
      rows: its training rows.
      chance: the training loss of a constant answer: the objective's own, or the task's.
      least: the least training loss there can be.
    """

    setup: RunSetup
    training: Training
    programs: Programs
    rows: TrainingRows
    chance: float
    least: float


class FineTuner:
    """All runs of one process: same task, source and approach; configurations may differ.

    Attributes:
      approach: what is trained, from where and on what.
      data: the task.
      compilations: how often each program (init, train, predict) was compiled.
    """

    def __init__(self, approach: Approach, machine: Machine, profile_steps: int = 0):
        """Take up an approach; `profile_steps` of each run are traced into its folder."""
        # Runs of a sweep differ in rates and seeds, mostly, so `_make_programs` lets them share.
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
        workdir = Workdir(folder)
        config = choose_products(workdir, config)
        setup, result_file, job = self.resolve(config), workdir.result(self.data.split), None
        if not result_file.exists():
            job = self.make_job(setup)

        # From here on it is. A run that is done is taken as it is.
        machine, steps, profile = self._machine, setup.steps, self._profile_steps
        with RunContext(
            folder, config, machine.mesh, steps=steps, signal=machine.signal, profile_steps=profile
        ) as context:
            identity = {**self.data.identity, **self.approach.identify(setup.losses.embedding)}
            was_there = context.claim(self.data.source.tokenizer, identity)
            if was_there and result_file.exists():
                return read_object(result_file, 'the result of the run'), True
            started = time.perf_counter()
            if job is None:
                job = self.make_job(setup)

            # Noted before the first step, and so on the pictures of a run that is stopped too.
            guess = {'loss': job.chance, **self.data.task.constant_scores(self.data.scored)}
            notes.note_guess(folder, notes.Guess(0, guess))

            # To predict may take as long as to train, so one watchdog is for both.
            context.watch()
            params, selected_step = self._train(context, job, config.seed)
            predictions = self._predict(context, job, params)

        # The result comes last, and with it the run is done.
        facts = evaluation.describe_training(
            workdir, job.chance, job.programs.trained, job.training.costs.memory_bytes, job.least
        )
        facts |= {'config_hash': schema.hash_config(config)}
        facts |= {'step': steps, 'seconds': time.perf_counter() - started}
        if setup.stopping.keeps_best:
            facts['selected_step'] = selected_step
        task, split, scored = self.data.task, self.data.split, self.data.scored
        return evaluation.record(task, split, scored, predictions, workdir, facts), False

    def resolve(self, config: FinetuneConfig) -> RunSetup:
        """Make what a run is of its settings; below it nothing takes all of them.

        Raises:
          UserError: there can be no such run; nothing has been computed.
        """
        # First the length: jax reads another row for a position beyond the table, and is silent.
        length, limit = config.max_seq_length, self.data.source.model.max_position
        if length > limit:
            raise UserError(
                f'max_seq_length={length} is beyond the position table of'
                f' {self.data.source.where} (max_position={limit}): use {limit}'
            )

        # Then what each part says of its own settings, cheapest first.
        config.refuse_unused()
        examples = self.data.choose(config.train_examples, config.seed)
        steps = total_steps(len(examples), config)
        self._machine.check(config.runtime, config.batch_size, config.embedding.chunk_size)
        encoder, tagger = config.encoder(self.data.source.model), None
        if isinstance(config, FeatureConfig):
            tagger = Tagger(config.features, config.lstm_layers, config.lstm_width)
        setup = RunSetup(
            encoder=encoder,
            is_random=config.init == 'random',
            tagger=tagger,
            head_dropout=config.head_dropout,
            losses=LossSettings.of(config, self._make_targets(config, encoder, examples)),
            length=length,
            examples=examples,
            batching=Batching(config.batch_size, config.length_buckets, config.seed),
            steps=steps,
            stopping=StoppingRule(config.score_every, config.patience, config.select == 'best'),
            optimizer=config.optimizer,
            runtime=config.runtime,
        )
        self.approach.check(setup)
        return setup

    def _make_targets(
        self, config: FinetuneConfig, encoder: ModelConfig, examples: Sequence[int]
    ) -> ClassTargets:
        """Make the targets of classes.

        Raises:
          UserError: settings of classes are given for a task that has none, or there can be none.
        """
        # Where it is not set, consistency is left out for such tasks; asked for, it would be
        # ignored.
        task, is_compared = (
            self.data.task,
            task_heads.count_passes(self.data.task.head, encoder) > 1,
        )
        if config.tuning.consistency and not is_compared:
            raise UserError(
                'tuning.consistency=true compares answers that are classes or choices, and'
                f' {task.name} ({task.kind}) has none: leave it out'
            )
        for name in ('class_weights', 'label_smoothing'):
            value = getattr(config, name)
            if value and not task_heads.get_task_head(task.head).has_targets:
                raise UserError(
                    f'{name}={value} is for tasks of kind classification and pair, and {task.name}'
                    f' is of kind {task.kind}: leave it out'
                )
            if value and is_compared:
                raise UserError(f'{name}={value} does not go with tuning.consistency: leave it out')
        given = (self.data.train[number].label for number in examples)
        weights = class_weights(config.class_weights, task.labels, given)
        return ClassTargets(weights, config.label_smoothing)

    def make_job(self, setup: RunSetup) -> Job:
        """Make what a run does; nothing is compiled yet.

        Raises:
          UserError: there can be no such run.
          Stopped: after a signal.
        """
        data, training = self.data, self.approach.make_training(setup)
        reads, label_keys = setup.losses.embedding.reads, list(data.task.label_keys)
        if reads.teacher:
            label_keys.append('teacher_vectors')
        in_batch = training.objective.in_batch
        rows = TrainingRows(training.train, setup.examples, label_keys, setup.batching, in_batch)
        if training.objective.constant is None:
            chance = data.task.constant_loss(training.train)
        else:
            chance = training.objective.constant(training.train, setup.batching.size)
        least = 0.0
        if training.objective.least is not None:
            least = training.objective.least(training.train, setup.batching.size)
        programs = self._make_programs(setup, training)
        return Job(setup, training, programs, rows, chance, least)

    def _train(self, context: RunContext, job: Job, seed: int) -> tuple[Any, int]:
        """Return the parameters that the run ends with, and the step that they are of.

        Raises:
          Stopped: after a signal.
        """
        # The fresh state is made in any case: it says which arrays there are, and how they lie.
        folder, steps, rule = context.folder.name, context.total_steps, job.setup.stopping
        with jax.set_mesh(context.mesh):
            fresh = job.programs.init(np.uint32(seed & 0xFFFFFFFF))
            state = self.approach.load_weights(job.setup, fresh, folder)
            del fresh

        # A run that was stopped between its last step and its score has no more to train.
        if context.checkpoints.steps()[-1:] == [steps]:
            trained = context.checkpoints.params(steps)
            if trained:
                plots.plot_workdir(folder)
                params = join_frozen(load_params_into(state.params, trained, folder), state.frozen)
                best_step = 0
                if rule.keeps_best:
                    best_step = EarlyStopping(folder).best_step
                return params, best_step or steps

        # What an interrupted run has left takes the place of the source's weights.
        context.begin(state)
        del state  # its memory is the run's
        stopping, held_out = None, None
        if rule.score_every:
            required = context.runtime.on_full_disk == 'stop'
            patience_steps = rule.patience * rule.score_every
            stopping = EarlyStopping(folder, patience_steps, required, context.is_resumed)
            held_out = self._make_evaluation(context, job, stopping)
        ended = self._make_steps(context, job, held_out)

        # Short of its steps and not by patience: a signal. There is no score, and the message is
        # what is saved.
        step = int(ended.state.step)
        if step < steps and not ended.early:
            context.checkpoints.wait()
            assert ended.signal is not None, 'nothing else ends the loop early'
            raise Stopped(ended.signal, checkpoint.describe_standing(folder, step))
        return self._conclude(context, ended, stopping, rule.keeps_best)

    def _make_steps(
        self, context: RunContext, job: Job, held_out: loop.Evaluation | None
    ) -> loop.TrainResult:
        """Train to the last step, or as far as it comes."""
        setup = job.setup

        prepare, start = job.training.objective.prepare, int(context.state.step)

        # Runs a few batches ahead of the step (loop.prefetch), so that the device need not wait.
        def place(numbered: tuple[int, Arrays]) -> dict[str, Any]:
            step, batch = numbered
            batch = prepare(batch, (setup.batching.seed, step))
            inputs = self.approach.read_inputs(setup, 'train', batch)
            return data_collator.place_global(inputs, context.mesh, setup.batching.size)

        # The loop does not save the last state: `_conclude` saves weights alone in its place.
        part = loop.Part(
            name=context.folder.name,
            costs=job.training.costs,
            read_by=lambda first, last: job.rows.describe_step(first),
            programs=setup.batching.lengths,
            save_last=False,
        )
        # What is read at which step is arithmetic, so to resume is to begin at another step.
        batches = loop.prefetch(enumerate(job.rows.iterate_batches(start), start), place)
        return loop.train_steps(context, job.programs.train_step, batches, held_out, part)

    def _conclude(
        self,
        context: RunContext,
        ended: loop.TrainResult,
        stopping: EarlyStopping | None,
        keeps_best: bool,
    ) -> tuple[Any, int]:
        """Save the parameters that a trained run ends with; return them, and the step of them."""
        # Only patience makes a run end early, and then the best step is what the user asks about.
        folder, steps = context.folder.name, context.total_steps
        params, step = ended.state.params, int(ended.state.step)
        best_step = 0  # as where none could be saved
        if stopping is not None:
            best_step = stopping.best_step
            if ended.early:
                logging.info(
                    f'{folder}: stopped at step {step} of {steps}, {self.data.task.metric} is best'
                    f' at step {best_step}'
                )

            # The best weights take the place of the last where they are another step's.
            if keeps_best and best_step not in (0, step):
                params = load_params_into(params, stopping.load_best(), folder)

        # The folder of a finished run holds weights alone, without moments; whenever it stopped,
        # under its last step's number.
        last = ended.state.step - step + steps
        context.state = ended.state._replace(params=params, opt_state={}, step=last)
        context.checkpoints.save(context.state, {'kind': context.kind})
        return join_frozen(params, ended.state.frozen), best_step or steps

    def _make_programs(self, setup: RunSetup, training: Training) -> Programs:
        """Return the programs of a run, shared by all runs that make the same ones.

        Learning rates, decay and seeds are arguments of the programs, so they are left out of the
        key.
        """
        # The values put in their place are arbitrary: they only make equal what compiles alike.
        optimizer = dataclasses.replace(setup.optimizer, peak_lr=1.0, end_lr=0.0, weight_decay=0.0)

        # One token through `read_inputs` shows which arrays the model reads, and of which rank.
        ids = {'input_ids': np.zeros((1, 1), np.int32)}
        token = self.approach.read_inputs(setup, 'train', ids)
        shapes = tuple(array.shape for array in token.values())
        key = optimizer, setup.runtime, training.trained, setup.losses, shapes
        if key not in self._programs:
            for line in self._list_departures(setup):
                logging.warning(line)
            self._programs[key] = self._compile(setup, training, optimizer, token)
        return self._programs[key]

    def _compile(
        self, setup: RunSetup, training: Training, optimizer: OptimizerConfig, token: Arrays
    ) -> Programs:
        """Make jitted programs; each is compiled when it is first called.

        Args:
          setup: the run's settings.
          training: what is trained.
          optimizer: its settings, without what is an argument.
          token: inputs of one token.
        """
        # Seeds come as an argument, so that a sweep over them compiles `init` once.
        mesh, model, source = self._machine.mesh, training.model, self.data.source.model
        runtime = setup.runtime
        shards = sharding.shards_update(runtime, mesh)

        def init(seed: Any) -> TrainState:
            fresh = init_params(model, seed, token)
            params, frozen = layout.arrange_for_model(fresh, model), None
            if setup.tagger is None:
                params, frozen = split_frozen(params, setup.encoder)
            return make_state(params, optimizer, frozen)

        # Shapes alone, without memory: what the shardings are made of.
        state = jax.eval_shape(init, np.uint32(0))
        shardings = partition.choose_shardings(state, mesh, shards)
        options = StepOptions(
            runtime.accumulation,
            dropout_rng=runtime.dropout_rng,
            shard_optimizer=shards,
            dtype=jnp.dtype(runtime.compute_dtype),
            encoder=source,
        )
        step = make_train_step(training.objective, optimizer, options)

        # The state is donated: the step writes over the old one, which is not needed any more.
        # Metrics are left where the compiler puts them.
        jit = functools.partial(data_collator.counted_jit, counts=self.compilations)
        return Programs(
            jit(init, name='init', out_shardings=shardings),
            jit(step, name='train', donate_argnums=0, out_shardings=(shardings, None)),
            evaluation.make_split_predictor(self.data.task, model, mesh, self.compilations),
            count_weights(state.params, source),
        )

    def _list_departures(self, setup: RunSetup) -> list[str]:
        """Say what a run does otherwise than its settings say, a line each."""
        rates = {'head_dropout': setup.head_dropout}
        if setup.tagger is None:  # else the encoder drops nothing
            rates |= {
                'hidden_dropout': setup.encoder.hidden_dropout,
                'attention_dropout': setup.encoder.attention_dropout,
                'tuning.lora_dropout': setup.encoder.tuning.lora_dropout or 0.0,
            }
        return [
            *setup.optimizer.without_effect(),
            *exchange.list_without_effect(setup.runtime, self._machine.mesh),
            *dropout.list_rounded_rates(rates, setup.runtime.dropout_rng),
        ]

    def _make_evaluation(
        self, context: RunContext, job: Job, stopping: EarlyStopping
    ) -> loop.Evaluation:
        """Score the split, keep the best weights, and end the run when they are old."""
        data, metric = self.data, self.data.task.metric

        def evaluate(step: int, state: TrainState) -> loop.EvalResult:
            # The whole split, as at the end of the run: scores on the way compare with the last.
            predictions = self._predict(context, job, join_frozen(state.params, state.frozen))
            score = data.task.score(data.scored, predictions)[metric]
            stopping.keep_if_best(state, score)
            line = {'split': data.split, metric: score}
            return loop.EvalResult(line, stop=stopping.should_stop(step))

        return loop.Evaluation(job.setup.stopping.score_every, evaluate)

    def _predict(self, context: RunContext, job: Job, params: Any) -> Predictions:
        """Predict the scored split."""
        data, setup = self.data, job.setup

        def read_inputs(batch: Arrays) -> Arrays:
            context.heartbeat()  # a large split may take longer than runtime.stall_minutes
            return self.approach.read_inputs(setup, data.split, batch)

        features, lengths = job.training.scored, setup.batching.lengths
        return job.programs.predictor(params, data.scored, features, lengths, read_inputs)


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
