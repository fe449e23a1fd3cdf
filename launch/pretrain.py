"""Pre-trains BERT on records made by launch.preprocess; resumes by itself when the workdir holds a
checkpoint.

  python -m launch.pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a=b]
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from bert_jax.mesh import determinism
from configs import schema
from configs.errors import UserError
from configs.options import option
from launch import app, flags

if TYPE_CHECKING:
    from bert_jax.train.masking import DynamicMasking
    from input_pipeline.records.shards import Manifest
    from launch.workdir.source import Source
    from launch.workdir.workdir import Workdir

app.define_config_flags()


@dataclass(frozen=True)
class Options:
    """Where a run reads and writes, and which of several processes this is."""

    data: tuple[str, ...] = option(
        (), 'records directory; give it once for each length that the phases need'
    )
    workdir: str | None = option(
        None, 'folder of this run: configuration, checkpoints, metrics (required)'
    )
    init_from: str | None = option(
        None,
        'start from these weights, at step 0 and with a new optimizer: a workdir, a Hugging Face'
        ' BERT directory or name, or a Google checkpoint',
    )
    print_map: bool = option(
        False, 'print every name in --init_from and the array here that it holds'
    )
    print_schedule: bool = option(
        False, 'print the learning rate of chosen steps and end; needs only --config'
    )
    distributed: bool = option(
        False,
        'one of several processes, which the cluster tells apart (TPU pod, Slurm, MPI, Kubernetes)',
    )
    coordinator: str | None = option(
        None, 'HOST:PORT of process 0, where no cluster tells; the next port is used too'
    )
    num_processes: int | None = option(
        None, 'how many processes there are, with --coordinator', bounds=(1, None)
    )
    process_id: int | None = option(
        None, 'which of them this is, from 0, with --coordinator', bounds=(0, None)
    )
    arrival_timeout_s: int = option(
        300, 'seconds within which all processes must have started', bounds=(1, None)
    )
    heartbeat_s: int = option(
        100, 'seconds without a sign after which a process counts as dead', bounds=(1, None)
    )
    deterministic: bool = option(False, determinism.HELP)
    dry_run: bool = option(
        False, 'compile one step of each phase, print its sizes and end; nothing is written'
    )
    profile: int = option(
        0,
        'trace so many steps of each phase, after its first ten, into WORKDIR/profile',
        bounds=(0, None),
    )


flags.define(Options)


# Training records from which the unigram baseline is counted: a second or two of reading, and the
# third digit is settled.
_BASELINE_EXAMPLES = 50_000


class Records(NamedTuple):
    """A --data directory and its manifest."""

    directory: str
    manifest: Manifest

    def identity(self) -> dict[str, Any]:
        """What makes these records these: a resumed run must read the same ones, wherever they
        lie.
        """
        names = sorted((s.file, s.records, s.crc32c) for s in self.manifest.files)
        return {
            'seq_len': self.manifest.seq_len,
            'objective': self.manifest.objective,
            'checksum': zlib.crc32(repr(names).encode()),
        }

    def masking(self) -> DynamicMasking | None:
        """What the train step masks, as the records' own options say; none where they are masked
        already.
        """
        if self.manifest.masking == 'static':
            return None
        from etils import epath

        from bert_jax.train.masking import DynamicMasking
        from input_pipeline.tokenizer import Tokenizer

        options = self.manifest.options
        tokenizer = Tokenizer.load(epath.Path(self.directory) / 'tokenizer')
        return DynamicMasking(
            options['masked_lm_prob'],
            self.manifest.max_predictions,
            tuple(options['mask_mix']),
            options['whole_word'],
            tokenizer.mask_id,
            tokenizer.vocab_size,
        )


def main(argv: Sequence[str]) -> int:
    """Runs every phase that is left; returns 0, or 128 + the signal that asked it to save and
    stop.
    """
    del argv
    options = flags.read(Options)
    if options.deterministic:
        determinism.demand()
    if options.print_schedule:
        return print_schedule(app.config_from_flags('pretrain'))
    if not (options.distributed or options.coordinator):
        return run(*ready())
    from bert_jax.mesh import processes

    cluster = processes.ClusterAddress(
        options.coordinator,
        options.num_processes,
        options.process_id,
        options.arrival_timeout_s,
        options.heartbeat_s,
    )
    with processes.joined_run(cluster, ready, common) as (config, records):
        return run(config, records)


def ready() -> tuple[schema.PretrainConfig, list[Records]]:
    """What the flags of this process name, checked without jax."""
    options = flags.read(Options)
    config = app.config_from_flags('pretrain')
    if not options.workdir and not options.dry_run:
        raise UserError('--workdir is required: a folder for this run')
    return config, match_phases(config, options.data)


def common(made: tuple[schema.PretrainConfig, list[Records]]) -> dict[str, Any]:
    """What must be the same in all processes of this run."""
    options = flags.read(Options)
    from launch.pretraining import same_run

    named = {
        '--workdir': options.workdir,
        '--init_from': options.init_from,
        '--dry_run': options.dry_run,
    }
    return same_run.description(*made, named)


def run(config: schema.PretrainConfig, records: list[Records]) -> int:
    """The whole run, in this process or in this one of several."""
    options = flags.read(Options)
    from bert_jax.mesh import processes, sharding
    from bert_jax.model import attention, splits
    from bert_jax.train.step import use_compilation_cache
    from launch.pretraining import same_run
    from launch.workdir.workdir import Workdir

    use_compilation_cache(config.runtime.compilation_cache)
    mesh = sharding.make_mesh(config.runtime)
    for warning in splits.left_whole(config.model, config.runtime):
        logging.warning('%s', warning)
    for i, phase in enumerate(config.phases):
        sharding.check_divides(
            mesh, phase.batch_size, config.runtime.accumulation, f'phases.{i}.batch_size'
        )
        attention.choose(
            config.runtime, config.model, phase.seq_len, records[i].manifest.spec.packed
        )
    if options.dry_run:
        from launch.pretraining import dry_run

        for i, phase in enumerate(config.phases):
            print(f'phase {i}: {dry_run.report(config, phase, records[i], mesh)}')
        return 0
    assert options.workdir is not None, 'ready() asks for it'
    workdir = Workdir(options.workdir)
    with workdir.lock() if processes.is_lead_process() else contextlib.nullcontext():
        # Before the workdir is this run's: a source that does not fit leaves no trace.
        start = starting_point(config, records)
        processes.compare(
            lambda: same_run.before_the_first_step(workdir, start),
            'give all the same --workdir and --init_from, as one folder that all of them share',
        )
        identity = {'records': [r.identity() for r in records]} | (
            {'init_from': options.init_from} if options.init_from else {}
        )
        processes.broadcast_from_lead(lambda: workdir.create_or_resume(config, identity))
        processes.compare(
            lambda: same_run.claimed(workdir),
            'the --workdir must be one folder that all of them share, a shared disk or gs://',
        )
        return train(config, records, mesh, start)


def starting_point(config: schema.PretrainConfig, records: list[Records]) -> Source | None:
    """What --init_from names, fit for this run; None without it, or where the workdir has a
    checkpoint to go on from.
    """
    options = flags.read(Options)
    from etils import epath

    from bert_jax.train.checkpoint import saved_steps
    from input_pipeline.tokenizer import Tokenizer
    from launch.workdir import source

    if not options.init_from or saved_steps(options.workdir):
        return None
    tokenizer = Tokenizer.load(epath.Path(records[0].directory) / 'tokenizer')
    return source.for_pretraining(
        options.init_from, tokenizer, config.model, config.seed, options.print_map
    )


def print_schedule(config: schema.PretrainConfig) -> int:
    """Writes step (from 1, as in the log), phase and learning rate to stdout."""
    from bert_jax.train import schedule

    ends = list(itertools.accumulate(phase.steps for phase in config.phases))
    print(
        f'# {config.optimizer.schedule}, {config.total_steps} steps, warm-up'
        f' {config.optimizer.warmup_steps}'
    )
    print(
        '# step N is the N-th, as in the log and metrics.jsonl: the rate is the one that it is'
        ' made at'
    )
    print(f'{"step":>10}  phase  learning_rate')
    for step, rate in schedule.table(config.optimizer, config.total_steps, ends[:-1]):
        print(f'{step:10}  {bisect.bisect_left(ends, step):5}  {rate:.6e}')
    return 0


def match_phases(config: schema.PretrainConfig, directories: Sequence[str]) -> list[Records]:
    """The records of each phase, by seq_len. UserError for a missing, ambiguous, unused or unfit
    directory.
    """
    from input_pipeline.records.shards import Manifest, check_files
    from launch.pretraining.record_checks import check_model_reads

    if not directories:
        raise UserError('--data: name the records directory (launch.preprocess makes one)')
    given = [Records(d, Manifest.load(d)) for d in directories]
    for directory, manifest in given:
        if manifest.vocab_size != config.model.vocab_size:
            raise UserError(
                f'--data={directory} was made with a vocabulary of {manifest.vocab_size} entries,'
                f' but model.vocab_size={config.model.vocab_size}: add --set'
                f' model.vocab_size={manifest.vocab_size}, or make the records with the other'
                ' tokenizer'
            )
        if manifest.seq_len not in {p.seq_len for p in config.phases}:
            raise UserError(
                f'--data={directory} has seq_len={manifest.seq_len}, which no phase uses: '
                f'--set phases.0.seq_len={manifest.seq_len}, or leave it out'
            )
        check_model_reads(config.model, manifest, directory)
        if faults := check_files(directory, manifest.files):
            raise UserError(
                f'--data={directory}: {faults[0]} ({len(faults)} such files): copy or make the'
                ' records again'
            )
    if len({r.manifest.tokenizer_fingerprint for r in given}) > 1:
        raise UserError(
            '--data: the directories were made with different tokenizers: make them with one'
        )
    chosen = []
    for i, phase in enumerate(config.phases):
        fit = [r for r in given if r.manifest.seq_len == phase.seq_len]
        if len(fit) != 1:
            lengths = [r.manifest.seq_len for r in given]
            raise UserError(
                f'phases.{i}.seq_len={phase.seq_len}: {len(fit)} of the --data directories have'
                f' that length (theirs: {lengths}): give exactly one'
            )
        chosen.append(fit[0])
    return chosen


def train(
    config: schema.PretrainConfig, records: list[Records], mesh: Any, start: Source | None
) -> int:
    """Takes the run from its newest checkpoint, or from the start, to its last step or to a
    signal.
    """
    options = flags.read(Options)
    import jax
    import jax.numpy as jnp
    from etils import epath

    from bert_jax.costs.flops import parameter_count
    from bert_jax.mesh import processes
    from bert_jax.model import heads
    from bert_jax.train import checkpoint, loop, schedule
    from bert_jax.train.state import create_state, load_params_into
    from input_pipeline.tokenizer import Tokenizer
    from launch.workdir import metrics
    from launch.workdir.workdir import Workdir

    assert options.workdir is not None, 'ready() asks for it'
    workdir, runtime = Workdir(options.workdir), config.runtime
    if processes.is_lead_process():
        Tokenizer.load(epath.Path(records[0].directory) / 'tokenizer').save(
            workdir.tokenizer_folder
        )
    model = heads.Pretraining(
        config.model, jnp.dtype(runtime.compute_dtype), runtime.remat, runtime.scan_layers
    )
    state = create_state(model, config.seed, config.optimizer, mesh, runtime.shard_optimizer)
    checkpoints = checkpoint.Checkpoints(workdir, runtime.keep_checkpoints)
    kept = None
    if found := checkpoints.restore(state):
        state, meta = found
        kept = meta.get('meter')  # checkpoints of older versions have none
        logging.info('resumed at step %d of %d', int(state.step), config.total_steps)
    elif start:
        state = state._replace(
            params=load_params_into(state.params, start.params, f'--init_from={start.where}')
        )
        logging.info(
            'weights of %s at step %d; optimizer and schedule are new', start.where, start.step
        )
    logging.info(
        '%s: %s parameters, %d steps, %d %s device(s), mesh %s, workdir %s',
        config.name, f'{parameter_count(config.model):,}', config.total_steps,
        jax.device_count(), jax.default_backend(), dict(mesh.shape), workdir,
    )  # fmt: skip
    logging.info('%s', determinism.described(jax.default_backend()))
    must = runtime.on_full_disk == 'stop'
    checkpoints.check_room(state, saves_left(config, int(state.step)), must)
    run = Run(
        config,
        mesh,
        model,
        checkpoints,
        loop.Meter(runtime.max_bad_steps, kept),
        writer=(
            metrics.MetricWriter(workdir, int(state.step), must)
            if processes.is_lead_process()
            else metrics.NoWriter()
        ),
        stop=processes.Agreement(processes.StopSignal(), mesh),
        hparams=schedule.hparams_of(config.optimizer, config.seed, config.total_steps),
    )
    first, stopped = 0, None
    with (
        reported(run.writer, workdir),
        jax.set_mesh(mesh),
        processes.watchdog(runtime.stall_minutes) as beat,
        checkpoints,  # a save under way is on the disk before anything else is closed
    ):
        for index, phase in enumerate(config.phases):
            if int(state.step) < first + phase.steps and stopped is None:
                state, stopped = train_phase(run, index, first, records[index], state, beat)
            first += phase.steps
    if stopped is not None:
        said = checkpoint.standing(workdir, int(state.step))
        logging.info('signal %d: %s; the same command goes on from there', stopped, said)
        return 128 + stopped
    logging.info('done: %d steps', int(state.step))
    return 0


def saves_left(config: schema.PretrainConfig, step: int) -> int:
    """At most so many checkpoints will be written after `step`."""
    left, runtime = config.total_steps - step, config.runtime
    return left and left // runtime.checkpoint_every + left // runtime.eval_every + len(
        config.phases
    )


@contextlib.contextmanager
def reported(writer: Any, workdir: Workdir) -> Iterator[None]:
    """Closes the metrics and draws them, however the run inside ends."""
    from bert_jax.mesh import processes
    from launch.workdir import plots

    try:
        yield
    finally:
        writer.close()
        if processes.is_lead_process():
            plots.plot_workdir(workdir)


class Run(NamedTuple):
    """What all phases of one process share."""

    config: schema.PretrainConfig
    mesh: Any
    model: Any
    checkpoints: Any
    meter: Any
    writer: Any
    stop: Any
    hparams: Any


def train_phase(
    run: Run, index: int, first: int, records: Records, state: Any, beat: Callable[[], None]
) -> tuple[Any, int | None]:
    """Trains phase `index`, whose step 0 is the run's step `first`, to its end or to a signal; ->
    (state, the signal or None).

    Calls `beat` after each step and each batch of an evaluation.
    """
    options = flags.read(Options)
    import jax

    from bert_jax.costs import memory, throughput
    from bert_jax.mesh import sharding
    from bert_jax.model import attention
    from bert_jax.train import loop, losses
    from bert_jax.train.step import (
        jit_train_step,
        make_eval_step,
        make_train_step,
        warn_of_recompilation,
    )
    from input_pipeline.records.stream import RecordStream
    from launch.workdir.workdir import Workdir

    phase, runtime = run.config.phases[index], run.config.runtime
    kernel = attention.choose(
        runtime, run.config.model, phase.seq_len, records.manifest.spec.packed
    )
    objective = losses.pretraining_objective(
        run.model.clone(kernel=kernel), nsp=records.manifest.objective in ('nsp', 'sop')
    )
    settings = (run.config.optimizer, runtime.accumulation, records.masking(), runtime.dropout_rng)
    train_step = jit_train_step(make_train_step(objective, *settings), state)
    eval_step = jax.jit(make_eval_step(objective))

    def open_split(split: str) -> RecordStream:
        rows = sharding.local_rows(run.mesh, phase.batch_size)
        return RecordStream(
            records.directory,
            split,
            phase.batch_size,
            run.config.seed + index,
            runtime.decoder,
            rows,
        )

    def place(batch: dict) -> dict:
        return sharding.place(batch, run.mesh, phase.batch_size)

    def watched(batches: Iterator[dict]) -> Iterator[dict]:
        for batch in batches:  # an evaluation may take longer than runtime.stall_minutes
            beat()
            yield place(batch)

    held_out = open_split('eval') if records.manifest.records('eval') else None
    guess = guessing(records, phase.batch_size * runtime.eval_batches) if held_out else None
    step, last = int(state.step), first + phase.steps
    train = open_split('train')
    batches = loop.prefetch(train.batches(step - first), place)
    meter = run.meter
    meter.where = lambda a, b: f'; they read {train.read_by(max(a - 1, first) - first, b - first)}'
    logging.info(
        'phase %d: seq_len %d, batch %d, steps %d to %d; compiling',
        index,
        phase.seq_len,
        phase.batch_size,
        step,
        last,
    )
    profile = loop.Profile(str(Workdir(str(options.workdir)).profile), options.profile, step, last)
    stopped = run.stop()
    while step < last and stopped is None:
        with meter.waiting():
            batch = next(batches)
        programs = train_step._cache_size()
        if not programs:  # the program that is compiled here is the one that the first call runs
            logging.info(
                'phase %d: %s',
                index,
                memory.line(train_step.lower(state, batch, run.hparams).compile(), state, batch),
            )
        state, metrics = train_step(state, batch, run.hparams)
        step += 1
        meter.push(step, metrics, compiled=train_step._cache_size() > programs)
        stopped = run.stop()
        beat()
        profile.after(step, metrics)
        score = None
        if step % runtime.log_every == 0 or step == last:
            means = meter.drain()
            size = (phase.seq_len, records.manifest.max_predictions, phase.batch_size)
            if 'step_ms' in means:
                means |= throughput.figures(run.config.model, *size, means['step_ms'])
            eta = loop.eta(run.config.total_steps - step, means)
            run.writer.write(
                step, {'phase': index, 'split': 'train', **means}, run.config.total_steps, eta
            )
            warn_of_recompilation(train_step, step)
        if held_out and (step % runtime.eval_every == 0 or step == last):
            with meter.paused():
                evaluation = loop.evaluate(
                    eval_step, state.params, watched(held_out.evaluation(runtime.eval_batches))
                )
            gained = {'nats_gained': guess.unigram_nll - evaluation['mlm_loss']} if guess else {}
            run.writer.write(step, {'phase': index, 'split': 'eval', **evaluation, **gained})
            if math.isfinite(evaluation['mlm_loss']):
                # losses of different lengths do not compare
                score = (float(index), -evaluation['mlm_loss'])
        due = step % runtime.checkpoint_every == 0 or step == last or stopped is not None
        if due or run.checkpoints.is_best(score):
            must = runtime.on_full_disk == 'stop' or step == run.config.total_steps
            meta = {'kind': 'pretrain', 'meter': meter.state()}
            with meter.paused():
                run.checkpoints.save(state, meta, score, must)
            beat()
    return state, stopped


def guessing(records: Records, examples: int) -> Any:
    """What guessing scores on the held-out records that an evaluation reads: logged, and subtracted
    in its lines.
    """
    from launch.pretraining.baselines import baselines

    guess = baselines(records.directory, examples, _BASELINE_EXAMPLES)
    logging.info(
        'held out, guessing: unigram mlm_loss %.3f (perplexity %.0f), mlm_accuracy %.3f; '
        'most frequent label nsp_accuracy %.3f, nsp_loss %.3f',
        guess.unigram_nll,
        math.exp(guess.unigram_nll),
        guess.unigram_accuracy,
        guess.nsp_accuracy,
        guess.nsp_nll,
    )
    return guess


if __name__ == '__main__':
    app.run(main)
