"""Pre-trains BERT on records made by bert-preprocess; resumes by itself when the workdir holds a
checkpoint.

  bert-pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a=b]
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from absl import logging

from bert_jax.cli import app, flags
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError, reading
from bert_jax.configs.options import option
from bert_jax.mesh import before_jax, determinism

if TYPE_CHECKING:
    from bert_jax.runs.pretraining.records import Records

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
        ' BERT directory or name, or a Google checkpoint; the shape of the model is theirs, all'
        " else is --config's",
    )
    print_map: bool = option(
        False, 'print every name in --init_from and the array here that it holds'
    )
    print_schedule: bool = option(
        False, 'print the learning rate of chosen steps and end; needs only --config'
    )
    print_config: bool = option(
        False,
        'print every setting as it would be run, as JSON that --config reads, and end; needs only'
        ' --config',
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


def main(argv: Sequence[str]) -> int:
    """Runs every phase that is left; returns 0, or 128 + the signal that asked it to save and
    stop.
    """
    del argv
    options = flags.read(Options)

    before_jax.set_up(options.deterministic)
    if options.print_config:
        print(schema.dumps(configuration(options)), end='')
        return 0
    if options.print_schedule:
        return print_schedule(app.config_from_flags(schema.PretrainConfig))
    if not options.coordinator and (alone := flags.present('num_processes', 'process_id')):
        raise UserError(
            f'{alone[0]} needs --coordinator=HOST:PORT; with --distributed the cluster tells it'
        )

    # One process: flags and records are checked without jax, then the run begins.
    if not (options.distributed or options.coordinator):
        return run(*ready())
    from bert_jax.mesh import processes

    # Several: they meet first, and compare what each was started with, so that a mistake on one
    # host ends all of them with the same line and none waits for it.
    place = processes.ClusterAddress(
        options.coordinator,
        options.num_processes,
        options.process_id,
        options.arrival_timeout_s,
        options.heartbeat_s,
    )
    with processes.joined_run(place, ready, common) as (config, records):
        return run(config, records)


def ready() -> tuple[schema.PretrainConfig, list[Records]]:
    """What the flags of this process name, checked without jax."""
    options = flags.read(Options)
    from bert_jax.runs.pretraining.records import match_phases

    # --workdir is required here, since --dry_run and --print_schedule write nothing.
    config = configuration(options)
    if config.tuning.method != 'full' and not (options.init_from or options.dry_run):
        raise UserError(
            f'tuning.method={config.tuning.method} leaves most weights as they are, and fresh ones'
            ' are worth nothing: name trained ones with --init_from'
        )
    untrained = config.model.words.untrained(config.model)
    if untrained and not (options.init_from or options.dry_run):
        raise UserError(untrained)
    if not options.workdir and not options.dry_run:
        raise UserError('--workdir is required: a folder for this run')
    return config, match_phases(config, options.data)


def configuration(options: Options) -> schema.PretrainConfig:
    """The settings of --config and --set; with --init_from the model is the one there."""
    before = order_begun_with(options.workdir)
    if options.init_from:
        from bert_jax.runs.pretraining.source_shape import shape_settings

        before += shape_settings(options.init_from, options.data, options.workdir)
    return app.config_from_flags(schema.PretrainConfig, before)


def order_begun_with(workdir: str | None) -> list[str]:
    """The record_order of the run that has a checkpoint in `workdir`, as changes of settings.

    None where it is the default. So the command that began a run before there was a choice goes on
    with it.
    """
    from bert_jax.runs.workdir.workdir import Workdir

    if workdir is None:
        return []
    folder = Workdir(workdir)
    with reading(folder):
        if not folder.config_file.exists():
            return []
    begun = folder.config()
    if not isinstance(begun, schema.PretrainConfig) or not folder.newest_step():
        return []
    if begun.record_order == schema.PretrainConfig.record_order:
        return []
    logging.info('%s: goes on with record_order=%s, as it began', folder, begun.record_order)
    return [f'record_order={begun.record_order}']


def common(made: tuple[schema.PretrainConfig, list[Records]]) -> dict[str, Any]:
    """What must be the same in all processes of this run."""
    options = flags.read(Options)
    from bert_jax.runs.pretraining import same_run

    # Paths as given: hosts that name another folder would part their checkpoints.
    named = {
        '--workdir': options.workdir,
        '--init_from': options.init_from,
        '--dry_run': options.dry_run,
    }
    return same_run.description(*made, named)


def run(config: schema.PretrainConfig, records: list[Records]) -> int:
    """What is asked for, in this process or in this one of several."""
    options = flags.read(Options)
    from bert_jax.runs.pretraining import train

    if options.dry_run:
        train.print_sizes(config, records)
        return 0
    assert options.workdir is not None, 'ready() asks for it'
    asked = train.Options(options.workdir, options.init_from, options.print_map, options.profile)
    return train.run(config, records, asked)


def print_schedule(config: schema.PretrainConfig) -> int:
    """Writes step (from 1, as in the log), phase and learning rate to stdout."""
    from bert_jax.train import schedule

    # Ends of phases are shown too, beside the points where the schedule bends.
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


if __name__ == '__main__':
    app.run(main, settings=schema.PretrainConfig)
