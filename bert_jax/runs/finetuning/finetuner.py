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
from bert_jax.configs.schema import FeatureConfig, FinetuneConfig, OptimizerConfig, RuntimeConfig
from bert_jax.input_pipeline.tasks.base import Arrays, Predictions
from bert_jax.input_pipeline.tasks.task_metrics import LEARNT
from bert_jax.mesh import exchange, sharding
from bert_jax.model import dropout, layout, partition
from bert_jax.runs.finetuning import data_collator, evaluation
from bert_jax.runs.finetuning.approach import Approach, Training
from bert_jax.runs.finetuning.best_checkpoint import BestCheckpoint
from bert_jax.runs.finetuning.machine import Machine, Stopped
from bert_jax.runs.finetuning.task_data import Batching, TrainingRows
from bert_jax.runs.workdir import metrics, notes, plots
from bert_jax.runs.workdir.run_context import RunContext, choose_products
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, loop
from bert_jax.train.state import (
    TrainState,
    count_weights,
    init_params,
    join_frozen,
    load_params_into,
    make_state,
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


@dataclasses.dataclass(frozen=True)
class Job:
    """What one run does, made once of its configuration.

    Attributes:
      training: what it trains, on what and from where.
      programs: what is compiled for it.
      rows: its training rows.
      batching: how they are put together.
      score_every: steps between scores on the way; 0: none.
      patience: scores without a better one that end it; 0: no end.
      keeps_best: whether it ends with the best weights; otherwise with the last.
      chance: the training loss of a constant answer: the objective's own, or the task's.
    """

    training: Training
    programs: Programs
    rows: TrainingRows
    batching: Batching
    score_every: int
    patience: int
    keeps_best: bool
    chance: float


class FineTuner:
    """All runs of one process: same task, source and approach; configurations may differ.

    Attributes:
      approach: what is trained, from where and on what.
      data: the task.
      compilations: how often each program (init, train, predict) was compiled.
    """

    def __init__(self, approach: Approach, machine: Machine, profile_steps: int = 0):
        """Take up an approach; `profile_steps` of each run are traced into its folder."""
        # Runs of a sweep differ in rates and seeds, mostly, so `make_programs` lets them share.
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
        workdir = Workdir(folder)
        config = choose_products(workdir, config)
        result_file, job = workdir.result(self.data.split), None
        if not result_file.exists():
            job = self.make_job(config)

        # From here on it is. A run that is done is taken as it is.
        machine, steps, profile = self._machine, self.count_steps(config), self._profile_steps
        with RunContext(
            folder, config, machine.mesh, steps=steps, signal=machine.signal, profile_steps=profile
        ) as context:
            identity = {**self.data.identity, **self.approach.identity(config)}
            was_there = context.claim(self.data.source.tokenizer, identity)
            if was_there and result_file.exists():
                return read_object(result_file, 'the result of the run'), True
            started = time.perf_counter()
            job = job or self.make_job(config)

            # Noted before the first step, and so on the pictures of a run that is stopped too.
            guess = {'loss': job.chance, **self.data.task.constant_scores(self.data.scored)}
            notes.note_guess(folder, notes.Guess(0, guess))

            # To predict may take as long as to train, so one watchdog is for both.
            context.watch()
            params, selected_step = self._train(context, job, config.seed)
            predictions = self._predict(context, job, params)

        # The result comes last, and with it the run is done.
        facts = self._tell(workdir, job) | {'config_hash': evaluation.config_hash(config)}
        facts |= {'step': steps, 'seconds': time.perf_counter() - started}
        if job.keeps_best:
            facts['selected_step'] = selected_step
        task, split, scored = self.data.task, self.data.split, self.data.scored
        return evaluation.record(task, split, scored, predictions, workdir, facts), False

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
        self.count_steps(config)
        self._machine.check(config.runtime, config.batch_size, config.embedding.chunk_size)
        self.approach.check(config)

    def count_steps(self, config: FinetuneConfig) -> int:
        """Count the steps of a run of `config`. UserError where that is none."""
        return total_steps(len(self.data.choose(config.train_examples, config.seed)), config)

    def make_job(self, config: FinetuneConfig) -> Job:
        """Make what a run of `config` does; nothing is compiled yet.

        Raises:
          UserError: there can be no such run.
          Stopped: after a signal.
        """
        data, training = self.data, self.approach.make_training(config)
        reads, label_keys = config.embedding.reads, list(data.task.label_keys)
        if reads.teacher:
            label_keys.append('teacher_vectors')
        chosen = data.choose(config.train_examples, config.seed)
        batching = Batching(config.batch_size, config.length_buckets, config.seed)
        rows = TrainingRows(training.train, chosen, label_keys, batching, reads.in_batch)
        if training.objective.constant is None:
            chance = data.task.constant_loss(training.train)
        else:
            chance = training.objective.constant(training.train, config.batch_size)
        return Job(
            training,
            self._make_programs(config, training),
            rows,
            batching,
            config.score_every,
            config.patience,
            config.select == 'best',
            chance,
        )

    def _train(self, context: RunContext, job: Job, seed: int) -> tuple[Any, int]:
        """Return the parameters that the run ends with, and the step that they are of.

        Raises:
          Stopped: after a signal.
        """
        # The fresh state is made in any case: it says which arrays there are, and how they lie.
        folder, steps = context.folder.name, context.total_steps
        with jax.set_mesh(context.mesh):
            state = job.training.load(job.programs.init(np.uint32(seed & 0xFFFFFFFF)), folder)

        # A run that was stopped between its last step and its score has no more to train.
        if context.checkpoints.steps()[-1:] == [steps]:
            trained = context.checkpoints.params(steps)
            if trained:
                plots.plot_workdir(folder)
                params = join_frozen(load_params_into(state.params, trained, folder), state.frozen)
                best_step = 0
                if job.keeps_best:
                    best_step = BestCheckpoint(folder).step
                return params, best_step or steps

        # What an interrupted run has left takes the place of the source's weights.
        context.begin(state)
        del state  # its memory is the run's
        best, held_out = None, None
        if job.score_every:
            required = context.runtime.on_full_disk == 'stop'
            best = BestCheckpoint(folder, required, context.is_resumed)
            held_out = self._make_evaluation(context, job, best)
        ended = self._make_steps(context, job, held_out)

        # Short of its steps and not by patience: a signal. There is no score, and the message is
        # what is saved.
        step = int(ended.state.step)
        if step < steps and not ended.early:
            context.checkpoints.wait()
            assert ended.signal is not None, 'nothing else ends the loop early'
            raise Stopped(ended.signal, checkpoint.describe_standing(folder, step))
        return self._conclude(context, ended, best, job.keeps_best)

    def _make_steps(
        self, context: RunContext, job: Job, held_out: loop.Evaluation | None
    ) -> loop.TrainResult:
        """Train to the last step, or as far as it comes."""

        # Runs a few batches ahead of the step (loop.prefetch), so that the device need not wait.
        def place(batch: Arrays) -> dict[str, Any]:
            inputs = job.training.read_inputs('train', batch)
            return data_collator.place_global(inputs, context.mesh, job.batching.size)

        # The loop does not save the last state: `_conclude` saves weights alone in its place.
        part = loop.Part(
            name=context.folder.name,
            costs=job.training.costs,
            read_by=lambda first, last: job.rows.read_by(first),
            programs=job.batching.lengths,
            save_last=False,
        )
        # What is read at which step is arithmetic, so to resume is to begin at another step.
        batches = loop.prefetch(job.rows.batches(int(context.state.step)), place)
        return loop.train_steps(context, job.programs.train_step, batches, held_out, part)

    def _conclude(
        self,
        context: RunContext,
        ended: loop.TrainResult,
        best: BestCheckpoint | None,
        keeps_best: bool,
    ) -> tuple[Any, int]:
        """Save the parameters that a trained run ends with; return them, and the step of them."""
        # Only patience makes a run end early, and then the best step is what the user asks about.
        folder, steps = context.folder.name, context.total_steps
        params, step = ended.state.params, int(ended.state.step)
        best_step = 0  # as where none could be saved
        if best is not None:
            best_step = best.step
            if ended.early:
                logging.info(
                    f'{folder}: stopped at step {step} of {steps}, {self.data.task.metric} is best'
                    f' at step {best_step}'
                )

            # The best weights take the place of the last where they are another step's.
            if keeps_best and best_step not in (0, step):
                params = load_params_into(params, best.params(), folder)

        # The folder of a finished run holds weights alone, without moments; whenever it stopped,
        # under its last step's number.
        last = ended.state.step - step + steps
        context.state = ended.state._replace(params=params, opt_state={}, step=last)
        context.checkpoints.save(context.state, {'kind': context.kind})
        return join_frozen(params, ended.state.frozen), best_step or steps

    def _tell(self, workdir: Workdir, job: Job) -> dict[str, Any]:
        """Return what a run that has ended came to, and took (sweep.py has names for its table)."""
        loss = training_loss(workdir.name)
        return {
            'train_loss': loss,
            'chance_loss': job.chance,
            'failed': loss is None or loss >= LEARNT * job.chance,
            'costs': {
                'trained_parameters': job.programs.trained,
                'checkpoint_bytes': workdir.checkpoint_bytes(),
                'step_memory_bytes': job.training.costs.memory_bytes,
                'step_ms': step_ms(workdir),
            },
        }

    def _make_programs(self, config: FinetuneConfig, training: Training) -> Programs:
        """Return the programs of a run, shared by all configurations that make the same ones.

        Learning rates, decay and seeds are arguments of the programs, so they are left out of the
        key.
        """
        # The values put in their place are arbitrary: they only make equal what compiles alike.
        optimizer = dataclasses.replace(config.optimizer, peak_lr=1.0, end_lr=0.0, weight_decay=0.0)

        # One token through `read_inputs` shows which arrays the model reads, and of which rank.
        token = training.read_inputs('train', {'input_ids': np.zeros((1, 1), np.int32)})
        shapes = tuple(array.shape for array in token.values())
        key = (optimizer, config.runtime, training.program_key, shapes)
        if key not in self._programs:
            for line in self._list_departures(config):
                logging.warning(line)
            self._programs[key] = self._compile(training, optimizer, config.runtime, token)
        return self._programs[key]

    def _compile(
        self,
        training: Training,
        optimizer: OptimizerConfig,
        runtime: RuntimeConfig,
        token: Arrays,
    ) -> Programs:
        """Make jitted programs; each is compiled when it is first called.

        Args:
          training: what is trained.
          optimizer: its settings.
          runtime: how it is computed.
          token: inputs of one token.
        """
        # Seeds come as an argument, so that a sweep over them compiles `init` once.
        mesh, model, source = self._machine.mesh, training.model, self.data.source.model
        shards = sharding.shards_update(runtime, mesh)

        def init(seed: Any) -> TrainState:
            fresh = init_params(model, seed, token)
            params, frozen = training.divide(layout.arrange_for_model(fresh, model))
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
            evaluation.split_predictor(self.data.task, model, mesh, self.compilations),
            count_weights(state.params, source),
        )

    def _list_departures(self, config: FinetuneConfig) -> list[str]:
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
            *exchange.list_without_effect(config.runtime, self._machine.mesh),
            *dropout.list_rounded_rates(rates, config.runtime.dropout_rng),
        ]

    def _make_evaluation(
        self, context: RunContext, job: Job, best: BestCheckpoint
    ) -> loop.Evaluation:
        """Score the split, keep the best weights, and end the run when they are old.

        That is early stopping, after `patience` scores that were not better.
        """
        data, metric = self.data, self.data.task.metric

        def evaluate(step: int, state: TrainState) -> loop.EvalResult:
            # The whole split, as at the end of the run: scores on the way compare with the last.
            predictions = self._predict(context, job, join_frozen(state.params, state.frozen))
            score = data.task.score(data.scored, predictions)[metric]
            best.offer(state, score)

            # patience counts scores; 0 is no limit, and so is left out of the comparison.
            patience = job.patience * job.score_every
            line = {'split': data.split, metric: score}
            return loop.EvalResult(line, stop=0 < patience <= step - best.step)

        return loop.Evaluation(job.score_every, evaluate)

    def _predict(self, context: RunContext, job: Job, params: Any) -> Predictions:
        """Predict the scored split."""
        data, training = self.data, job.training

        def read_inputs(batch: Arrays) -> Arrays:
            context.heartbeat()  # a large split may take longer than runtime.stall_minutes
            return training.read_inputs(data.split, batch)

        predict, lengths = job.programs.predictor, job.batching.lengths
        return predict(params, data.scored, training.scored, lengths, read_inputs)


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
