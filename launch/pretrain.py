"""Pre-trains BERT on records made by bert-preprocess.

  bert-pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a=b]
  bert-pretrain --config=bert_mini_cpu --data=DIR --workdir=DIR --steps=5000

A preset takes its vocabulary and row lengths from the records, and its warm-up keeps its share of
the steps. The same command again goes on from the newest checkpoint in the workdir.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bert_jax.cli import app, flags
from bert_jax.cli.common_flags import CommonFlags
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.mesh import before_jax, determinism

if TYPE_CHECKING:
    from bert_jax.runs.pretraining.records import Records

app.define_config_flags()

# Flags that all processes of a run must be given alike.
_SAME = ('workdir', 'init_from', 'init_by', 'dry_run')


@dataclass(frozen=True)
class Options:
    """Where a run reads and writes, and which of several processes this is."""

    data: tuple[str, ...] = option(
        (), 'records directory; give it once for each length that the phases need'
    )
    workdir: str | None = option(
        None, 'folder of this run: configuration, checkpoints, metrics (required)'
    )
    common: CommonFlags = dataclasses.field(default_factory=CommonFlags)
    init_from: str | None = option(
        None,
        'start from these weights, at step 0 and with a new optimizer (but see --init_by): a'
        ' workdir, a Hugging Face BERT directory or name, or a Google checkpoint; the shape of the'
        " model is theirs, all else is --config's",
    )
    init_by: Literal['weights', 'weights_and_moments', 'tiling', 'layers'] = option(
        'weights',
        'how --init_from is taken; weights: as they are; weights_and_moments: with the moments of'
        ' the optimizer, of a workdir of bert-pretrain with the same optimizer.algorithm; tiling:'
        ' repeated until they have the width and depth of --config, for a larger model; layers: as'
        ' many of its blocks as --config has, evenly spread, for a student',
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
    """Run every phase that is left; return 0, or 128 + the signal that asked it to stop."""
    del argv
    options = flags.read(Options)

    before_jax.set_up(options.deterministic)
    if options.print_config:
        print(schema.dumps(configuration(options)), end='')
        return 0
    if options.print_schedule:
        from bert_jax.runs.pretraining.dry_run import schedule_text

        print(schedule_text(configuration(options)))
        return 0
    if not options.coordinator and (alone := flags.present('num_processes', 'process_id')):
        raise UserError(
            f'{alone[0]} needs --coordinator=HOST:PORT; with --distributed the cluster tells it'
        )

    # One process: flags and records are checked without jax, then the run begins.
    if not (options.distributed or options.coordinator):
        return run(options, *ready(options))
    from bert_jax.mesh import processes
    from bert_jax.runs.pretraining import same_run

    # Several: they meet first, and compare what each was started with, so that a mistake on one
    # host ends all of them with the same line and none waits for it.
    address = processes.ClusterAddress(
        options.coordinator,
        options.num_processes,
        options.process_id,
        options.arrival_timeout_s,
        options.heartbeat_s,
    )
    # Paths as given: hosts that name another folder would part their checkpoints.
    same = {f'--{name}': getattr(options, name) for name in _SAME}
    with processes.joined_run(
        address, lambda: ready(options), lambda made: same_run.description(*made, same)
    ) as (config, records):
        return run(options, config, records)


def ready(options: Options) -> tuple[schema.PretrainConfig, list[Records]]:
    """Read what the flags of this process name, and check it without jax."""
    from bert_jax.runs.pretraining.records import match_phases

    if options.init_by != 'weights' and not options.init_from:
        raise UserError(f'--init_by={options.init_by} needs --init_from')
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
    """Return the settings of --config, of --steps and the like, and of --set, the last one winning.

    With --init_from the model is the one there; a preset takes vocabulary and lengths of --data.
    """
    from bert_jax.runs.pretraining.records import begun_settings, settings_of_records

    config, before = app.config_named(schema.PretrainConfig), []
    if app.is_preset():
        before += settings_of_records(config, options.data, bool(options.init_from))
    before += begun_settings(options.workdir)
    if options.init_from:
        from bert_jax.runs.pretraining.source_shape import shape_settings

        before += shape_settings(options.init_from, options.data, options.workdir, options.init_by)
    before += options.common.settings(config, app.changes())
    return app.with_changes(config, before)


def run(options: Options, config: schema.PretrainConfig, records: list[Records]) -> int:
    """Do what is asked for, in this process or in this one of several; return the exit code."""
    from bert_jax.runs.pretraining.train import pretrain, print_sizes

    if options.dry_run:
        print_sizes(config, records)
        return 0
    assert options.workdir is not None, 'ready() asks for it'
    result = pretrain(
        config,
        records,
        options.workdir,
        init_from=options.init_from,
        init_by=options.init_by,
        print_map=options.print_map,
        profile_steps=options.profile,
    )
    # The state was saved by the loop; the exit code tells a supervisor to start again.
    return result.exit_code()


if __name__ == '__main__':
    app.run(main, settings=schema.PretrainConfig)
