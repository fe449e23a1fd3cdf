"""A pre-training run: from its records and settings to its last step, phase by phase.

Owns what is particular to pre-training around the loop of bert_jax/train/loop.py: where the state
comes from, the records of each phase, and the evaluation on held-out ones. It must not know flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from absl import logging

from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.costs import flops
from bert_jax.costs.throughput import StepCosts
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.mesh import determinism, processes, sharding
from bert_jax.model.blocks import attend
from bert_jax.runs.finetuning.machine import mesh_of
from bert_jax.runs.pretraining import baselines, dry_run, held_out, same_run
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.sources import fitting, source, word_network
from bert_jax.runs.sources.source import Source
from bert_jax.runs.workdir import notes, running, word_vectors
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train import checkpoint, loop
from bert_jax.train.program import (
    PretrainingProgram,
    departures,
    fresh_state,
    pretraining_program,
)
from bert_jax.train.state import (
    TrainState,
    joined,
    load_encoder,
    load_frozen,
    load_params_into,
    parameter_count,
)
from bert_jax.train.task_heads import pretraining_head


class Options(NamedTuple):
    """What a command asks for besides the settings.

    workdir: folder of the run; init_from: the source of the first weights, if any; print_map:
    whether their names are printed; profile_steps: see loop.Run.
    """

    workdir: str
    init_from: str | None = None
    print_map: bool = False
    profile_steps: int = 0


def prepare(config: schema.PretrainConfig, records: list[Records]) -> jax.sharding.Mesh:
    """The mesh of the run. UserError where the settings or the records do not fit the devices."""
    # The mesh first, for what follows is checked against it.
    mesh = mesh_of(config.runtime, config.model)

    # Both raise for what does not go: rows that the devices cannot share, a kernel that they lack.
    for i, phase in enumerate(config.phases):
        sharding.check_divides(
            mesh, phase.batch_size, config.runtime.accumulation, f'phases.{i}.batch_size'
        )
        attend.choose(config.runtime, config.model, phase.seq_len, records[i].manifest.spec.packed)
    for line in departures(config, mesh):
        logging.warning('%s', line)
    return mesh


def print_sizes(config: schema.PretrainConfig, records: list[Records]) -> None:
    """The dry run: one line for each phase, to stdout."""
    mesh = prepare(config, records)
    for i, phase in enumerate(config.phases):
        print(f'phase {i}: {dry_run.report(config, phase, records[i], mesh)}')


def run(config: schema.PretrainConfig, records: list[Records], options: Options) -> int:
    """The whole run, in this process or in this one of several; `records` are those of each phase.

    Returns 0, or 128 + the signal that asked it to save and stop.
    """
    # One process holds the lock for all: the others share the folder with it.
    mesh, workdir = prepare(config, records), Workdir(options.workdir)
    with workdir.lock() if processes.is_lead_process() else contextlib.nullcontext():
        # Before the workdir is this run's: a source that does not fit leaves no trace.
        start, identity = starting_point(config, records, options)
        processes.compare(
            lambda: same_run.before_the_first_step(workdir, start),
            'give all the same --workdir and --init_from, as one folder that all of them share',
        )

        # The first process claims the workdir, and all others must find its claim: what they write
        # later (their parts of a checkpoint) must come together in one folder.
        tokenizer = records[0].tokenizer
        identity = {'records': [r.identity() for r in records], **identity}
        identity |= word_vectors.identity(config.model, tokenizer)
        processes.broadcast_from_lead(lambda: workdir.create_or_resume(config, identity))
        processes.compare(
            lambda: same_run.claimed(workdir),
            'the --workdir must be one folder that all of them share, a shared disk or gs://',
        )
        if processes.is_lead_process():
            tokenizer.save(workdir.tokenizer_folder)
        return _train(config, records, mesh, start, options)


def starting_point(
    config: schema.PretrainConfig, records: list[Records], options: Options
) -> tuple[Source | None, dict[str, Any]]:
    """(what `init_from` names, fit for this run; what data.json says of it).

    None without it, or where the workdir has a checkpoint that holds all weights.
    """
    # A checkpoint is further than the source: the weights are not read, nor is it asked for. But
    # what tuning leaves alone is in no checkpoint.
    where, tokenizer, model = options.init_from, records[0].tokenizer, config.model
    if not where:
        return None, {}
    if config.tuning.method == 'full':
        # Nor is what has no encoder: `_train` takes its network.
        if checkpoint.saved_steps(options.workdir) or word_network.is_workdir(where):
            return None, {'init_from': where}
        start = fitting.for_pretraining(where, tokenizer, model, config.seed, options.print_map)
        return start, {'init_from': where}

    # The trained weights belong to these alone: as source.py reads them again with the workdir.
    start = source.load_plain(where, options.print_map)
    if 'pooler' in pretraining_head(model).parts:
        fitting.check_pooler(start, config.tuning)
    if tokenizer.fingerprint != start.tokenizer.fingerprint:
        raise UserError(
            f'the vocabulary of --data is not that of {start.where}, and'
            f' tuning.method={config.tuning.method} trains no words: make the records with the'
            ' tokenizer there, or take tuning.method=full'
        )
    identity = {'init_from': start.where, 'init_fingerprint': start.fingerprint()}
    return fitting.as_pretraining(start, tokenizer, model, config.seed), identity


def _train(
    config: schema.PretrainConfig,
    records: list[Records],
    mesh: jax.sharding.Mesh,
    start: Source | None,
    options: Options,
) -> int:
    """From the newest checkpoint, `start` or fresh weights to the last step or a signal."""
    # The fresh state comes first in any case: it says how a checkpoint's arrays are to lie.
    state, meter_state = fresh_state(config, mesh), None
    if start:
        state = _with_weights(state, start, config.encoder)
    elif not checkpoint.saved_steps(options.workdir) and word_network.is_workdir(options.init_from):
        network = word_network.put_into(state.params, str(options.init_from))
        state = state._replace(params=network)
        logging.info('%s: its network of words; all else is fresh', options.init_from)
    elif state.frozen is not None:
        # Of a source they come with it; else they follow from the vocabulary alone.
        computed = word_vectors.filled_in({}, config.model, records[0].tokenizer)
        state = load_frozen(state, computed, 'word vectors')
    checkpoints = running.checkpoints_of(options.workdir, config.runtime)
    if resumed := running.resumed(options.workdir, checkpoints, state, config.total_steps):
        state, meter_state = resumed
    elif start:
        logging.info(
            'weights of %s at step %d; optimizer and schedule are new', start.where, start.step
        )
    count = f'{flops.parameter_count(config.model):,}'
    if config.tuning.method != 'full':
        count += f', of which {config.tuning.method} trains and adds'
        count += f' {parameter_count(state.params, config.model):,},'
    logging.info(
        '%s: %s parameters, %d steps, %d %s device(s), mesh %s, workdir %s',
        config.name, count, config.total_steps,
        jax.device_count(), jax.default_backend(), dict(mesh.shape), options.workdir,
    )  # fmt: skip

    # Beside the settings, since whether a run can be repeated to the bit depends on the device.
    logging.info('%s', determinism.described(jax.default_backend()))

    # `first`: the run's steps before this phase. What surrounds the steps is opened once for all
    # phases, so that log, checkpoints and watchdog go on across their border.
    first, signal = 0, None
    with running.opened_for_phases(
        options.workdir,
        checkpoints,
        state,
        config,
        mesh,
        meter_state=meter_state,
        profile_steps=options.profile_steps,
    ) as run:
        # A phase that was done before the resume is passed over; one that was cut is gone on with.
        for number, phase in enumerate(config.phases):
            if int(state.step) < first + phase.steps and signal is None:
                phase_training = PhaseTraining(
                    config, number, first, records[number], mesh, options.workdir
                )
                ended = phase_training.train(run, state)
                state, signal = ended.state, ended.signal
            first += phase.steps

    # The state was saved by the loop; the exit code tells a supervisor to start again.
    if signal is not None:
        return running.exit_code(signal, checkpoint.standing(options.workdir, int(state.step)))
    logging.info('done: %d steps', int(state.step))
    return 0


def _with_weights(state: TrainState, start: Source, encoder: schema.ModelConfig) -> TrainState:
    """A fresh state with the encoder and both heads of `start`; what tuning adds stays fresh."""
    name = f'--init_from={start.where}'
    state = load_encoder(state, start.params['encoder'], encoder, name)
    params = state.params
    for head in start.params.keys() - {'encoder'}:
        params = load_params_into(params, start.params, name, head)
    return state._replace(params=params)


@dataclasses.dataclass(frozen=True)
class PhaseTraining:
    """Phase `number` of the run in `workdir`, whose first step is the run's step `first`."""

    config: schema.PretrainConfig
    number: int
    first: int
    records: Records
    mesh: jax.sharding.Mesh
    workdir: str

    @property
    def settings(self) -> schema.Phase:
        """Its length, steps and batch size."""
        return self.config.phases[self.number]

    def train(self, run: loop.Run, state: TrainState) -> loop.TrainResult:
        """Trains from `state`, which is of this phase, to its end or to a signal."""
        # Compiled when first called; the evaluation needs it too.
        program = pretraining_program(self.config, self.records.kind(), self.mesh)
        # What guessing scores is told before the first step, beside which it will be read.
        evaluation = self.evaluation(program, run)

        train, step = self.stream('train'), int(state.step)
        logging.info(
            'phase %d: seq_len %d, batch %d, steps %d to %d; compiling',
            self.number, self.settings.seq_len, self.settings.batch_size, step,
            self.first + self.settings.steps,
        )  # fmt: skip

        # The stream counts the phase's steps from 0, the run counts all phases' together.
        def read_by(a: int, b: int) -> str:
            return (
                f'; they read {train.read_by(max(a - 1, self.first) - self.first, b - self.first)}'
            )

        # prefetch: the next batch is read and placed while the device works on this one.
        return loop.train(
            run,
            program.train_step,
            state,
            loop.prefetch(train.batches(step - self.first), self.place),
            program.hparams,
            last=self.first + self.settings.steps,
            name=f'phase {self.number}',
            labels={'phase': self.number},
            evaluation=evaluation,
            costs=StepCosts(self.flops),
            read_by=read_by,
        )

    def evaluation(self, program: PretrainingProgram, run: loop.Run) -> loop.Evaluation | None:
        """Measures on held-out records, and how far they are above guessing; None without any."""
        if not self.records.manifest.records('eval'):
            return None

        # Guessing is measured on the same records as the model.
        stream, batches = self.stream('eval'), self.config.runtime.eval_batches
        guess = baselines.told(self.records.directory, self.settings.batch_size * batches)
        if processes.is_lead_process():
            scores = guess.by_metric(self.records.kind().nsp and self.config.pair_loss)
            notes.note_guess(self.workdir, notes.Guess(self.first, scores, self.records.place()))

        # Batches of the evaluation, with a sign of life for each.
        def watched() -> Iterator[tuple[str, dict[str, jax.Array]]]:
            for language, batch in held_out.by_language(stream, batches):
                run.heartbeat()  # an evaluation may take longer than runtime.stall_minutes
                yield language, self.place(batch)

        def evaluate(step: int, state: TrainState) -> loop.EvalResult:
            del step

            params = joined(state.params, state.frozen)

            # Best is the lowest masked-LM loss; a loss that is not finite can be no best.
            measures = held_out.measure_languages(program.eval_step, params, watched())
            loss = measures['mlm_loss']
            # losses of different lengths do not compare: a later phase's are always better
            score = (float(self.number), -loss) if math.isfinite(loss) else None
            line = {'split': 'eval', **measures, 'nats_gained': guess.unigram_nll - loss}
            return loop.EvalResult(line, score)

        return loop.Evaluation(self.config.runtime.eval_every, evaluate)

    def stream(self, split: str) -> RecordStream:
        """The rows of a split that this process puts on its devices."""
        # A phase has its own order of the records: with one seed a second phase on the same ones
        # would read them as the first did.
        return RecordStream(
            self.records.directory,
            split,
            self.settings.batch_size,
            self.config.seed + self.number,
            self.config.runtime.decoder,
            rows=sharding.local_rows(self.mesh, self.settings.batch_size),
            order=self.config.record_order,
        )

    def place(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """A batch of this process's rows, on the devices as one of all rows."""
        return sharding.place(self._inputs(batch), self.mesh, self.settings.batch_size)

    @functools.cached_property
    def _inputs(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return word_vectors.inputs(self.config.model, self.records.tokenizer)

    def flops(self, length: int) -> int:
        """Model FLOPs of one row of so many tokens."""
        predictions = self.records.manifest.max_predictions
        return flops.training_flops_per_sequence(self.config.encoder, length, predictions)
