"""A pre-training run: from its records and settings to its last step, phase by phase.

Owns what is particular to pre-training around the loop of bert_jax/train/loop.py. The settings are
made into objects here: the program of a phase, its data (phase_data.py), its evaluation
(held_out.py), the first weights (first_weights.py). It must not know flags.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from absl import logging
from jax.sharding import Mesh

from bert_jax.configs.schema import ModelConfig, Phase, PretrainConfig
from bert_jax.costs import flops
from bert_jax.costs.step_costs import StepCosts, format_bytes, format_memory
from bert_jax.input_pipeline import progress
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.mesh import before_jax, processes
from bert_jax.model.blocks.attention_kernels import choose_kernel
from bert_jax.runs.finetuning.machine import prepare_mesh
from bert_jax.runs.pretraining import baselines, same_run
from bert_jax.runs.pretraining.first_weights import FirstWeights
from bert_jax.runs.pretraining.held_out import make_evaluation
from bert_jax.runs.pretraining.phase_data import PhaseData, make_phases
from bert_jax.runs.pretraining.records import Records
from bert_jax.runs.pretraining.teacher import Teacher
from bert_jax.runs.workdir.metrics import read_metrics
from bert_jax.runs.workdir.results import RunResult, numbers
from bert_jax.runs.workdir.run_context import RunContext, check_batches, say_stopped
from bert_jax.train import checkpoint
from bert_jax.train.loop import Part, train_steps
from bert_jax.train.pretraining_program import PretrainingSetup
from bert_jax.train.state import TrainState, count_checkpoint_bytes, count_weights

if TYPE_CHECKING:
    from bert_jax.runs.sources.fitting import InitBy

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
            say_stopped(self.signal, checkpoint.describe_standing(self.workdir, self.step))
        return super().exit_code()

    @functools.cached_property
    def _lines(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder.metrics_file)

    def verdict(self) -> str | None:
        """Say how the last evaluation compares with guessing; None without one."""
        return baselines.compare_with_guessing(self._lines)

    def uses(self, folder: str) -> dict[str, str]:
        """Return commands for the model in `folder`, a word of the shell, and what they do."""
        fill = f'bert-fill-mask --workdir={folder}'
        names = {name for line in self._lines for name in line}
        uses = {}
        if 'mlm_loss' in names and 'rtd_loss' not in names:
            uses[fill] = 'asks for texts with [MASK], fills it in'
        finetune = f'bert-finetune --task=TASK --init_from={folder} --workdir=DIR'
        return uses | {finetune: 'trains it on a task'}


def make_mesh(setup: PretrainingSetup, phases: Sequence[Phase], records: list[Records]) -> Mesh:
    """Make the mesh of the run. UserError where settings or records do not fit the devices."""
    # The mesh first, for what follows is checked against it.
    mesh = prepare_mesh(setup.runtime, setup.model)

    # Both raise for what does not go: rows that the devices cannot share, a kernel that they lack.
    check_batches(phases, setup.runtime.accumulation, mesh)
    for of_phase in records:
        manifest = of_phase.manifest
        choose_kernel(setup.runtime, setup.model, manifest.seq_len, manifest.spec.packed)
    for line in setup.list_departures(mesh):
        logging.warning(line)
    return mesh


def make_teacher(setup: PretrainingSetup, records: list[Records], mesh: Mesh) -> Teacher | None:
    """Read the teacher of a run; None where it has none."""
    if setup.distillation is None:
        return None
    return Teacher(setup, records, mesh)


def print_sizes(config: PretrainConfig, records: list[Records]) -> None:
    """Compile a step of each phase; print what it takes, one line for each phase.

    A line has batch, FLOPs, memory of the step on one device, size of a checkpoint. Nothing is
    written, and no parameters are made; bert-plan does the same for devices that are not here.
    """
    setup = PretrainingSetup.from_config(config)
    mesh = make_mesh(setup, config.phases, records)
    teacher = make_teacher(setup, records, mesh)
    for data in make_phases(config, records, mesh, teacher):
        setup = PretrainingSetup.from_config(config, data.number)
        program = setup.make_program(data.kind, mesh, grows=data.growth is not None)
        # A real batch, and not shapes alone: it is placed as in training, so the layouts are the
        # same. Compiled and not run: the state is a tree of shapes, which takes no memory.
        batch = data.place(next(data.stream('train').batches()), data.first)
        with jax.set_mesh(mesh):
            lowered = program.train_step.lower(program.state, batch, setup.hparams)
            memory = format_memory(lowered.compile(), program.state, batch)

        # The formula's FLOPs: the compiler counts the body of a loop once.
        phase, predictions = data.phase, data.records.manifest.max_predictions
        shapes = setup.objective.list_shapes(setup.encoder)
        work = flops.count_models_flops(shapes, phase.seq_len, predictions)
        print(
            f'phase {data.number}: seq_len {phase.seq_len}, batch {phase.batch_size},'
            f' {phase.steps:,} steps, attention {program.kernel},'
            f' {phase.batch_size * work / 1e9:,.1f} GFLOP a step; {memory}; a checkpoint'
            f' {format_bytes(count_checkpoint_bytes(program.state))}'
        )


def pretrain(
    config: PretrainConfig,
    records: list[Records],
    workdir: str,
    *,
    init_from: str | None = None,
    init_by: InitBy = 'weights',
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
      profile_steps: how many steps of each phase are traced; 0 for no trace.

    Raises:
      UserError: settings, records, source or folder do not fit.
    """
    setup = PretrainingSetup.from_config(config)
    mesh = make_mesh(setup, config.phases, records)
    with RunContext(workdir, config, mesh, profile_steps=profile_steps) as context:
        # Before the workdir is this run's: a source that does not fit leaves no trace.
        has_checkpoint = bool(checkpoint.list_saved_steps(workdir))
        weights = FirstWeights(setup, records[0].tokenizer, has_checkpoint, init_from, init_by)
        weights.read(print_map)
        teacher = make_teacher(setup, records, mesh)
        _claim(context, records, weights, teacher)
        # A run that began before keeps some settings of how it is computed.
        config = dataclasses.replace(config, runtime=context.runtime)
        setup = PretrainingSetup.from_config(config)
        fresh = weights.put_into(setup.make_state(mesh))
        _log_sizes(context, setup, fresh)
        context.begin(fresh)
        del fresh  # its memory is the state's
        if not int(context.state.step):
            weights.log()

        # What surrounds the steps is opened once for all phases, so that log, checkpoints and
        # watchdog go on across their border. A phase that was done before the resume is passed
        # over; one that was cut is gone on with.
        signal = None
        for data in make_phases(config, records, mesh, teacher):
            if signal is None and int(context.state.step) < data.last:
                setup = PretrainingSetup.from_config(config, data.number)
                context.hparams, grows = setup.hparams, data.growth is not None
                program = setup.make_program(data.kind, mesh, grows=grows)
                evaluation = make_evaluation(context, data, program.eval_step, setup)
                stream = data.stream('train')
                shapes = setup.objective.list_shapes(setup.encoder)
                part = make_part(context, data, stream, shapes)
                batches = data.batches(stream, int(context.state.step))
                ended = train_steps(context, program.train_step, batches, evaluation, part)
                signal = ended.signal
        return PretrainResult(workdir, int(context.state.step), signal=signal)


def _claim(
    context: RunContext,
    records: list[Records],
    weights: FirstWeights,
    teacher: Teacher | None,
) -> None:
    """Make the workdir this run's, in all of its processes."""
    processes.compare(
        lambda: same_run.describe_start(context.folder, weights.source),
        'give all the same --workdir and --init_from, as one folder that all of them share',
    )
    identity = {'records': [r.identity() for r in records], **weights.identity}
    if teacher is not None:
        identity['teacher_fingerprint'] = teacher.fingerprint

    # The first process claims the workdir, and all others must find its claim: what they write
    # later (their parts of a checkpoint) must come together in one folder.
    context.claim(records[0].tokenizer, identity)
    processes.compare(
        lambda: same_run.describe_claim(context.folder),
        'the --workdir must be one folder that all of them share, a shared disk or gs://',
    )


def _log_sizes(context: RunContext, setup: PretrainingSetup, state: TrainState) -> None:
    """Log what is trained, on which devices."""
    count, tuning = f'{setup.count_parameters():,}', setup.encoder.tuning
    if tuning.method != 'full':
        count += f', of which {tuning.method} trains and adds'
        count += f' {count_weights(state.params, setup.model):,},'
    logging.info(
        f'{context.config.name}: {count} parameters, {context.total_steps} steps,'
        f' {jax.device_count()} {jax.default_backend()} device(s), mesh'
        f' {dict(context.mesh.shape)}, workdir {context.folder}'
    )

    # With the settings, since whether a run can be repeated to the bit depends on the device.
    logging.info(before_jax.describe_determinism(jax.default_backend()))


def make_part(
    context: RunContext,
    data: PhaseData,
    stream: RecordStream,
    shapes: list[tuple[ModelConfig, bool]],
) -> Part:
    """Say of the steps of a phase, from the run's state on, what the log shall know of them.

    shapes: of the models, as MaskedLMObjective.list_shapes has them.
    """
    step, phase = int(context.state.step), data.phase
    logging.info(
        f'phase {data.number}: seq_len {phase.seq_len}, batch {phase.batch_size}, steps {step} to'
        f' {data.last}; compiling'
    )
    predictions = data.records.manifest.max_predictions

    def count_flops(length: int) -> int:
        return flops.count_models_flops(shapes, length, predictions)

    return Part(
        last=data.last,
        name=f'phase {data.number}',
        labels={'phase': data.number},
        costs=StepCosts(count_flops, sizes=data.sizes(step)),
        read_by=functools.partial(data.read_by, stream),
        forecast=_log_forecast,
    )


def _log_forecast(seconds: float) -> None:
    """Log how long the rest of the run will take, and what to do where that is days."""
    smaller = ''
    if seconds > _DAY and jax.default_backend() == 'cpu':
        smaller = (
            ': on a CPU take --config=bert_mini_cpu (about an hour on two cores), a smaller'
            ' preset or fewer --steps'
        )
    if processes.is_lead_process():
        logging.info(f'at this rate the run takes {progress.clock(seconds)}{smaller}')
