"""Pre-trains BERT on records made by bert-preprocess.

  bert-pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a=b]
  bert-pretrain --config=bert_mini_cpu --data=DIR --workdir=DIR --steps=5000

A preset takes its vocabulary and row lengths from the records, and its warm-up keeps its share of
the steps. The same command again goes on from the newest checkpoint in the workdir.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from bert_jax.cli import app, flags
from bert_jax.cli.common_flags import CommonFlags
from bert_jax.configs import schema
from bert_jax.configs.errors import UserError
from bert_jax.configs.options import option
from bert_jax.mesh import before_jax

if TYPE_CHECKING:
    from bert_jax.mesh.processes import ClusterAddress


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
    deterministic: bool = option(False, before_jax.DETERMINISTIC_HELP)
    dry_run: bool = option(
        False, 'compile one step of each phase, print its sizes and end; nothing is written'
    )
    profile: int = option(
        0,
        'trace so many steps of each phase, after its first ten, into WORKDIR/profile',
        bounds=(0, None),
    )


def main(options: Options) -> int:
    """Run every phase that is left; return 0, or 128 + the signal that asked it to stop."""
    before_jax.set_up(options.deterministic)
    if options.print_config or options.print_schedule:
        return shown(options)
    from bert_jax.runs.calls.pretraining import pretrain

    result = pretrain(
        cast(str, app.config_name()),
        options.data,
        options.workdir,
        **vars(options.common),
        settings=app.changes(),
        init_from=options.init_from,
        init_by=options.init_by,
        print_map=options.print_map,
        dry_run=options.dry_run,
        profile=options.profile,
        cluster=cluster(options),
    )
    # The state was saved by the loop; the exit code tells a supervisor to start again.
    return 0 if options.dry_run else result.exit_code()


def shown(options: Options) -> int:
    """Print what is asked for of a run that does not begin."""
    from bert_jax.runs.calls.pretraining import Asked, configuration

    asked = Asked(
        app.config_name(), options.data, options.workdir, options.common, app.changes(),
        options.init_from, options.init_by,
    )  # fmt: skip
    if options.print_config:
        print(schema.dumps(configuration(asked)), end='')
        return 0
    from bert_jax.runs.pretraining.dry_run import schedule_text

    print(schedule_text(configuration(asked)))
    return 0


def cluster(options: Options) -> ClusterAddress | None:
    """Return how the processes of the run find each other; None where it is alone."""
    if not options.coordinator and (alone := flags.present('num_processes', 'process_id')):
        raise UserError(
            f'{alone[0]} needs --coordinator=HOST:PORT; with --distributed the cluster tells it'
        )
    if not (options.distributed or options.coordinator):
        return None
    from bert_jax.mesh.processes import ClusterAddress

    return ClusterAddress(
        options.coordinator,
        options.num_processes,
        options.process_id,
        options.arrival_timeout_s,
        options.heartbeat_s,
    )


if __name__ == '__main__':
    app.run(main, Options, settings=schema.PretrainConfig)
