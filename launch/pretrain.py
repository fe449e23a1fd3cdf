"""Pre-trains BERT on records made by launch.preprocess; resumes by itself when the workdir holds a checkpoint.

python -m launch.pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a.b=c ...]
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags, logging

from configs import schema
from configs.errors import UserError
from launch import app

if TYPE_CHECKING:
    from bert_jax.dynamic_masking import DynamicMasking
    from input_pipeline.shards import Manifest
    from launch.source import Source

app.define_config_flags()
_DATA = flags.DEFINE_multi_string('data', [], 'records directory; give it once for each length that the phases need')
_WORKDIR = flags.DEFINE_string('workdir', None, 'folder of this run: configuration, checkpoints, metrics (required)')
_INIT_FROM = flags.DEFINE_string(
    'init_from',
    None,
    'start from these weights, at step 0 and with a new optimizer: a workdir, a Hugging Face BERT directory or name, '
    'or a Google checkpoint',
)
_PRINT_MAP = flags.DEFINE_bool('print_map', False, 'print every name in --init_from and the array here that it holds')
_PRINT_SCHEDULE = flags.DEFINE_bool('print_schedule', False, 'print the learning rate of chosen steps and end; needs only --config')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'one of several processes, which the cluster tells apart (TPU pod, Slurm, MPI, Kubernetes)'
)
_COORDINATOR = flags.DEFINE_string('coordinator', None, 'HOST:PORT of process 0, where no cluster tells; the next port is used too')
_NUM_PROCESSES = flags.DEFINE_integer('num_processes', None, 'how many processes there are, with --coordinator', lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer('process_id', None, 'which of them this is, from 0, with --coordinator', lower_bound=0)
_ARRIVAL = flags.DEFINE_integer('arrival_timeout_s', 300, 'seconds within which all processes must have started', lower_bound=1)
_HEARTBEAT = flags.DEFINE_integer('heartbeat_s', 100, 'seconds without a sign after which a process counts as dead', lower_bound=1)
_DRY_RUN = flags.DEFINE_bool('dry_run', False, 'compile one step of each phase, print its sizes and end; nothing is written')
_PROFILE = flags.DEFINE_integer('profile', 0, 'trace so many steps of each phase, after its first ten, into WORKDIR/profile', lower_bound=0)

# Training records from which the unigram baseline is counted: a second or two of reading, and the third digit is settled.
_BASELINE_EXAMPLES = 50_000


class Records(NamedTuple):
    """A --data directory and its manifest."""

    directory: str
    manifest: Manifest

    def identity(self) -> dict[str, Any]:
        """What makes these records these: a resumed run must read the same ones, wherever they lie."""
        names = sorted((s.file, s.records, s.crc32c) for s in self.manifest.files)
        return {'seq_len': self.manifest.seq_len, 'objective': self.manifest.objective, 'checksum': zlib.crc32(repr(names).encode())}

    def masking(self) -> DynamicMasking | None:
        """What the train step masks, as the records' own options say; none where they are masked already."""
        if self.manifest.masking == 'static':
            return None
        from etils import epath

        from bert_jax.dynamic_masking import DynamicMasking
        from input_pipeline.tokenizer import Tokenizer

        options, tokenizer = self.manifest.options, Tokenizer.load(epath.Path(self.directory) / 'tokenizer')
        return DynamicMasking(
            options['masked_lm_prob'], self.manifest.max_predictions, tuple(options['mask_mix']), options['whole_word'],
            tokenizer.mask_id, tokenizer.vocab_size,
        )  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Runs every phase that is left; returns 0, or 128 + the signal that asked it to save and stop."""
    del argv
    config = app.config_from_flags('pretrain')
    if _PRINT_SCHEDULE.value:
        return print_schedule(config)
    if not _WORKDIR.value and not _DRY_RUN.value:
        raise UserError('--workdir is required: a folder for this run')
    records = match_phases(config, _DATA.value)

    from bert_jax import attention, distributed, sharding
    from bert_jax.step import use_compilation_cache
    from launch import workdir

    if _DISTRIBUTED.value or _COORDINATOR.value:
        distributed.initialize(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value, _ARRIVAL.value, _HEARTBEAT.value)
    use_compilation_cache(config.runtime.compilation_cache)
    mesh = sharding.make_mesh(config.runtime)
    for i, phase in enumerate(config.phases):
        sharding.check_divides(mesh, phase.batch_size, config.runtime.accumulation, f'phases.{i}.batch_size')
        attention.choose(config.runtime, config.model, phase.seq_len, records[i].manifest.spec.packed)
    if _DRY_RUN.value:
        from launch import dry_run

        for i, phase in enumerate(config.phases):
            print(f'phase {i}: {dry_run.report(config, phase, records[i], mesh)}')
        return 0
    with workdir.lock(_WORKDIR.value) if distributed.first() else contextlib.nullcontext():
        start = starting_point(config, records)  # before the workdir is this run's: a source that does not fit leaves no trace
        identity = {'records': [r.identity() for r in records]} | ({'init_from': _INIT_FROM.value} if _INIT_FROM.value else {})
        distributed.from_first(lambda: workdir.settle(_WORKDIR.value, config, identity))
        return train(config, records, mesh, start)


def starting_point(config: schema.PretrainConfig, records: list[Records]) -> Source | None:
    """What --init_from names, fit for this run; None without it, or where the workdir has a checkpoint to go on from."""
    from etils import epath

    from bert_jax.checkpoint import saved_steps
    from input_pipeline.tokenizer import Tokenizer
    from launch import source

    if not _INIT_FROM.value or saved_steps(_WORKDIR.value):
        return None
    tokenizer = Tokenizer.load(epath.Path(records[0].directory) / 'tokenizer')
    return source.for_pretraining(_INIT_FROM.value, tokenizer, config.model, config.seed, _PRINT_MAP.value)


def print_schedule(config: schema.PretrainConfig) -> int:
    """Writes step (0-based), phase and learning rate to stdout."""
    from bert_jax import schedule

    ends = list(itertools.accumulate(phase.steps for phase in config.phases))
    print(f'# {config.optimizer.schedule}, {config.total_steps} steps, warm-up {config.optimizer.warmup_steps}')
    print(f'{"step":>10}  phase  learning_rate')
    for step, rate in schedule.table(config.optimizer, config.total_steps, ends[:-1]):
        print(f'{step:10}  {bisect.bisect(ends, step):5}  {rate:.6e}')
    return 0


def match_phases(config: schema.PretrainConfig, directories: Sequence[str]) -> list[Records]:
    """The records of each phase, by seq_len. UserError for a missing, ambiguous, unused or unfit directory."""
    from input_pipeline.shards import Manifest, check_files

    if not directories:
        raise UserError('--data: name the records directory (launch.preprocess makes one)')
    given = [Records(d, Manifest.load(d)) for d in directories]
    for directory, manifest in given:
        if manifest.vocab_size != config.model.vocab_size:
            raise UserError(
                f'--data={directory} was made with a vocabulary of {manifest.vocab_size} entries, '
                f'but model.vocab_size={config.model.vocab_size}: '
                f'add --set model.vocab_size={manifest.vocab_size}, or make the records with the other tokenizer'
            )
        if manifest.seq_len not in {p.seq_len for p in config.phases}:
            raise UserError(
                f'--data={directory} has seq_len={manifest.seq_len}, which no phase uses: '
                f'--set phases.0.seq_len={manifest.seq_len}, or leave it out'
            )
        if faults := check_files(directory, manifest.files):
            raise UserError(f'--data={directory}: {faults[0]} ({len(faults)} such files): copy or make the records again')
    if len({r.manifest.tokenizer_fingerprint for r in given}) > 1:
        raise UserError('--data: the directories were made with different tokenizers: make them with one')
    chosen = []
    for i, phase in enumerate(config.phases):
        fit = [r for r in given if r.manifest.seq_len == phase.seq_len]
        if len(fit) != 1:
            lengths = [r.manifest.seq_len for r in given]
            raise UserError(
                f'phases.{i}.seq_len={phase.seq_len}: {len(fit)} of the --data directories have that length (theirs: {lengths}): '
                'give exactly one'
            )
        chosen.append(fit[0])
    return chosen


def train(config: schema.PretrainConfig, records: list[Records], mesh: Any, start: Source | None) -> int:
    """Takes the run from its newest checkpoint, or from the start, to its last step or to a signal."""
    import jax
    import jax.numpy as jnp
    from etils import epath

    from bert_jax import checkpoint, distributed, heads, loop, metrics, plots, schedule, train_state
    from bert_jax.flops import parameter_count
    from input_pipeline.tokenizer import Tokenizer

    workdir, runtime = _WORKDIR.value, config.runtime
    if distributed.first():
        Tokenizer.load(epath.Path(records[0].directory) / 'tokenizer').save(epath.Path(workdir) / 'tokenizer')
    model = heads.Pretraining(config.model, jnp.dtype(runtime.compute_dtype), runtime.remat, runtime.scan_layers)
    state = train_state.create_state(model, config.seed, config.optimizer, mesh, runtime.shard_optimizer)
    checkpoints = checkpoint.Checkpoints(workdir, runtime.keep_checkpoints, best_metric='mlm_loss')
    if found := checkpoints.restore(state):
        state, _ = found
        logging.info('resumed at step %d of %d', int(state.step), config.total_steps)
    elif start:
        state = state._replace(params=train_state.graft(state.params, start.params, f'--init_from={start.where}'))
        logging.info('weights of %s at step %d; optimizer and schedule are new', start.where, start.step)
    logging.info(
        '%s: %s parameters, %d steps, %d %s device(s), mesh %s, workdir %s',
        config.name, f'{parameter_count(config.model):,}', config.total_steps,
        jax.device_count(), jax.default_backend(), dict(mesh.shape), workdir,
    )  # fmt: skip
    run = Run(
        config, mesh, model, checkpoints,
        writer=metrics.MetricWriter(workdir, int(state.step)) if distributed.first() else metrics.NoWriter(),
        stop=distributed.Agreement(loop.StopSignal(), mesh),
        hyper=schedule.hyper(config.optimizer, config.seed, config.total_steps),
    )  # fmt: skip
    first, stopped = 0, None
    with jax.set_mesh(mesh), distributed.watchdog(runtime.stall_minutes) as beat:
        for index, phase in enumerate(config.phases):
            if int(state.step) < first + phase.steps and stopped is None:
                state, stopped = train_phase(run, index, first, records[index], state, beat)
            first += phase.steps
        checkpoints.close()
    run.writer.close()
    if distributed.first():
        plots.plot_run(epath.Path(workdir) / metrics.FILE, epath.Path(workdir) / 'plots')
    if stopped is not None:
        logging.info('signal %d: saved at step %d and stopped; the same command goes on from there', stopped, int(state.step))
        return 128 + stopped
    logging.info('done: %d steps', int(state.step))
    return 0


class Run(NamedTuple):
    """What all phases of one process share."""

    config: schema.PretrainConfig
    mesh: Any
    model: Any
    checkpoints: Any
    writer: Any
    stop: Any
    hyper: Any


def train_phase(run: Run, index: int, first: int, records: Records, state: Any, beat: Callable[[], None]) -> tuple[Any, int | None]:
    """Trains phase `index`, whose step 0 is the run's step `first`, to its end or to a signal; -> (state, the signal or None).

    Calls `beat` after each step and each batch of an evaluation.
    """
    import jax

    from bert_jax import attention, loop, losses, memory, sharding, speed
    from bert_jax.step import jit_train_step, make_eval_step, make_train_step, warn_of_recompilation
    from input_pipeline.stream import RecordStream

    phase, runtime = run.config.phases[index], run.config.runtime
    kernel = attention.choose(runtime, run.config.model, phase.seq_len, records.manifest.spec.packed)
    objective = losses.pretraining_objective(run.model.clone(kernel=kernel), nsp=records.manifest.objective in ('nsp', 'sop'))
    settings = (run.config.optimizer, runtime.accumulation, records.masking(), runtime.dropout_rng)
    train_step = jit_train_step(make_train_step(objective, *settings), state)
    eval_step = jax.jit(make_eval_step(objective))

    def open_split(split: str) -> RecordStream:
        rows = sharding.local_rows(run.mesh, phase.batch_size)
        return RecordStream(records.directory, split, phase.batch_size, run.config.seed + index, runtime.decoder, rows)

    def place(batch: dict) -> dict:
        return sharding.place(batch, run.mesh, phase.batch_size)

    def watched(batches: Iterator[dict]) -> Iterator[dict]:
        for batch in batches:  # an evaluation may take longer than runtime.stall_minutes
            beat()
            yield place(batch)

    held_out = open_split('eval') if records.manifest.records('eval') else None
    guess = guessing(records, phase.batch_size * runtime.eval_batches) if held_out else None
    step, last = int(state.step), first + phase.steps
    batches = loop.prefetch(open_split('train').batches(step - first), place)
    meter = loop.Meter(runtime.max_bad_steps)
    logging.info('phase %d: seq_len %d, batch %d, steps %d to %d; compiling', index, phase.seq_len, phase.batch_size, step, last)
    profile = loop.Profile(f'{_WORKDIR.value}/profile', _PROFILE.value, step, last)
    stopped = run.stop()
    while step < last and stopped is None:
        with meter.waiting():
            batch = next(batches)
        if not train_step._cache_size():  # the program that is compiled here is the one that the first call runs
            logging.info('phase %d: %s', index, memory.line(train_step.lower(state, batch, run.hyper).compile(), state, batch))
        state, metrics = train_step(state, batch, run.hyper)
        meter.push(metrics)
        step += 1
        stopped = run.stop()
        beat()
        profile.after(step, metrics)
        evaluation = None
        if step % runtime.log_every == 0 or step == last:
            means = meter.drain()
            size = (phase.seq_len, records.manifest.max_predictions, phase.batch_size)
            means |= speed.figures(run.config.model, *size, means['steps'], means['seconds'])
            eta = (run.config.total_steps - step) * means['seconds'] / means['steps']
            run.writer.write(step, {'phase': index, 'split': 'train', **means}, run.config.total_steps, eta)
            warn_of_recompilation(train_step, step)
        if held_out and (step % runtime.eval_every == 0 or step == last):
            with meter.paused():
                evaluation = loop.evaluate(eval_step, state.params, watched(held_out.evaluation(runtime.eval_batches)))
            gained = {'nats_gained': guess.unigram_nll - evaluation['mlm_loss']} if guess else {}
            run.writer.write(step, {'phase': index, 'split': 'eval', **evaluation, **gained})
        if step % runtime.checkpoint_every == 0 or step == last or stopped is not None:
            must = runtime.on_full_disk == 'stop' or step == run.config.total_steps
            run.checkpoints.save(state, {'kind': 'pretrain'}, evaluation, must)
            beat()
    return state, stopped


def guessing(records: Records, examples: int) -> Any:
    """What guessing scores on the held-out records that an evaluation reads: logged, and subtracted in its lines."""
    from input_pipeline.baselines import baselines

    guess = baselines(records.directory, examples, _BASELINE_EXAMPLES)
    logging.info(
        'held out, guessing: unigram mlm_loss %.3f (perplexity %.0f), mlm_accuracy %.3f; '
        'most frequent label nsp_accuracy %.3f, nsp_loss %.3f',
        guess.unigram_nll, math.exp(guess.unigram_nll), guess.unigram_accuracy, guess.nsp_accuracy, guess.nsp_nll,
    )  # fmt: skip
    return guess


if __name__ == '__main__':
    app.run(main)
