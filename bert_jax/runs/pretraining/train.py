"""A pre-training run: from its records and settings to its last step, phase by phase.

Owns what is particular to pre-training around the loop of bert_jax/train/loop.py: where the state
comes from, the records of each phase, and the evaluation on held-out ones. It must not know flags.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
from absl import logging
from jax.sharding import Mesh

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import Phase, PretrainConfig
from bert_jax.costs import flops
from bert_jax.costs.throughput import StepCosts
from bert_jax.input_pipeline import progress
from bert_jax.input_pipeline.records.growth import Growth
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.tokenizer import Tokenizer
from bert_jax.mesh import determinism, processes, sharding
from bert_jax.model.blocks import attend
from bert_jax.runs.finetuning.machine import mesh_of
from bert_jax.runs.pretraining import baselines, dry_run, held_out, same_run
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.pretraining.teacher import Teacher
from bert_jax.runs.workdir import notes, running, word_vectors
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.results import RunResult, numbers
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

if TYPE_CHECKING:
    from bert_jax.runs.sources import fitting
    from bert_jax.runs.sources.source import Source

_WITH_MOMENTS = 'weights_and_moments'
_DAY = 86_400  # seconds


@dataclasses.dataclass(frozen=True, repr=False)
class PretrainResult(RunResult):
    """How a call of `pretrain` ended.

    Attributes:
      step: the last step that it made.
    """

    step: int

    @property
    def scores(self) -> dict[str, float]:
        """Return the figures of the last evaluation on held-out records, else of the last line."""
        columns = self.history.get('eval') or self.history.get('train') or {}
        return numbers({name: column[-1] for name, column in columns.items()})

    def exit_code(self) -> int:
        """Return the exit code of the command, and log what a stopped run goes on from."""
        if self.signal is None and not self.step:  # --dry_run makes none
            return 0
        if self.signal is None:
            logging.info(f'done: {self.step} steps')
        else:
            running.say_stopped(self.signal, checkpoint.standing(self.workdir, self.step))
        return super().exit_code()

    @functools.cached_property
    def _lines(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder.metrics_file)

    def verdict(self) -> str | None:
        """Say how the last evaluation compares with guessing; None without one."""
        return baselines.verdict(self._lines)

    def uses(self, folder: str) -> dict[str, str]:
        """Return commands for the model in `folder`, a word of the shell, and what they do."""
        fill = f'bert-fill-mask --workdir={folder}'
        masked_words = any('mlm_loss' in line for line in self._lines)
        uses = {fill: 'asks for texts with [MASK], fills it in'} if masked_words else {}
        finetune = f'bert-finetune --task=TASK --init_from={folder} --workdir=DIR'
        return uses | {finetune: 'trains it on a task'}


def prepare(config: PretrainConfig, records: list[Records]) -> Mesh:
    """Make the mesh of the run. UserError where settings or records do not fit the devices."""
    # The mesh first, for what follows is checked against it.
    mesh = mesh_of(config.runtime, config.model)

    # Both raise for what does not go: rows that the devices cannot share, a kernel that they lack.
    for i, phase in enumerate(config.phases):
        sharding.check_divides(
            mesh, phase.batch_size, config.runtime.accumulation, f'phases.{i}.batch_size'
        )
        attend.choose(config.runtime, config.model, phase.seq_len, records[i].manifest.spec.packed)
    for line in departures(config, mesh):
        logging.warning(line)
    return mesh


def print_sizes(config: PretrainConfig, records: list[Records]) -> None:
    """Print what a step of each phase takes, one line for each phase."""
    mesh = prepare(config, records)
    for i, phase in enumerate(config.phases):
        print(f'phase {i}: {dry_run.report(config, phase, records[i], mesh)}')


def pretrain(
    config: PretrainConfig,
    records: list[Records],
    workdir: str,
    *,
    init_from: str | None = None,
    init_by: fitting.InitBy = 'weights',
    print_map: bool = False,
    profile_steps: int = 0,
) -> PretrainResult:
    """Train all phases that are left, in this process or in this one of several.

    Args:
      config: the settings.
      records: those of each phase (records.match_phases).
      workdir: folder of the run, which all processes share.
      init_from: the source of the first weights.
      init_by: how they are made of it; weights_and_moments takes its optimizer's moments too.
      print_map: whether the names of its arrays are printed.
      profile_steps: see loop.Run.

    Raises:
      UserError: settings, records, source or folder do not fit.
    """
    mesh, tokenizer = prepare(config, records), records[0].tokenizer
    with running.locked(workdir) as folder:
        # Before the workdir is this run's: a source that does not fit leaves no trace.
        start, identity = starting_point(config, tokenizer, workdir, init_from, print_map, init_by)
        teacher = Teacher.of(config, records, mesh)
        if teacher:
            identity = {**identity, 'teacher_fingerprint': teacher.fingerprint}
        processes.compare(
            lambda: same_run.before_the_first_step(folder, start),
            'give all the same --workdir and --init_from, as one folder that all of them share',
        )

        # The first process claims the workdir, and all others must find its claim: what they write
        # later (their parts of a checkpoint) must come together in one folder.
        identity = {'records': [r.identity() for r in records], **identity}
        config = running.claim(folder, config, tokenizer, identity)
        processes.compare(
            lambda: same_run.claimed(folder),
            'the --workdir must be one folder that all of them share, a shared disk or gs://',
        )
        fresh = _first_state(config, tokenizer, mesh, start, workdir, init_from, init_by)
        _log_sizes(config, fresh, mesh, workdir)
        with running.opened_for_phases(workdir, fresh, config, mesh, profile_steps) as (run, state):
            if start and not int(state.step):
                is_new = 'schedule is' if init_by == _WITH_MOMENTS else 'optimizer and schedule are'
                logging.info(f'weights of {start.where} at step {start.step}; {is_new} new')
            return _train_phases(config, records, mesh, workdir, run, state, teacher)


def starting_point(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    workdir: str,
    init_from: str | None,
    print_map: bool,
    init_by: fitting.InitBy = 'weights',
) -> tuple[Source | None, dict[str, Any]]:
    """Read what `init_from` names, made fit for this run; return it, and its entry of data.json.

    None without it, or where the workdir has a checkpoint that holds all weights.
    """
    # A checkpoint is further than the source: the weights are not read, nor is it asked for. But
    # what tuning leaves alone is in no checkpoint.
    model = config.model
    if not init_from:
        return None, {}
    from bert_jax.runs.sources import fitting, moments, source, word_network

    # Older runs do not say it, whose weights were taken as they are.
    by = {} if init_by == 'weights' else {'init_by': init_by}
    if by and (config.tuning.method != 'full' or word_network.is_workdir(init_from)):
        raise UserError(f'--init_by={init_by} is for a whole model that is trained whole')
    if config.tuning.method == 'full':
        # Nor is what has no encoder: `_first_state` takes its network.
        if checkpoint.saved_steps(workdir) or word_network.is_workdir(init_from):
            return None, {'init_from': init_from, **by}
        if init_by == _WITH_MOMENTS:
            moments.check(init_from, tokenizer, config)
        start = fitting.for_pretraining(
            init_from, tokenizer, model, config.seed, print_map, init_by
        )
        return start, {'init_from': init_from, **by}

    # The trained weights belong to these alone: as source.py reads them again with the workdir.
    start = source.load_plain(init_from, print_map)
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


def _first_state(
    config: PretrainConfig,
    tokenizer: Tokenizer,
    mesh: Mesh,
    start: Source | None,
    workdir: str,
    init_from: str | None,
    init_by: fitting.InitBy,
) -> TrainState:
    """Make the state that a run without a checkpoint begins with: of `start`, or fresh."""
    # The fresh state comes first in any case: it says how a checkpoint's arrays are to lie.
    state = fresh_state(config, mesh)
    if start:
        # The encoder and both heads; what tuning adds stays fresh.
        name = f'--init_from={start.where}'
        state = load_encoder(state, start.params['encoder'], config.encoder, name)
        params = state.params
        for head in start.params.keys() - {'encoder'}:
            params = load_params_into(params, start.params, name, head)
        state = state._replace(params=params)
        if init_by == _WITH_MOMENTS:
            from bert_jax.runs.sources import moments

            state = moments.put_into(state, str(init_from), start.step)
        return state
    if init_from and not checkpoint.saved_steps(workdir):
        from bert_jax.runs.sources import word_network

        if word_network.is_workdir(init_from):
            network = word_network.put_into(state.params, init_from)
            logging.info(f'{init_from}: its network of words; all else is fresh')
            return state._replace(params=network)
    if state.frozen is not None:
        # Of a source they come with it; else they follow from the vocabulary alone.
        computed = word_vectors.filled_in({}, config.model, tokenizer)
        state = load_frozen(state, computed, 'word vectors')
    return state


def _log_sizes(config: PretrainConfig, state: TrainState, mesh: Mesh, workdir: str) -> None:
    count = f'{flops.parameter_count(config.model):,}'
    if config.tuning.method != 'full':
        count += f', of which {config.tuning.method} trains and adds'
        count += f' {parameter_count(state.params, config.model):,},'
    logging.info(
        f'{config.name}: {count} parameters, {config.total_steps} steps, {jax.device_count()}'
        f' {jax.default_backend()} device(s), mesh {dict(mesh.shape)}, workdir {workdir}'
    )

    # With the settings, since whether a run can be repeated to the bit depends on the device.
    logging.info(determinism.described(jax.default_backend()))


def _train_phases(
    config: PretrainConfig,
    records: list[Records],
    mesh: Mesh,
    workdir: str,
    run: loop.Run,
    state: TrainState,
    teacher: Teacher | None,
) -> PretrainResult:
    """Train the phases that are left, to the last step or to a signal."""
    # `first`: the run's steps before this phase. What surrounds the steps is opened once for all
    # phases, so that log, checkpoints and watchdog go on across their border.
    first, signal = 0, None
    # A phase that was done before the resume is passed over; one that was cut is gone on with.
    for number, phase in enumerate(config.phases):
        if int(state.step) < first + phase.steps and signal is None:
            of_phase = PhaseTraining(config, number, first, records[number], mesh, workdir, teacher)
            ended = of_phase.train(run, state)
            state, signal = ended.state, ended.signal
        first += phase.steps
    return PretrainResult(workdir, int(state.step), signal=signal)


@dataclasses.dataclass(frozen=True)
class PhaseTraining:
    """Phase `number` of the run in `workdir`, whose first step is the run's step `first`."""

    config: PretrainConfig
    number: int
    first: int
    records: Records
    mesh: Mesh
    workdir: str
    teacher: Teacher | None = None

    @property
    def settings(self) -> Phase:
        """Return its length, steps and batch size."""
        return self.config.phases[self.number]

    def train(self, run: loop.Run, state: TrainState) -> loop.TrainResult:
        """Train from `state`, which is of this phase, to its end or to a signal."""
        # Compiled when first called; the evaluation needs it too.
        program = pretraining_program(
            self.config, self.records.kind(), self.mesh, phase=self.settings
        )
        # What guessing scores is logged before the first step, with which it will be compared.
        evaluation = self.evaluation(program, run)

        train, step = self.stream('train'), int(state.step)
        logging.info(
            f'phase {self.number}: seq_len {self.settings.seq_len}, batch'
            f' {self.settings.batch_size}, steps {step} to {self.first + self.settings.steps};'
            ' compiling'
        )

        # The stream counts the phase's steps from 0, the run counts all phases' together.
        def read_by(a: int, b: int) -> str:
            rows = train.read_by(max(a - 1, self.first) - self.first, b - self.first)
            return f'; they read {rows}'

        # prefetch: the next batch is read and placed while the device works on this one.
        return loop.train(
            run._replace(forecast=self.forecast),
            program.train_step,
            state,
            loop.prefetch(train.batches(step - self.first), self.place),
            program.hparams,
            last=self.first + self.settings.steps,
            name=f'phase {self.number}',
            labels={'phase': self.number},
            evaluation=evaluation,
            costs=StepCosts(self.flops, sizes=self.sizes(step - self.first)),
            read_by=read_by,
        )

    def forecast(self, seconds: float) -> None:
        """Log how long the rest of the run will take, and what to do where that is days."""
        smaller = ''
        if seconds > _DAY and jax.default_backend() == 'cpu':
            smaller = (
                ': on a CPU take --config=bert_mini_cpu (about an hour on two cores), a smaller'
                ' preset or fewer --steps'
            )
        if processes.is_lead_process():
            logging.info(f'at this rate the run takes {progress.clock(seconds)}{smaller}')

    def evaluation(self, program: PretrainingProgram, run: loop.Run) -> loop.Evaluation | None:
        """Make the evaluation on held-out records, compared with guessing; None without any."""
        if not self.records.manifest.records('eval'):
            return None

        # Guessing is measured on the same records as the model.
        stream, batches = self.stream('eval'), self.config.runtime.eval_batches
        nsp = self.records.kind().nsp and self.config.pair_loss
        guess = baselines.logged_baselines(
            self.records.directory, self.settings.batch_size * batches, self.records.tokenizer, nsp
        )
        if processes.is_lead_process():
            scores = guess.by_metric(nsp)
            notes.note_guess(
                self.workdir, notes.Guess(self.first, scores, self.records.lasting_path())
            )

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
            line = {'split': 'eval', **measures}
            if 'mlm_loss' in measures:
                line['nats_gained'] = guess.unigram_nll - measures['mlm_loss']
            # A student may learn a teacher's relations alone.
            loss = measures.get('mlm_loss', measures.get('relation_loss', math.nan))
            # losses of different lengths do not compare: a later phase's are always better
            score = (float(self.number), -loss) if math.isfinite(loss) else None
            return loop.EvalResult(line, score)

        return loop.Evaluation(self.config.runtime.eval_every, evaluate)

    def stream(self, split: str) -> RecordStream:
        """Open the rows of a split that this process puts on its devices."""
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
            growth=self.growth,
        )

    @property
    def growth(self) -> Growth | None:
        """Return how the batch grows; None where it does not."""
        phase, parts = self.settings, self.config.runtime.accumulation
        if phase.batch_warmup_from is None or phase.batch_warmup_steps is None:
            return None
        return Growth(phase.batch_warmup_from, phase.batch_warmup_steps, phase.batch_size, parts)

    def sizes(self, step: int) -> Iterator[int] | None:
        """Return the rows of each batch from a step of the phase on; None where none grows."""
        growth = self.growth
        return growth and map(growth.size, itertools.count(step))

    def place(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """Put a batch of this process's rows on the devices, as one of all rows."""
        placed = sharding.place(self._inputs(batch), self.mesh, self.settings.batch_size)
        return self.teacher(placed) if self.teacher else placed

    @functools.cached_property
    def _inputs(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return word_vectors.inputs(self.config.model, self.records.tokenizer)

    def flops(self, length: int) -> int:
        """Return the model FLOPs of one row of `length` tokens."""
        predictions = self.records.manifest.max_predictions
        return flops.training_flops_per_sequence(self.config.encoder, length, predictions)
