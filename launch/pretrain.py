"""Pre-trains BERT on records made by launch.preprocess; resumes by itself when the workdir holds a
checkpoint.

  python -m launch.pretrain --config=bert_base --data=DIR128 --data=DIR512 --workdir=DIR [--set a=b]
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_jax.mesh import determinism
from configs import schema
from configs.errors import UserError
from launch import app

if TYPE_CHECKING:
    from launch.pretraining.records import Records

app.define_config_flags()
_DATA = flags.DEFINE_multi_string(
    'data', [], 'records directory; give it once for each length that the phases need'
)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'folder of this run: configuration, checkpoints, metrics (required)'
)
_INIT_FROM = flags.DEFINE_string(
    'init_from',
    None,
    'start from these weights, at step 0 and with a new optimizer: a workdir, a Hugging Face BERT'
    ' directory or name, or a Google checkpoint',
)
_PRINT_MAP = flags.DEFINE_bool(
    'print_map', False, 'print every name in --init_from and the array here that it holds'
)
_PRINT_SCHEDULE = flags.DEFINE_bool(
    'print_schedule', False, 'print the learning rate of chosen steps and end; needs only --config'
)
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed',
    False,
    'one of several processes, which the cluster tells apart (TPU pod, Slurm, MPI, Kubernetes)',
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator', None, 'HOST:PORT of process 0, where no cluster tells; the next port is used too'
)
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', None, 'how many processes there are, with --coordinator', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', None, 'which of them this is, from 0, with --coordinator', lower_bound=0
)
_ARRIVAL = flags.DEFINE_integer(
    'arrival_timeout_s', 300, 'seconds within which all processes must have started', lower_bound=1
)
_HEARTBEAT = flags.DEFINE_integer(
    'heartbeat_s', 100, 'seconds without a sign after which a process counts as dead', lower_bound=1
)
_DETERMINISTIC = flags.DEFINE_bool('deterministic', False, determinism.HELP)
_DRY_RUN = flags.DEFINE_bool(
    'dry_run', False, 'compile one step of each phase, print its sizes and end; nothing is written'
)
_PROFILE = flags.DEFINE_integer(
    'profile',
    0,
    'trace so many steps of each phase, after its first ten, into WORKDIR/profile',
    lower_bound=0,
)


def main(argv: Sequence[str]) -> int:
    """Runs every phase that is left; returns 0, or 128 + the signal that asked it to save and
    stop.
    """
    del argv
    if _DETERMINISTIC.value:
        determinism.demand()
    if _PRINT_SCHEDULE.value:
        return print_schedule(app.config_from_flags('pretrain'))
    if not (_DISTRIBUTED.value or _COORDINATOR.value):
        return run(*ready())
    from bert_jax.mesh import processes

    place = processes.Place(
        _COORDINATOR.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        _ARRIVAL.value,
        _HEARTBEAT.value,
    )
    with processes.joined(place, ready, common) as (config, records):
        return run(config, records)


def ready() -> tuple[schema.PretrainConfig, list[Records]]:
    """What the flags of this process name, checked without jax."""
    from launch.pretraining.records import match_phases

    config = app.config_from_flags('pretrain')
    if not _WORKDIR.value and not _DRY_RUN.value:
        raise UserError('--workdir is required: a folder for this run')
    return config, match_phases(config, _DATA.value)


def common(made: tuple[schema.PretrainConfig, list[Records]]) -> dict[str, Any]:
    """What must be the same in all processes of this run."""
    from launch.pretraining import same_run

    named = {
        '--workdir': _WORKDIR.value,
        '--init_from': _INIT_FROM.value,
        '--dry_run': _DRY_RUN.value,
    }
    return same_run.description(*made, named)


def run(config: schema.PretrainConfig, records: list[Records]) -> int:
    """What is asked for, in this process or in this one of several."""
    from launch.pretraining import train

    if _DRY_RUN.value:
        train.print_sizes(config, records)
        return 0
    options = train.Options(app.given(_WORKDIR), _INIT_FROM.value, _PRINT_MAP.value, _PROFILE.value)
    return train.run(config, records, options)


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


if __name__ == '__main__':
    app.run(main)
